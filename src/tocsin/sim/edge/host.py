"""Operators that are only a size: what the thesis' evaluation moves around [AMI §2.4, §4.1].

The host of a simulated edge node. Sizes live in one mapping that all nodes of a run share, because the workload changes
an operator wherever it happens to be. There are no tuples, so nothing is queued and nothing is left over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tocsin.edge.messages import Parcel, Piece
from tocsin.model.edge import EdgeNodeId, OperatorId, Usage


class SizedHost:
    def __init__(self, sizes_pct: Mapping[OperatorId, float], running: Iterable[OperatorId]) -> None:
        self._sizes_pct = sizes_pct
        self.running: set[OperatorId] = set(running)
        self.idle: set[OperatorId] = set()
        """Frozen or not yet confirmed: they take their memory, but do not run."""
        self._memory_pct: float | None = None

    def sizes_changed(self) -> None:
        """To be called when an operator held here has another size."""
        self._memory_pct = None

    def memory_pct(self) -> float:
        """Added up in the order of the ids: a sum must not depend on the order in which operators came."""
        if self._memory_pct is None:
            self._memory_pct = sum(self._sizes_pct[operator] for operator in sorted(self.running | self.idle))
        return self._memory_pct

    def usage(self) -> Usage:
        return Usage(self.memory_pct())

    def usage_of(self, operators: Iterable[OperatorId]) -> Usage:
        return Usage(sum(self._sizes_pct[operator] for operator in operators))

    def sent_to(self, peer: EdgeNodeId) -> int:
        return 0

    def received_from(self, peer: EdgeNodeId) -> int:
        return 0

    def freeze(self, operators: Sequence[OperatorId]) -> tuple[Parcel, ...]:
        self.running.difference_update(operators)
        self.idle.update(operators)
        return tuple(Parcel(operator, self.usage_of((operator,))) for operator in operators)

    def resume(self, operators: Sequence[OperatorId]) -> None:
        self.idle.difference_update(operators)
        self.running.update(operators)

    def hold(self, parcels: Sequence[Parcel]) -> bool:
        self.idle.update(parcel.operator for parcel in parcels)
        self._memory_pct = None
        return True

    def start(self, operators: Sequence[OperatorId], leftovers: Sequence[Piece]) -> None:
        self.resume(operators)

    def let_go(self, operators: Sequence[OperatorId], taker: EdgeNodeId) -> tuple[Piece, ...]:
        self.running.difference_update(operators)
        self.idle.difference_update(operators)
        self._memory_pct = None
        return ()
