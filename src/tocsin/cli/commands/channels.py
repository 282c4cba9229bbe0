"""`tocsin channels`: list the channels of a data cluster."""

from __future__ import annotations

import typer

from tocsin.cli.console import DEFAULT_URL, AsJson, Token, Url, failing_on_errors, show, table


def register(app: typer.Typer) -> None:
    app.command("channels")(channels)


def channels(url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """List the channels of a data cluster, with their executions and failures."""
    from tocsin.cli.connection import ask, connect

    with failing_on_errors(as_json), connect(url, token) as client:
        reply = ask(client, "GET", "/v1/channels")
    rows = [
        (
            channel["name"],
            "continuous" if channel["period_s"] is None else f"every {channel['period_s']:g} s",
            channel["subscriptions"],
            channel["executions"],
            channel["missed_ticks"],
            channel["failures"],
            "" if channel["last_duration_s"] is None else f"{channel['last_duration_s']:.2f} s",
            channel["last_error"],
        )
        for channel in reply["channels"]
    ]
    titles = ("NAME", "RUNS", "SUBSCRIPTIONS", "EXECUTIONS", "MISSED", "FAILED", "LAST", "ERROR")
    show(as_json, reply, lambda: table(titles, rows))
