"""`tocsin channels`: what runs, for how many, and how it goes."""

from __future__ import annotations

import typer

from tocsin.cli.options import DEFAULT_URL, AsJson, Token, Url
from tocsin.cli.output import fail, table, tell


def register(app: typer.Typer) -> None:
    app.command("channels")(channels)


def channels(url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """List the channels of a data cluster."""
    from tocsin.cli.connection import ask, connect
    from tocsin.wire.errors import TocsinError

    try:
        with connect(url, token) as client:
            said = ask(client, "GET", "/v1/channels")
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    rows = [
        (
            one["name"],
            "continuous" if one["period_s"] is None else f"every {one['period_s']:g} s",
            one["subscriptions"],
            one["executions"],
            one["missed_ticks"],
            one["failures"],
            "" if one["last_duration_s"] is None else f"{one['last_duration_s']:.2f} s",
            one["last_error"],
        )
        for one in said["channels"]
    ]
    titles = ("NAME", "RUNS", "SUBSCRIPTIONS", "EXECUTIONS", "MISSED", "FAILED", "LAST", "ERROR")
    tell(as_json, said, lambda: table(titles, rows))
