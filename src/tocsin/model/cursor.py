"""Cursors: a subscriber's position in a subscription, as (epoch, offset).

The offset orders the results of one channel within an epoch. A channel that is dropped and created again starts a new
epoch, so that an old cursor is recognised and never points at results of the new channel.

An offset is one whole number, `execution << 20 | row`. It orders the results of a backend subscription by execution and
row without a counter per subscription. It stays below 2**53, the largest whole number that every JSON reader keeps
exact. An execution with more than 2**20 rows for one subscription takes as many execution numbers as it needs.
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
    """Every result *before* `offset` has been received: intervals are half-open, [cursor, next cursor)."""

    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The cursor that the text spells; None if `text` is not a cursor."""
        epoch, dash, offset = text.partition("-")
        if not (dash and epoch.isascii() and epoch.isdigit() and offset.isascii() and offset.isdigit()):
            return None
        return cls(int(epoch), int(offset))
