"""Connections between homes and followers in simulated topics: opened on request, and again after every break."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Protocol

from tocsin.broker.topics import events
from tocsin.broker.topics.events import StreamId
from tocsin.model.ids import BrokerId
from tocsin.sim.network.transport import PEER_S, Pipe, Transport
from tocsin.wire.topic_log import FromFollower, FromHome

_CONNECT_AGAIN_S = 0.3


class ReplicaProcess(Protocol):
    """A broker process at either end."""

    id: BrokerId

    @property
    def running(self) -> bool: ...

    def happened(self, event: events.Event) -> None: ...


class ReplicaConnection:
    def __init__(self, transport: Transport, number: int, home: ReplicaProcess, follower: ReplicaProcess) -> None:
        self.home = home
        self.follower = follower
        self.stream = StreamId(number)
        self.up: Pipe[FromHome] = Pipe(
            transport, PEER_S, lambda message: follower.happened(events.HomeMessageReceived(self.stream, message))
        )
        self.down: Pipe[FromFollower] = Pipe(
            transport, PEER_S, lambda message: home.happened(events.ReplicaAnswered(follower.id, message))
        )

    def close(self) -> None:
        self.up.close()
        self.down.close()


class ReplicaNetwork:
    def __init__(self, transport: Transport, find: Callable[[BrokerId], ReplicaProcess | None]) -> None:
        self._transport = transport
        self._find = find
        self._numbers = count(1)
        self._wanted: set[tuple[ReplicaProcess, BrokerId]] = set()
        self.open: dict[tuple[ReplicaProcess, BrokerId], ReplicaConnection] = {}
        self.cut_off: set[BrokerId] = set()
        """Brokers that no other broker can reach."""

    def connect(self, home: ReplicaProcess, follower: BrokerId) -> None:
        if (home, follower) not in self._wanted:
            self._wanted.add((home, follower))
            self._transport.later(2 * PEER_S, self._open, home, follower)

    def _open(self, home: ReplicaProcess, name: BrokerId) -> None:
        if (home, name) not in self._wanted or (home, name) in self.open or not home.running:
            return
        follower = self._find(name)
        if follower is None or not follower.running or {home.id, name} & self.cut_off:
            self._transport.kernel.call_after(_CONNECT_AGAIN_S, self._open, home, name)
            return
        self.open[home, name] = ReplicaConnection(self._transport, next(self._numbers), home, follower)
        home.happened(events.ReplicaConnected(name))

    def disconnect(self, home: ReplicaProcess, follower: BrokerId) -> None:
        self._wanted.discard((home, follower))
        connection = self.open.pop((home, follower), None)
        if connection is not None:
            connection.close()

    def break_off(self, process: ReplicaProcess) -> None:
        """Break every connection of a process. They are opened again if both ends run."""
        for (home, name), connection in list(self.open.items()):
            if process in (home, connection.follower):
                del self.open[home, name]
                connection.close()
                home.happened(events.ReplicaLost(name, "the connection broke"))
                self._transport.kernel.call_after(_CONNECT_AGAIN_S, self._open, home, name)

    def cut_off_for(self, process: ReplicaProcess, seconds: float) -> None:
        self.cut_off.add(process.id)
        self.break_off(process)
        self._transport.kernel.call_after(seconds, self.cut_off.discard, process.id)

    def send(self, home: ReplicaProcess, follower: BrokerId, message: FromHome) -> None:
        connection = self.open.get((home, follower))
        if connection is not None:
            connection.up.send(message)

    def answer(self, follower: ReplicaProcess, stream: StreamId, message: FromFollower) -> None:
        for connection in self.open.values():
            if connection.stream == stream and connection.follower is follower:
                connection.down.send(message)
