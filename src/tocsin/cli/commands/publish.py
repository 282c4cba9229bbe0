"""`tocsin publish DATASET < records.jsonl`: send records in batches; a retry stores nothing twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.options import DEFAULT_URL, AsJson, Token, Url
from tocsin.cli.output import fail, note, tell


def register(app: typer.Typer) -> None:
    app.command("publish")(publish)


def publish(
    dataset: Annotated[str, typer.Argument(help="Where the records go.")],
    file: Annotated[
        Path | None, typer.Argument(help="JSON lines; standard input if not given.", exists=True, dir_okay=False)
    ] = None,
    batch: Annotated[int, typer.Option(help="Records per request.", min=1, max=100_000)] = 1_000,
    give_up_s: Annotated[float, typer.Option(help="Stop retrying a batch after this long.", min=0)] = 300.0,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Publish JSON lines. Bad records are named on stderr with their line; the good ones are stored."""
    from tocsin.cli.connection import cluster_token
    from tocsin.cli.publishing import Sent, numbered_batches, send
    from tocsin.client.sync import Publisher
    from tocsin.wire.errors import TocsinError

    sent = Sent()
    source = sys.stdin.buffer if file is None else file.open("rb")
    with source, Publisher(url, cluster_token(url, token), give_up_s=give_up_s) as publisher:
        try:
            for lines in numbered_batches(source, batch):
                send(publisher, dataset, lines, sent)
                _progress(sent)
        except TocsinError as error:
            counts = f"{sent.accepted:,} records had been accepted before"
            fail(as_json, f"{error.message} ({counts})", code=error.code, more={"sent": sent.as_json()})
        finally:
            if sys.stderr.isatty():
                note("")
    tell(as_json, sent.as_json(), lambda: print(sent.sentence(dataset)))
    if sent.refused:
        raise typer.Exit(1)


def _progress(sent: object) -> None:
    if sys.stderr.isatty():
        print(f"\r{sent}", end="", file=sys.stderr, flush=True)
