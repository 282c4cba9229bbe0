"""The egress shaper of a broker's topics: the configured output in bytes per second, before the connections.

Frames of a receiver's stream (`STREAM`) pass the shaper in their order; all other frames do not wait. A large fan-out
is split, so that it does not leave as one block far beyond the burst. A connection with too many waiting bytes counts
as blocked, exactly as one whose client reads slowly: its receivers lag and get recent messages, or a gap, later
(`broker.topics.delivery`). So a slow broker uses bounded memory.

`TopicCapacity` drives it; it exists only while the output is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tocsin.broker.topics.effects import Send
from tocsin.broker.topics.events import ConnectionId
from tocsin.policies.sites.shaping import Shaper
from tocsin.runtime.broker.pace import CallLater, Pace
from tocsin.wire import topic as wire

STREAM = frozenset({wire.Messages, wire.Gap, wire.ReceiverAttached, wire.Moved, wire.Ended, wire.Detached})
"""What a receiver must get in order. Answers, acknowledgements, beats, `moving`, `redirect` and `closing` do not wait:
clients must be able to leave a slow broker."""


class Connection(Protocol):
    def write(self, data: bytes) -> None: ...

    def await_drain(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Frame:
    connections: tuple[ConnectionId, ...]
    data: bytes
    waits: bool = False
    """False for a frame that leaves when it is offered: it is not counted per connection."""


class Egress:
    def __init__(
        self,
        rate_per_s: float,
        queue_bytes: int,
        connections: Mapping[ConnectionId, Connection],
        now_s: Callable[[], float],
        call_later: CallLater,
        report_blocked: Callable[[ConnectionId], None],
    ) -> None:
        """`call_later(delay_s, callback)` is the event loop's; `queue_bytes` may wait for one connection."""
        self.sent_bytes = 0
        """Bytes of streams that left the shaper, since the start."""
        self.waiting_bytes = 0
        """Bytes that wait for open connections."""
        self._queue_bytes = queue_bytes
        self._connections = connections
        self._now_s = now_s
        self._report_blocked = report_blocked
        self._shaper: Shaper[_Frame] = Shaper(rate_per_s, now_s())
        self._waiting: dict[ConnectionId, int] = {}
        """Bytes that wait for each connection that has any."""
        self._dead_bytes = 0
        """Bytes in the queue for connections that are closed."""
        self._blocked: set[ConnectionId] = set()
        self._pace = Pace(self._shaper, self._write, now_s, call_later)

    def set_rate(self, rate_per_s: float) -> None:
        """Change the rate now. Frames that wait keep their order."""
        self._write(self._shaper.set_rate(rate_per_s, self._now_s()))
        self._pace.schedule()

    def send(self, effect: Send) -> None:
        kind = type(effect.message)
        if kind is wire.Messages:
            self._offer(effect.connections, effect.data)
        elif kind not in STREAM or not self._waiting:
            self._write_now(effect.connections, effect.data)
        else:  # short frames wait only behind earlier frames of their own connection
            held = tuple(name for name in effect.connections if name in self._waiting)
            self._write_now((name for name in effect.connections if name not in self._waiting), effect.data)
            if held:
                self._offer(held, effect.data)

    def is_blocked(self, connection: ConnectionId) -> bool:
        """True while too much waits for the connection. When that ends, its drain is reported."""
        return connection in self._blocked

    @property
    def blocked(self) -> list[ConnectionId]:
        return list(self._blocked)

    def forget(self, connection: ConnectionId) -> None:
        """The connection is closed: what waits for it is not sent, and costs nothing.

        Its frames stay in the queue until there are more bytes of such frames than of others: clients that come and go
        must not fill the memory of a broker with a long queue.
        """
        self._blocked.discard(connection)
        dead_bytes = self._waiting.pop(connection, 0)
        self.waiting_bytes -= dead_bytes
        self._dead_bytes += dead_bytes
        if self._dead_bytes > max(self._queue_bytes, self.waiting_bytes):
            self._dead_bytes = 0
            self._shaper.keep(lambda frame: any(name in self._waiting for name in frame.connections))

    # -- the queue -----------------------------------------------------------------------------------------------------

    def _offer(self, connections: tuple[ConnectionId, ...], data: bytes) -> None:
        now_s, size = self._now_s(), len(data)
        half = self._shaper.burst / 2
        count = len(connections) if half >= size * len(connections) else max(1, int(half / size))
        for start in range(0, len(connections), count):
            frame = _Frame(connections[start : start + count], data)
            ready = self._shaper.offer(frame, size * len(frame.connections), now_s)
            if len(self._shaper):
                self._count(frame)
            if ready:
                self._write(ready)
        self._pace.schedule()

    def _count(self, frame: _Frame) -> None:
        """Count a frame that waits. Blocked connections are reported when their receivers' messages are sent."""
        frame.waits = True
        size, waiting = len(frame.data), self._waiting
        self.waiting_bytes += size * len(frame.connections)
        for name in frame.connections:
            total = waiting[name] = waiting.get(name, 0) + size
            if total > self._queue_bytes and name not in self._blocked:
                self._blocked.add(name)
                self._report_blocked(name)

    def _write(self, frames: list[_Frame]) -> None:
        while frames:
            unsent = sum(self._write_frame(frame) for frame in frames)
            frames = self._shaper.refund(unsent, self._now_s()) if unsent else []

    def _write_frame(self, frame: _Frame) -> int:
        """Write a frame whose turn has come. Returns the bytes for connections that are closed."""
        data, size, unsent = frame.data, len(frame.data), 0
        if not frame.waits:
            unsent = size * (len(frame.connections) - self._write_now(frame.connections, data))
            self.sent_bytes += size * len(frame.connections) - unsent
            return unsent
        for name in frame.connections:
            waiting, connection = self._waiting.get(name), self._connections.get(name)
            if waiting is None or connection is None:
                self._blocked.discard(name)
                self.waiting_bytes -= self._waiting.pop(name, 0)
                unsent += size
                continue
            connection.write(data)
            self.waiting_bytes -= size
            if waiting > size:
                self._waiting[name] = waiting - size
            else:
                del self._waiting[name]
            if waiting - size <= self._queue_bytes // 4 and name in self._blocked:
                self._blocked.remove(name)
                connection.await_drain()
        self.sent_bytes += size * len(frame.connections) - unsent
        self._dead_bytes = max(0, self._dead_bytes - unsent)
        return unsent

    def _write_now(self, connections: Iterable[ConnectionId], data: bytes) -> int:
        """Returns the number of connections that are open."""
        written = 0
        for name in connections:
            if (connection := self._connections.get(name)) is not None:
                connection.write(data)
                written += 1
        return written
