"""`tocsin publish DATASET < records.jsonl`: publish records in batches. A retry stores no record twice.

`tocsin publish DATASET --cap alert.xml …` publishes CAP 1.2 alerts, one per request.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from tocsin.cli.console import DEFAULT_URL, AsJson, Token, Url, fail, note, show
from tocsin.wire.errors import Code, TocsinError

if TYPE_CHECKING:
    from tocsin.client.publisher import Published
    from tocsin.client.sync import Publisher

_STANDARD_INPUT = Path("-")
_LISTED = 20
"""Refused records that are named on stderr. Further ones are only counted."""
_ERRORS_OF_AN_ALERT = (Code.BAD_RECORDS, Code.IDEMPOTENCY_CONFLICT, Code.TOO_LARGE)
"""Errors that concern a single alert: the command continues with the next file."""

NumberedLines = list[tuple[int, bytes]]


def register(app: typer.Typer) -> None:
    app.command("publish")(publish)


def publish(
    dataset: Annotated[str, typer.Argument(help="Dataset that the records go to.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files with JSON lines, or with alerts (--cap). Default, and `-`: standard input."),
    ] = None,
    cap: Annotated[bool, typer.Option("--cap", help="Each file is one CAP 1.2 alert (XML).")] = False,
    batch: Annotated[int, typer.Option(help="Records per request.", min=1, max=100_000)] = 1_000,
    give_up_s: Annotated[float, typer.Option(help="Stop retrying a batch after this many seconds.", min=0)] = 300.0,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Publish JSON lines or CAP alerts.

    Valid records are stored. Refused records are named on stderr with their line or file.
    """
    from tocsin.cli.connection import cluster_token, connect, wait_for_server
    from tocsin.client.sync import Publisher

    names = files or [_STANDARD_INPUT]
    for name in names:
        if name != _STANDARD_INPUT and (name.is_dir() or not name.exists()):
            raise typer.BadParameter(f"there is no file {name}")
    counts = PublishedCounts()
    if cluster_token(url, token) is None:  # the first start creates the token; with a token, the publisher itself waits
        with connect(url, token) as client:
            wait_for_server(client)
    with Publisher(url, cluster_token(url, token), give_up_s=give_up_s) as publisher:
        try:
            for name in names:
                with _open(name) as source:
                    if cap:
                        publish_alert(publisher, dataset, str(name), source.read(), counts)
                        continue
                    for lines in numbered_batches(source, batch):
                        publish_lines(publisher, dataset, lines, counts, "" if len(names) == 1 else f"{name}: ")
                        if sys.stderr.isatty():
                            print(f"\r{counts}", end="", file=sys.stderr, flush=True)
        except TocsinError as error:
            message = f"{error.message} ({counts.accepted:,} records had been accepted before)"
            fail(as_json, message, code=error.code, more={"sent": asdict(counts)})
        finally:
            if sys.stderr.isatty():
                note("")
    show(as_json, asdict(counts), lambda: print(f"{dataset}: {counts}"))
    if counts.refused:
        raise typer.Exit(1)


def _open(name: Path) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if name == _STANDARD_INPUT else name.open("rb")


@dataclass(slots=True)
class PublishedCounts:
    accepted: int = 0
    duplicates: int = 0
    refused: int = 0
    retries: int = 0

    def add(self, published: Published) -> None:
        self.accepted += published.accepted
        self.duplicates += published.duplicates
        self.refused += published.refused_total
        self.retries += published.retries

    def __str__(self) -> str:
        return f"{self.accepted:,} accepted, {self.duplicates:,} duplicates, {self.refused:,} refused"


def numbered_batches(source: Iterable[bytes], records: int) -> Iterator[NumberedLines]:
    """(line number, line) in batches of at most `records` lines that fit a request. Empty lines are skipped."""
    from tocsin.client.publisher import Batching

    batching = Batching(records)
    numbers: list[int] = []
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        if (batch := batching.add(line.rstrip(b"\r\n"))) is not None:
            yield list(zip(numbers, batch, strict=True))
            numbers = []
        numbers.append(number)
    if numbers:
        yield list(zip(numbers, batching.rest(), strict=True))


def publish_lines(
    publisher: Publisher, dataset: str, lines: NumberedLines, counts: PublishedCounts, prefix: str = ""
) -> None:
    """Publish one batch and wait for the answer. Name refused records as `prefix` and line number."""
    published = publisher.publish_lines(dataset, [line for _, line in lines])
    room = max(0, _LISTED - counts.refused)
    for refusal in published.refused[:room]:
        field = f" {refusal.field}:" if refusal.field else ""
        note(f"{prefix}line {lines[refusal.index][0]}:{field} {refusal.reason}")
    counts.add(published)


def publish_alert(publisher: Publisher, dataset: str, name: str, alert: bytes, counts: PublishedCounts) -> None:
    """Publish one CAP alert and wait for the answer. Print refusals and notices under the name of the file."""
    try:
        published = publisher.publish_cap(dataset, alert)
    except TocsinError as error:
        if error.code not in _ERRORS_OF_AN_ALERT:
            raise
        counts.refused += 1
        note(f"{name}: {error.message}")
        return
    counts.add(published)
    for refusal in published.refused:
        note(f"{name}: {refusal.field or 'record'}: {refusal.reason}")
    for notice in published.notices:
        note(f"{name}: {notice}")
