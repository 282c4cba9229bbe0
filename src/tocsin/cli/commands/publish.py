"""`tocsin publish DATASET < records.jsonl`: send records in batches; a retry stores nothing twice.

`tocsin publish DATASET --cap alert.xml …` sends CAP 1.2 alerts, one a request.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from tocsin.cli.options import DEFAULT_URL, AsJson, Token, Url
from tocsin.cli.output import fail, note, tell


def register(app: typer.Typer) -> None:
    app.command("publish")(publish)


def publish(
    dataset: Annotated[str, typer.Argument(help="Where the records go.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="JSON lines, or alerts with --cap; standard input if not given or `-`."),
    ] = None,
    cap: Annotated[bool, typer.Option("--cap", help="The files are CAP 1.2 alerts (XML), one in each.")] = False,
    batch: Annotated[int, typer.Option(help="Records per request.", min=1, max=100_000)] = 1_000,
    give_up_s: Annotated[float, typer.Option(help="Stop retrying a batch after this long.", min=0)] = 300.0,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Publish JSON lines or CAP alerts. Bad ones are named on stderr with line or file; the good ones are stored."""
    from tocsin.cli.connection import cluster_token
    from tocsin.cli.publishing import Sent, numbered_batches, send, send_alert
    from tocsin.client.sync import Publisher
    from tocsin.wire.errors import TocsinError

    names = files or [_STANDARD_INPUT]
    for name in names:
        if name != _STANDARD_INPUT and (name.is_dir() or not name.exists()):
            raise typer.BadParameter(f"there is no file {name}")
    sent = Sent()
    with Publisher(url, cluster_token(url, token), give_up_s=give_up_s) as publisher:
        try:
            for name in names:
                with _opened(name) as source:
                    if cap:
                        send_alert(publisher, dataset, str(name), source.read(), sent)
                        continue
                    for lines in numbered_batches(source, batch):
                        send(publisher, dataset, lines, sent, "" if len(names) == 1 else f"{name}: ")
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


_STANDARD_INPUT = Path("-")


def _opened(name: Path) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if name == _STANDARD_INPUT else name.open("rb")


def _progress(sent: object) -> None:
    if sys.stderr.isatty():
        print(f"\r{sent}", end="", file=sys.stderr, flush=True)
