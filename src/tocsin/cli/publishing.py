"""Sending the lines of a file through the SDK's publisher, and naming the refused ones by their line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tocsin.cli.output import note
from tocsin.client.publisher import Batching
from tocsin.client.sync import Publisher
from tocsin.wire.errors import Code, TocsinError

_LISTED = 20
"""Refused records named on stderr; more are counted."""

NumberedLines = list[tuple[int, bytes]]


@dataclass(slots=True)
class Sent:
    lines: int = 0
    accepted: int = 0
    duplicates: int = 0
    refused: int = 0
    retries: int = 0

    def __str__(self) -> str:
        return f"{self.accepted:,} accepted, {self.duplicates:,} duplicates, {self.refused:,} refused"

    def sentence(self, dataset: str) -> str:
        return f"{dataset}: {self}"

    def as_json(self) -> dict[str, int]:
        return {
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "refused": self.refused,
            "retries": self.retries,
        }


def numbered_batches(source: Iterable[bytes], records: int) -> Iterator[NumberedLines]:
    """(line number, line) in groups that fit a request; empty lines are left out."""
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


_ABOUT_THE_ALERT = (Code.BAD_RECORDS, Code.IDEMPOTENCY_CONFLICT, Code.TOO_LARGE)
"""What is wrong with one alert; the next may be good."""


def send_alert(publisher: Publisher, dataset: str, name: str, alert: bytes, sent: Sent) -> None:
    """One CAP alert, until it is answered; what is to be said about it goes to stderr under its name."""
    try:
        published = publisher.publish_cap(dataset, alert)
    except TocsinError as error:
        if error.code not in _ABOUT_THE_ALERT:
            raise
        sent.refused += 1
        note(f"{name}: {error.message}")
        return
    sent.accepted += published.accepted
    sent.duplicates += published.duplicates
    sent.retries += published.retries
    sent.refused += published.refused_total
    for refusal in published.refused:
        note(f"{name}: {refusal.field or 'record'}: {refusal.reason}")
    for notice in published.notices:
        note(f"{name}: {notice}")


def send(publisher: Publisher, dataset: str, lines: NumberedLines, sent: Sent, named: str = "") -> None:
    """One batch, until it is answered. `named` comes before the line number of what is refused."""
    published = publisher.publish_lines(dataset, [line for _, line in lines])
    sent.lines += len(lines)
    sent.accepted += published.accepted
    sent.duplicates += published.duplicates
    sent.retries += published.retries
    for refusal in published.refused:
        sent.refused += 1
        if sent.refused <= _LISTED:
            field = f" {refusal.field}:" if refusal.field else ""
            note(f"{named}line {lines[refusal.index][0]}:{field} {refusal.reason}")
    sent.refused += published.refused_total - len(published.refused)
