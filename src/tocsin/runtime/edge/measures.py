"""What a node measures of itself: its share of the processor, the rate of its rows, and its hand-overs."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace

from tocsin.edge.messages import MessageType, PeerMessage
from tocsin.model.edge import EdgeNodeId, OperatorId

_RECENT = 1_000
_BURST_S = 0.1
_RATE_S = 3.0


class CpuBudget:
    """A share of one core. A node that used more waits until the time has passed that its work may take."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._free_s = 0.0

    def spend(self, cpu_s: float, now_s: float) -> float:
        """Count processor time. Returns how many seconds to wait before further work."""
        self._free_s = max(self._free_s, now_s - _BURST_S) + cpu_s / self._share
        return max(0.0, self._free_s - now_s)


class Rates:
    """Rows per second, over the last seconds."""

    def __init__(self) -> None:
        self.total = 0
        self._samples: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def count(self, rows: int) -> None:
        self.total += rows

    def per_s(self, now_s: float) -> float:
        self._samples.append((now_s, self.total))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - _RATE_S:
            del self._samples[0]
        since_s, before = self._samples[0]
        return (self.total - before) / (now_s - since_s) if now_s > since_s else 0.0


class OverloadLog:
    """How often this node was overloaded, and for how long. The load changes with each measurement and hand-over."""

    def __init__(self, upper_pct: float) -> None:
        self._upper_pct = upper_pct
        self._since_s: float | None = None
        self._longest_s = 0.0
        self.total = 0

    def look(self, load_pct: float, now_s: float) -> None:
        if load_pct <= self._upper_pct:
            self._longest_s, self._since_s = self.longest_s(now_s), None
        elif self._since_s is None:
            self._since_s = now_s
            self.total += 1

    def longest_s(self, now_s: float) -> float:
        """The longest overload; one that lasts counts until now."""
        return self._longest_s if self._since_s is None else max(self._longest_s, now_s - self._since_s)


@dataclass(frozen=True, slots=True)
class Handover:
    """A hand-over that this node gave and that the taker accepted."""

    operators: tuple[OperatorId, ...]
    taker: EdgeNodeId
    state_bytes: int
    pause_s: float
    """From freezing the operators to sending `Clear`, which lets the taker run them."""


class HandoverLog:
    """The latest hand-overs that this node gave."""

    def __init__(self) -> None:
        self.recent: deque[Handover] = deque(maxlen=_RECENT)
        self.total = 0
        self.pause_s = 0.0
        """Summed over all hand-overs."""
        self._open: dict[EdgeNodeId, tuple[int, Handover, float]] = {}
        """Taker → the number of the hand-over, what it gives, and when it began. A refused one stays until the next one
        to the same taker, so it must not keep the state."""

    def note(self, message: PeerMessage, began_s: float, now_s: float) -> None:
        """A message to a neighbour: the request of a hand-over, or its end."""
        if message.handover is None:
            return
        taker = message.receiver
        number, begun, since_s = self._open.get(taker, (None, None, began_s))
        if message.type is MessageType.OP_OFFER_TRANSFER_REQUEST and number != message.handover:
            operators = tuple(parcel.operator for parcel in message.parcels)
            size_bytes = sum(len(parcel.state) for parcel in message.parcels)
            self._open[taker] = (message.handover, Handover(operators, taker, size_bytes, 0.0), began_s)
        elif message.type is MessageType.CLEAR and number == message.handover and begun is not None:
            del self._open[taker]
            self.recent.append(replace(begun, pause_s=now_s - since_s))
            self.total += 1
            self.pause_s += now_s - since_s

    def forget_open(self) -> None:
        """A new generation starts."""
        self._open.clear()
