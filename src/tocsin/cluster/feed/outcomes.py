"""What the gateway says to a publisher: accepted, or one of a few refusals, each with its HTTP status. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, TypeAlias

from tocsin.cluster.feed.recordforms import Malformed, Refusal


@dataclass(frozen=True, slots=True)
class FeedLimits:
    body_bytes: Annotated[int, "Largest request body with records, in bytes; a larger one is answered with 413."] = (
        8 << 20
    )
    record_bytes: Annotated[int, "Largest record in bytes."] = 64 << 10
    """Of a record's canonical line: blanks between fields do not count."""
    records: int = 100_000
    """Per request."""
    backlog_bytes: Annotated[
        int, "Most bytes accepted and not yet in the dataset. Beyond it publishers get 429 and `Retry-After`."
    ] = 256 << 20
    refusals_listed: int = 1_000
    """More are counted, not listed: an answer must not grow beyond its request."""
    idempotency_retention_s: float = 86_400.0
    """How long an Idempotency-Key is remembered when the dataset keeps its records for good."""
    memory_keys: int = 200_000
    """Key digests held in memory before they go to a file."""
    segment_bytes: int = 64 << 20
    """Of the feed log: what trimming gives back at a time."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """True once the group it was accepted into is stored, and not before."""

    status: ClassVar[int] = 200
    accepted: int
    duplicates: int
    """Records whose KEY is already stored: the publisher's retry succeeded, nothing was stored again."""
    refused: list[Refusal] = field(default_factory=list)
    refused_total: int = 0
    """`refused` lists the first of them."""
    position: int = 0
    """Everything this answer speaks of lies before this position of the feed log."""
    replayed: bool = False
    """The answer to an earlier request with the same Idempotency-Key, given again."""
    notices: list[str] = field(default_factory=list)
    """What the publisher should know although its records were taken."""


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
    """The disk refused a write and nothing can be promised at the moment."""

    status: ClassVar[int] = 503
    reason: str
    retry_after_s: int = 1


Refused: TypeAlias = Malformed | TooLarge | KeyConflict | Backlogged | Unavailable
