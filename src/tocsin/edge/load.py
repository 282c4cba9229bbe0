"""Measures what each operator uses of the processor and the uplink, in percent of the node's budget.

Memory is exact at any moment and is measured by the dataflow. Processor time and bytes are rates, so they are added up
and turned into percents once a monitoring period.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tocsin.model.edge import OperatorId, Usage


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
        self._since_s: float | None = None

    def worked(self, operator: OperatorId, cpu_s: float) -> None:
        self._cpu_s[operator] = self._cpu_s.get(operator, 0.0) + cpu_s

    def sent(self, operator: OperatorId, size_bytes: int) -> None:
        self._bytes_up[operator] += size_bytes

    def measure(self, now_s: float) -> dict[OperatorId, Usage] | None:
        """The usage of each active operator since the last call; None at the first call."""
        since_s, self._since_s = self._since_s, now_s
        cpu_s, bytes_up = self._cpu_s, self._bytes_up
        self._cpu_s, self._bytes_up = {}, Counter()
        if since_s is None or now_s <= since_s:
            return None
        length_s = now_s - since_s
        uplink_bytes = (self._budget.uplink_bytes_per_s or float("inf")) * length_s
        return {
            operator: Usage(
                cpu_pct=100 * cpu_s.get(operator, 0.0) / (length_s * self._budget.cpu_share),
                network_pct=100 * bytes_up[operator] / uplink_bytes,
            )
            for operator in {*cpu_s, *bytes_up}
        }
