"""`tocsin datasets`: what is stored, and what waits to be."""

from __future__ import annotations

import typer

from tocsin.cli.options import DEFAULT_URL, AsJson, Token, Url
from tocsin.cli.output import fail, table, tell


def register(app: typer.Typer) -> None:
    app.command("datasets")(datasets)


def datasets(url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """List the datasets of a data cluster."""
    from tocsin.cli.connection import ask, connect
    from tocsin.wire.errors import TocsinError

    try:
        with connect(url, token) as client:
            said = ask(client, "GET", "/v1/datasets")
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    rows = [
        (one["name"], one["kind"], one["rows"], one["files"], one["bytes"], one["backlog_bytes"])
        for one in said["datasets"]
    ]
    tell(as_json, said, lambda: table(("NAME", "KIND", "ROWS", "FILES", "BYTES", "BACKLOG"), rows))
