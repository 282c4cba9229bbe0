"""Nodes at places and the messages between them: every ordered pair of nodes is a delay line.

A node hangs `hop_s` off the place where it is, and may move to another place. The delay between two nodes is the delay
between their places plus both hops, at the time of sending; nothing overtakes on the way between two nodes. There is no
loss and no bandwidth here: the simulations that use it are about latency.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tocsin.coords.coordinate import Vectors
from tocsin.sim.kernel import Kernel, Signal
from tocsin.sim.topics.links import Link


class Network:
    def __init__(self, kernel: Kernel, delay_s: Vectors) -> None:
        self._kernel = kernel
        self._delay_s = delay_s
        self._place: dict[str, int] = {}
        self._hop_s: dict[str, float] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self.messages_sent = 0

    def add(self, node: str, place: int, hop_s: float = 0.0) -> None:
        if node in self._place:
            raise ValueError(f"there is a node {node} already")
        self._place[node], self._hop_s[node] = place, hop_s

    def move(self, node: str, place: int) -> None:
        """From now on the node sends and receives at another place; what is on its way arrives as it was sent."""
        self._place[node] = place

    def place(self, node: str) -> int:
        return self._place[node]

    def delay_s(self, source: str, target: str) -> float:
        """One way, as of now."""
        if source == target:
            return 0.0
        between_s = float(self._delay_s[self._place[source], self._place[target]])
        return between_s + self._hop_s[source] + self._hop_s[target]

    def send(self, source: str, target: str, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action` at the target when the message arrives."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self._kernel, 0.0)
        link.delay_s = self.delay_s(source, target)
        self.messages_sent += 1
        link.send(action, *arguments)

    def sent(self, source: str, target: str) -> Signal[Any]:
        """The same for a process: `yield network.sent(a, b)` goes on at the target."""
        arrived: Signal[Any] = self._kernel.signal()
        self.send(source, target, arrived.fire, None)
        return arrived
