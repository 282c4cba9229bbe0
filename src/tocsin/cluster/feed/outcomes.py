"""The gateway's answers to a publisher: accepted, or refused with a reason; each has its HTTP status. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, TypeAlias

from tocsin.cluster.feed.recordforms import Malformed, RecordRefusal


@dataclass(frozen=True, slots=True)
class FeedLimits:
    body_bytes: Annotated[int, "Largest request body with records, in bytes; a larger one is answered with 413."] = (
        8 << 20
    )
    record_bytes: Annotated[int, "Largest record in bytes."] = 64 << 10
    """Length of a record's canonical line: blanks between fields do not count."""
    records: int = 100_000
    """The most records in one request."""
    backlog_bytes: Annotated[
        int, "Most bytes accepted and not yet in the dataset. Beyond it publishers get 429 and `Retry-After`."
    ] = 256 << 20
    refusals_listed: int = 1_000
    """The answer counts further refusals without listing them, so that it is not longer than its request."""
    idempotency_retention_s: float = 86_400.0
    """How long the gateway remembers an Idempotency-Key if the dataset keeps its records for ever."""
    memory_keys: int = 200_000
    """Key digests in memory before they are written to a file."""
    segment_bytes: int = 64 << 20
    """Size of a segment of the feed log. Trimming deletes whole segments."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to an accepted request. It is valid once the request's `SyncGroup` is stored, not before."""

    status: ClassVar[int] = 200
    accepted: int
    duplicates: int
    """Records whose KEY is stored already. The publisher's retry succeeded, and nothing is stored twice."""
    refused: list[RecordRefusal] = field(default_factory=list)
    refused_total: int = 0
    """The number of all refused records; `refused` lists the first ones."""
    position: int = 0
    """All records of the request lie before this position of the feed log."""
    replayed: bool = False
    """True if this repeats the answer to an earlier request with the same Idempotency-Key."""
    notices: list[str] = field(default_factory=list)
    """Warnings for the publisher about records that were accepted."""


@dataclass(frozen=True, slots=True)
class RecordedRange:
    """The messages of a topic that a request records: those behind `after`, up to `upto`."""

    recording: str
    after: int
    """The recording's cursor: the request is stored only if the cursor has this value."""
    upto: int
    """The cursor when the request is stored. It becomes durable together with the records."""


@dataclass(frozen=True, slots=True)
class CursorConflict:
    """The recording's cursor has another value: these messages, or some of them, are recorded already."""

    status: ClassVar[int] = 409
    upto: int
    """The cursor. It is durable."""
    reason: str = "the recording has another cursor"


@dataclass(frozen=True, slots=True)
class TooLarge:
    status: ClassVar[int] = 413
    what: str
    """`body bytes`, `records` or `record bytes`."""
    limit: int

    @property
    def reason(self) -> str:
        return f"at most {self.limit:,} {self.what}; send less at a time"


@dataclass(frozen=True, slots=True)
class KeyConflict:
    status: ClassVar[int] = 422
    reason: str = "this Idempotency-Key came with a different body before"


@dataclass(frozen=True, slots=True)
class Backlogged:
    """Records arrive faster than they enter the dataset."""

    status: ClassVar[int] = 429
    retry_after_s: int
    reason: str = "too many records wait to enter the dataset"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The disk refused a write, or the gateway is closed: the request cannot be stored at the moment."""

    status: ClassVar[int] = 503
    reason: str
    retry_after_s: int = 1


Refused: TypeAlias = Malformed | TooLarge | KeyConflict | CursorConflict | Backlogged | Unavailable
