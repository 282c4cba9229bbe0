"""Where a subscriber stands in a subscription: (epoch, offset).

The offset orders the results of one channel; the epoch says in which life of the channel it counts. A channel that is
dropped and created again starts a new epoch, so an old cursor is recognised as such instead of pointing at strangers.

An offset is one whole number, `execution << 20 | row`: results of one backend subscription are ordered by execution
and, inside it, by row, and nobody needs to keep a counter per subscription. It stays below 2**53, as JSON readers need.
An execution with more than 2**20 rows for one subscription takes as many execution numbers as it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

ROW_BITS = 20
ROWS_PER_EXECUTION = 1 << ROW_BITS


def offset_of(execution: int, row: int = 0) -> int:
    return (execution << ROW_BITS) + row


def execution_of(offset: int) -> int:
    return offset >> ROW_BITS


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """Everything *before* `offset` has been seen: intervals are half-open, [cursor, next cursor)."""

    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        epoch, dash, offset = text.partition("-")
        if not (dash and epoch.isascii() and epoch.isdigit() and offset.isascii() and offset.isdigit()):
            return None
        return cls(int(epoch), int(offset))
