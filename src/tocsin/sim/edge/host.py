"""The operators of a simulated node: only their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tocsin.edge.messages import Parcel, Piece
from tocsin.model.edge import EdgeNodeId, OperatorId, Usage


class SizedHost:
    """The `OperatorHost` of a simulated node, whose operators are only a size [AMI §2.4, §4.1].

    All nodes of a run share one mapping of sizes, because the workload changes an operator wherever it runs. There are
    no tuples, so nothing is queued.
    """

    def __init__(self, sizes_pct: Mapping[OperatorId, float], running: Iterable[OperatorId]) -> None:
        self._sizes_pct = sizes_pct
        self.running: set[OperatorId] = set(running)
        self.idle: set[OperatorId] = set()
        """Operators that are frozen or not yet confirmed: they use memory, but do not run."""
        self._memory_pct: float | None = None

    def sizes_changed(self) -> None:
        """The driver calls this when the size of an operator held here has changed."""
        self._memory_pct = None

    def memory_pct(self) -> float:
        """The memory in use. It is added up by id, so that the order of arrival does not change the sum."""
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

    def hold(self, parcels: Sequence[Parcel]) -> bool:
        self.idle.update(parcel.operator for parcel in parcels)
        self._memory_pct = None
        return True

    def start(self, operators: Sequence[OperatorId], leftovers: Sequence[Piece]) -> None:
        self.idle.difference_update(operators)
        self.running.update(operators)

    def load(self, operators: Iterable[OperatorId]) -> None:
        """Run the operators at once, as the thesis' listings do. No state arrives with them."""
        self.running.update(operators)
        self._memory_pct = None

    def release(self, operators: Sequence[OperatorId], taker: EdgeNodeId) -> tuple[Piece, ...]:
        self.running.difference_update(operators)
        self.idle.difference_update(operators)
        self._memory_pct = None
        return ()
