"""Nodes at places, and the messages between them. Every ordered pair of nodes has a delay line.

A node is `hop_s` away from its place and may move to another place. The delay between two nodes is the delay between
their places plus both hops, at the time of sending. Messages between two nodes keep their order. There is no loss and
no bandwidth: the simulations that use the network measure latency.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tocsin.coords.distances import Vectors
from tocsin.sim.kernel import Kernel, Signal


class DelayLine:
    """One direction of a connection: it delivers in order, one delay later.

    With a rate, a busy line also delays by serialisation. `delay_s` may change while messages are in transit; no
    message overtakes another. There is no loss.
    """

    def __init__(self, kernel: Kernel, delay_s: float, *, rate_bytes_per_s: float | None = None) -> None:
        if delay_s < 0 or (rate_bytes_per_s is not None and rate_bytes_per_s <= 0):
            raise ValueError(f"a link cannot have delay {delay_s} s and rate {rate_bytes_per_s} bytes/s")
        self._kernel = kernel
        self.delay_s = delay_s
        self.rate_bytes_per_s = rate_bytes_per_s
        self.sent_bytes = 0
        self._free_at_s = 0.0
        self._last_arrival_s = 0.0

    def send(self, action: Callable[..., object], *arguments: Any, size_bytes: int = 0) -> float:
        """Call `action` at the far end; returns the time of arrival."""
        self.sent_bytes += size_bytes
        leaves_s = self._kernel.now_s
        if self.rate_bytes_per_s is not None:
            leaves_s = max(leaves_s, self._free_at_s) + size_bytes / self.rate_bytes_per_s
            self._free_at_s = leaves_s
        arrives_s = max(leaves_s + self.delay_s, self._last_arrival_s)
        self._last_arrival_s = arrives_s
        self._kernel.call_at(arrives_s, action, *arguments)
        return arrives_s


class Network:
    def __init__(self, kernel: Kernel, delay_s: Vectors) -> None:
        self._kernel = kernel
        self._delay_s = delay_s
        self._place: dict[str, int] = {}
        self._hop_s: dict[str, float] = {}
        self._lines: dict[tuple[str, str], DelayLine] = {}

    def add(self, node: str, place: int, hop_s: float = 0.0) -> None:
        if node in self._place:
            raise ValueError(f"there is a node {node} already")
        self._place[node], self._hop_s[node] = place, hop_s

    def move(self, node: str, place: int) -> None:
        """Move the node to another place. Messages in transit keep their time of arrival."""
        self._place[node] = place

    def delay_s(self, source: str, target: str) -> float:
        """The present one-way delay."""
        if source == target:
            return 0.0
        between_s = float(self._delay_s[self._place[source], self._place[target]])
        return between_s + self._hop_s[source] + self._hop_s[target]

    def send(self, source: str, target: str, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action` at the target when the message arrives."""
        line = self._lines.get((source, target))
        if line is None:
            line = self._lines[source, target] = DelayLine(self._kernel, 0.0)
        line.delay_s = self.delay_s(source, target)
        line.send(action, *arguments)

    def sent(self, source: str, target: str) -> Signal[Any]:
        """Send for a process: `yield network.sent(a, b)` continues when the message has arrived at b."""
        arrived: Signal[Any] = self._kernel.signal()
        self.send(source, target, arrived.fire, None)
        return arrived
