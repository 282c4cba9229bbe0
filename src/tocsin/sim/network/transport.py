"""Messages in flight in the simulated network: delays and ordered pipes.

A pipe keeps the order of its messages, as a TCP connection does. Messages of different pipes may overtake each other.
A closed pipe loses the messages that are still in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tocsin.sim.kernel import Kernel

LINK_S = 0.005
"""One-way delay between a broker and the coordinator, and between a broker and the data cluster."""
PEER_S = 0.006
"""One-way delay between two brokers."""
ACCESS_S = 0.020
"""One-way delay between a subscriber and a broker or the coordinator."""
HAND_OVER = "hand-over "
"""Prefix of a hand-over token; the migration's id follows."""

T = TypeVar("T")


class Transport:
    """Schedules every arrival. `delay_s` maps a usual delay to the delay of one message; a test may replace it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.delay_s: Callable[[float], float] = lambda usual_s: usual_s
        self._frozen_until_s = 0.0

    def freeze(self, seconds: float) -> None:
        """Let nothing arrive for this long. Clocks go on, so deadlines may pass."""
        self._frozen_until_s = self.kernel.now_s + seconds

    def later(self, usual_s: float, action: Callable[..., object], *arguments: Any) -> None:
        self.at(self.kernel.now_s + self.delay_s(usual_s), action, *arguments)

    def at(self, time_s: float, action: Callable[..., object], *arguments: Any) -> None:
        self.kernel.call_at(time_s, self._arrive, action, arguments)

    def _arrive(self, action: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if self.kernel.now_s < self._frozen_until_s:
            self.kernel.call_at(self._frozen_until_s, self._arrive, action, arguments)
        else:
            action(*arguments)


class Pipe(Generic[T]):
    """One direction of a connection. `receive` is called with each item, in the order of `send`."""

    def __init__(self, transport: Transport, usual_s: float, receive: Callable[[T], object]) -> None:
        self._transport = transport
        self._usual_s = usual_s
        self._receive = receive
        self._in_flight: deque[T] = deque()
        self._last_arrival_s = 0.0
        self._closed = False

    def send(self, item: T) -> None:
        if not self._closed:
            now_s = self._transport.kernel.now_s
            self._last_arrival_s = max(self._last_arrival_s, now_s + self._transport.delay_s(self._usual_s))
            self._in_flight.append(item)
            self._transport.at(self._last_arrival_s, self._arrive)

    def close(self) -> None:
        """Lose everything in flight."""
        self._closed = True

    def _arrive(self) -> None:
        if not self._closed:
            self._receive(self._in_flight.popleft())
