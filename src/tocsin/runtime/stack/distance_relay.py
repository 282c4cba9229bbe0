"""The relay process of `distance`: it delays TCP connections by the pair of places of their two ends.

A route listens at an address of 127/8 and forwards to a port. The connecting node is the route's own, or the one whose
address the connection comes from. Every chunk gets a due time when it is read: that moment plus the one-way delay
between the two places. The kernel accepts a connection at once, so the relay adds the round trip of TCP's handshake to
the first chunk of each side.

The process has one thread and waits with microseconds' precision. It records how late each chunk leaves. Requests and
answers are lines of JSON on its standard input and output; `distance` sends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from tocsin.runtime.stack.delayed_bytes import DelayedBytes

OTHERS = ""
"""Stands for every address without a node of its own."""
_CHUNK_BYTES = 64 << 10
_WAITING_BYTES = 16 << 20
"""Bytes that may wait in one direction; the relay does not read more."""
_LOOK_S = 0.05
"""Longest wait, so that the process ends soon after its parent."""


@dataclass(slots=True, eq=False)
class Route:
    listening: socket.socket
    target_port: int
    target: str
    """The node that the route leads to."""
    source: str | None
    """The node that connects; None: known from the address that the connection comes from."""


@dataclass(slots=True, eq=False)
class Direction:
    """Bytes from one socket to the other."""

    reading: socket.socket
    writing: socket.socket
    chunks: DelayedBytes
    nodes: tuple[str, str]
    peer: Direction | None = None
    ended: bool = False
    """The reading side has sent its end."""
    done: bool = False
    """The end is forwarded."""
    blocked: bool = False
    """The writing socket is full."""
    reset: bool = False
    """The reading socket is closed in both directions: nothing can be written to it either."""


@dataclass(slots=True)
class DistanceRelay:
    clock: Callable[[], float] = time.perf_counter
    delays_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """One-way delay of a pair of places; both orders are entered."""
    places: dict[str, str] = field(default_factory=dict)
    """Node → place."""
    nodes: dict[str, str] = field(default_factory=dict)
    """Address of 127/8, or OTHERS, → node."""
    errors_s: array[float] = field(default_factory=lambda: array("d"))
    """How late each chunk left."""
    _routes: dict[int, Route] = field(default_factory=dict)
    _directions: dict[int, Direction] = field(default_factory=dict)
    """Descriptor of the reading socket → its direction."""
    _poll: select.epoll = field(default_factory=select.epoll)
    _due: list[tuple[float, int, Direction]] = field(default_factory=list)
    _numbers: Any = field(default_factory=count)

    # -- requests ------------------------------------------------------------------------------------------------------

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        match request.pop("op"):
            case "delay":
                for pair in ((request["one"], request["other"]), (request["other"], request["one"])):
                    self.delays_s[pair] = request["one_way_s"]
            case "place":
                return {"cut": self._place(**request)}
            case "node":
                self.nodes[request["address"]] = request["node"]
            case "listen":
                return {"port": self._listen(**request)}
            case "report":
                return self._report()
        return {}

    def _place(self, node: str, place: str, cut: bool) -> int:
        """Move a node; with `cut` its connections break. Returns how many did."""
        self.places[node] = place
        broken = [direction for direction in self._directions.values() if direction.nodes[0] == node] if cut else []
        for direction in broken:
            self._break(direction)
        return len(broken) // 2

    def _listen(self, host: str, port: int, target_port: int, target: str, source: str | None) -> int:
        listening = socket.create_server((host, port), backlog=512)
        listening.setblocking(False)
        self._routes[listening.fileno()] = Route(listening, target_port, target, source)
        self._poll.register(listening, select.EPOLLIN)
        return int(listening.getsockname()[1])

    def _report(self) -> dict[str, Any]:
        ordered = sorted(self.errors_s)
        self.errors_s = array("d")
        if not ordered:
            return {"chunks": 0, "p50_s": 0.0, "p99_s": 0.0, "max_s": 0.0}
        places = {"p50_s": 0.5, "p99_s": 0.99, "max_s": 1.0}
        found = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in places.items()}
        return {"chunks": len(ordered)} | found

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self, control: int) -> None:
        """Relay until the pipe `control` is closed."""
        self._poll.register(control, select.EPOLLIN | select.EPOLLHUP)
        requests = b""
        while True:
            wait_s = _LOOK_S if not self._due else min(_LOOK_S, max(0.0, self._due[0][0] - self.clock()))
            # epoll rounds its timeout up to a millisecond; select on epoll's descriptor does not.
            select.select([self._poll], [], [], wait_s)
            for descriptor, events in self._poll.poll(0):
                if descriptor == control:
                    data = os.read(control, 1 << 16)
                    if not data:
                        return
                    *lines, requests = (requests + data).split(b"\n")
                    for line in lines:
                        _answer(self.handle(json.loads(line)))
                elif descriptor in self._routes:
                    self._accept(self._routes[descriptor])
                elif descriptor in self._directions:
                    self._serve(self._directions[descriptor], events)
            self._send_due()

    def close(self) -> None:
        for direction in list(self._directions.values()):
            self._break(direction)
        for route in self._routes.values():
            route.listening.close()
        self._poll.close()

    def _accept(self, route: Route) -> None:
        accepted, (address, _) = route.listening.accept()
        accepted_s = self.clock()
        source = route.source or self.nodes.get(address) or self.nodes.get(OTHERS, "")
        target = socket.socket()
        target.setblocking(False)
        target.connect_ex(("127.0.0.1", route.target_port))
        accepted.setblocking(False)
        for opened in (accepted, target):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        delay_s = self._delay_s(source, route.target)
        forth = Direction(accepted, target, DelayedBytes(accepted_s + 3 * delay_s), (source, route.target))
        back = Direction(target, accepted, DelayedBytes(accepted_s + 4 * delay_s), (source, route.target), peer=forth)
        forth.peer = back
        for direction in (forth, back):
            self._directions[direction.reading.fileno()] = direction
            self._poll.register(direction.reading, select.EPOLLIN)

    def _delay_s(self, source: str, target: str) -> float:
        """The one-way delay between two nodes now; nodes without a place, and nodes at the same place, have none."""
        return self.delays_s.get((self.places.get(source, ""), self.places.get(target, "")), 0.0)

    def _serve(self, direction: Direction, events: int) -> None:
        assert direction.peer is not None
        if events & select.EPOLLOUT:
            self._unblock(direction.peer)
        if direction.ended and events & (select.EPOLLHUP | select.EPOLLERR):
            self._drop(direction)
        elif events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and not direction.ended:
            try:
                data = direction.reading.recv(_CHUNK_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self._break(direction)
                return
            direction.ended = not data
            due_s = direction.chunks.add(data, self.clock(), self._delay_s(*direction.nodes))
            heappush(self._due, (due_s, next(self._numbers), direction))
            self._watch(direction)

    def _drop(self, direction: Direction) -> None:
        """The socket is gone, and its last bytes may still be on their way: forward those, and nothing to it."""
        assert direction.peer is not None
        direction.reset = direction.peer.done = True
        self._poll.unregister(direction.reading)
        if direction.done:
            self._break(direction)

    def _watch(self, direction: Direction) -> None:
        """Wait for what the direction's reading socket can do next: give bytes, or take those of its peer."""
        assert direction.peer is not None
        wanted = 0
        if not direction.ended and direction.chunks.waiting_bytes < _WAITING_BYTES:
            wanted |= select.EPOLLIN
        if direction.peer.blocked:
            wanted |= select.EPOLLOUT
        if direction.reading.fileno() in self._directions and not direction.reset:
            self._poll.modify(direction.reading, wanted)

    def _unblock(self, direction: Direction) -> None:
        direction.blocked = False
        self._send(direction, count_errors=False)
        if direction.peer is not None:
            self._watch(direction.peer)

    def _send_due(self) -> None:
        while self._due and self._due[0][0] <= self.clock():
            _, _, direction = heappop(self._due)
            if not direction.blocked and not direction.done:
                self._send(direction, count_errors=True)

    def _send(self, direction: Direction, *, count_errors: bool) -> None:
        """Send what is due. A chunk that waited for the receiver to read says nothing about the relay's error."""
        while not direction.blocked and (found := direction.chunks.due(now_s := self.clock())) is not None:
            due_s, data = found
            try:
                if not data:
                    direction.chunks.sent(0)
                    self._end(direction)
                    return
                if count_errors:
                    self.errors_s.append(now_s - due_s)
                taken = direction.writing.send(data)
            except (BlockingIOError, InterruptedError):
                taken = 0
            except OSError:
                self._break(direction)
                return
            if taken:
                direction.chunks.sent(taken)
            direction.blocked = taken < len(data)
            assert direction.peer is not None
            self._watch(direction.peer if direction.blocked else direction)

    def _end(self, direction: Direction) -> None:
        direction.done = True
        assert direction.peer is not None
        if direction.peer.done:
            self._break(direction)
            return
        try:
            direction.writing.shutdown(socket.SHUT_WR)
        except OSError:
            self._break(direction)

    def _break(self, direction: Direction) -> None:
        """Close both sockets at once, as a failing network does; bytes that wait are lost."""
        assert direction.peer is not None
        for side in (direction, direction.peer):
            side.done = True
            if self._directions.pop(side.reading.fileno(), None) is not None:
                if not side.reset:
                    self._poll.unregister(side.reading)
                if not (direction.ended and direction.peer.ended):
                    side.reading.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                side.reading.close()


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _take_priority() -> None:
    """Ask for real-time priority, which an administrator gets: other work on the machine then delays no chunk."""
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or not permitted
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def main() -> None:
    _take_priority()
    relay = DistanceRelay()
    _answer({})
    try:
        relay.run(sys.stdin.fileno())
    finally:
        relay.close()


if __name__ == "__main__":
    main()
