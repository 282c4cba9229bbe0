"""Measures what each operator uses of the processor and the uplink, in percent of the node's budget.

Memory is exact at any moment and is measured by the dataflow. Processor time and bytes are rates, so they are added up
and turned into percents once a monitoring period.

Processor time is what the data that *arrives* needs. A node that cannot follow works at its limit, however large the
burst is; and it still does while it catches up, when the burst is over or its operators have moved. The time that was
used would say too little at first and too much later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tocsin.model.edge import OperatorId, Usage

_LARGEST_DEMAND = 4.0
"""In one period a node sees no more demand than so many times what it processed: the rest waits as memory."""


@dataclass(frozen=True, slots=True)
class NodeBudget:
    memory_bytes: int
    """For the state of operators and for queued bytes."""
    cpu_share: float = 1.0
    """Of one core."""
    uplink_bytes_per_s: float | None = None
    """None: unlimited, and not part of the load."""

    @property
    def inbox_bytes(self) -> int:
        """How much may wait in the inbox: children stop sending, and entries stop reading, at this size."""
        return self.memory_bytes // 2

    @property
    def uplink_waiting_bytes(self) -> int:
        """The node processes nothing while more than this waits for the parent's credit."""
        return self.memory_bytes // 4


class LoadMeter:
    def __init__(self, budget: NodeBudget, cpu_clock: Callable[[], float] | None = None) -> None:
        """`cpu_clock` returns the processor time of the thread in seconds; without it no time is measured."""
        self._budget = budget
        self.cpu_clock: Callable[[], float] = cpu_clock or (lambda: 0.0)
        self._cpu_s: dict[OperatorId, float] = {}
        self._bytes_up: Counter[OperatorId] = Counter()
        self._spent_s = 0.0
        self._arrived_bytes = self._processed_bytes = 0
        self._since_s: float | None = None

    def worked(self, operator: OperatorId, cpu_s: float) -> None:
        self._cpu_s[operator] = self._cpu_s.get(operator, 0.0) + cpu_s

    def arrived(self, size_bytes: int) -> None:
        """Data came into the inbox; a negative size: it was taken out unprocessed."""
        self._arrived_bytes += size_bytes

    def processed(self, size_bytes: int, cpu_s: float) -> None:
        """Data of the inbox was processed in this time: the operators' work, and what belongs to none of them."""
        self._processed_bytes += size_bytes
        self._spent_s += cpu_s

    def _demand(self) -> float:
        """The processor time that the arrived data needs, as a multiple of the operators' measured time."""
        worked_s = sum(self._cpu_s.values())
        overhead = max(1.0, self._spent_s / worked_s) if worked_s > 0.0 else 1.0
        if not self._processed_bytes:
            return overhead
        return overhead * min(_LARGEST_DEMAND, max(0, self._arrived_bytes) / self._processed_bytes)

    def sent(self, operator: OperatorId, size_bytes: int) -> None:
        self._bytes_up[operator] += size_bytes

    def measure(self, now_s: float) -> dict[OperatorId, Usage] | None:
        """The usage of each active operator since the last call; None at the first call."""
        since_s, self._since_s = self._since_s, now_s
        cpu_s, bytes_up, demand = self._cpu_s, self._bytes_up, self._demand()
        self._cpu_s, self._bytes_up, self._spent_s = {}, Counter(), 0.0
        self._arrived_bytes = self._processed_bytes = 0
        if since_s is None or now_s <= since_s:
            return None
        length_s = now_s - since_s
        uplink_bytes = (self._budget.uplink_bytes_per_s or float("inf")) * length_s
        return {
            operator: Usage(
                cpu_pct=100 * demand * cpu_s.get(operator, 0.0) / (length_s * self._budget.cpu_share),
                network_pct=100 * bytes_up[operator] / uplink_bytes,
            )
            for operator in {*cpu_s, *bytes_up}
        }
