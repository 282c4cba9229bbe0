"""The inbox of a node: pieces and readings that have arrived and are not processed yet.

A node processes one item at a time, so a burst waits here and its bytes count as memory of the operators it is for.
The inbox is a first-in-first-out queue for everything, because exact windows need more than the order of each
operator's input: while an operator moves up, its older output may still wait here in front of its next input.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from tocsin.edge.messages import Piece
from tocsin.model.edge import EdgeNodeId, OperatorId

PIECE_OVERHEAD_BYTES = 64
"""What a piece costs of its sender's credit beyond its rows, so that watermarks are not free."""


@dataclass(frozen=True, slots=True)
class WaitingPiece:
    piece: Piece
    sender: EdgeNodeId

    @property
    def size_bytes(self) -> int:
        return self.piece.size_bytes


@dataclass(frozen=True, slots=True)
class WaitingReadings:
    stream: str
    batch: pa.RecordBatch
    publisher: str
    operators: tuple[OperatorId, ...]
    """The operators that the readings feed."""
    size_bytes: int
    """Arrow computes it anew at each call, and the inbox needs it several times."""


@dataclass(frozen=True, slots=True)
class WaitingWatermark:
    """A promise for a stream that enters here; for no stream, the end of the replay."""

    stream: str | None
    watermark_us: int = 0
    size_bytes: int = 0


Work = WaitingPiece | WaitingReadings | WaitingWatermark


def cost_bytes(piece: Piece) -> int:
    return piece.size_bytes + PIECE_OVERHEAD_BYTES


def weight_bytes(work: Work) -> int:
    """The size of an item as a measure of work: watermarks are not free."""
    return work.size_bytes + PIECE_OVERHEAD_BYTES


class Inbox:
    def __init__(self) -> None:
        self._items: deque[Work] = deque()
        self._bytes_for: Counter[OperatorId] = Counter()
        self.size_bytes = 0
        self.processed_bytes: Counter[EdgeNodeId] = Counter()
        """The cost of all pieces of each child that have left the inbox: the child's credit grows by as much."""

    def __len__(self) -> int:
        return len(self._items)

    def bytes_for(self, operator: OperatorId) -> int:
        return self._bytes_for[operator]

    @property
    def next_bytes(self) -> int:
        """What the oldest item costs."""
        return weight_bytes(self._items[0])

    def put(self, work: Work) -> None:
        self._items.append(work)
        self._count(work, 1)

    def take(self) -> Work:
        work = self._items.popleft()
        self._leave(work)
        return work

    def withdraw(self, operators: Collection[OperatorId]) -> list[Piece]:
        """Take out the pieces for these operators, in order. Result rows (port −1) stay: they only pass through."""
        kept: deque[Work] = deque()
        taken: list[Piece] = []
        for work in self._items:
            if isinstance(work, WaitingPiece) and work.piece.port >= 0 and work.piece.operator in operators:
                taken.append(work.piece)
                self._leave(work)
            else:
                kept.append(work)
        self._items = kept
        return taken

    def _leave(self, work: Work) -> None:
        self._count(work, -1)
        if isinstance(work, WaitingPiece):
            self.processed_bytes[work.sender] += cost_bytes(work.piece)

    def _count(self, work: Work, sign: int) -> None:
        self.size_bytes += sign * work.size_bytes
        if isinstance(work, WaitingPiece) and work.piece.port >= 0:
            self._bytes_for[work.piece.operator] += sign * work.size_bytes
        elif isinstance(work, WaitingReadings):
            for operator in work.operators:
                self._bytes_for[operator] += sign * (work.size_bytes // len(work.operators))
