"""The pieces that a node sends to its parent: in order, and only as many bytes as the parent has granted."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from tocsin.edge.inbox import cost_bytes
from tocsin.edge.messages import Piece
from tocsin.model.edge import OperatorId


class Uplink:
    def __init__(self, is_limited: bool) -> None:
        self._granted_bytes: int | None = 0 if is_limited else None
        self._sent_bytes = 0
        self._waiting: deque[Piece] = deque()
        self.waiting_bytes = 0
        self.sent_pieces = 0
        """Pieces handed to the driver. Pieces that wait for credit can still be withdrawn and do not count."""
        self.outbox: list[Piece] = []
        """Pieces that the driver sends now."""

    def push(self, piece: Piece) -> None:
        self._waiting.append(piece)
        self.waiting_bytes += cost_bytes(piece)
        self._send()

    def grant(self, through_bytes: int) -> None:
        """The parent accepts this many bytes in total since the link was opened."""
        if self._granted_bytes is not None:
            self._granted_bytes = max(self._granted_bytes, through_bytes)
            self._send()

    def withdraw(self, operators: Collection[OperatorId]) -> list[Piece]:
        """Take back the unsent pieces for operators that have moved down to this node, in order."""
        taken = [piece for piece in self._waiting if piece.port >= 0 and piece.operator in operators]
        self._waiting = deque(piece for piece in self._waiting if piece.port < 0 or piece.operator not in operators)
        self.waiting_bytes -= sum(cost_bytes(piece) for piece in taken)
        return taken

    def _send(self) -> None:
        """Send while any credit is left. The last piece may exceed it, so that a large piece is never stuck."""
        while self._waiting and (self._granted_bytes is None or self._sent_bytes < self._granted_bytes):
            piece = self._waiting.popleft()
            self.waiting_bytes -= cost_bytes(piece)
            self._sent_bytes += cost_bytes(piece)
            self.sent_pieces += 1
            self.outbox.append(piece)
