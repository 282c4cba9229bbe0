"""How a home brings its followers in line: `begin`, the missing part of the log, then every piece as it is accepted.

A follower that is slow, or was away, gets its pieces from the log again; the home keeps a bounded number of bytes in
flight to each follower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.home_log import Follower, HomeLog
from tocsin.broker.topics.hosted import HostedTopic, TopicsState
from tocsin.broker.topics.local_logs import LocalLogs
from tocsin.broker.topics.replica_connections import ReplicaConnections
from tocsin.model.ids import BrokerId
from tocsin.wire.topic_log import (
    Append,
    Began,
    Begin,
    FromFollower,
    FromHome,
    Install,
    NotStored,
    Piece,
    Replica,
    Stored,
)

_PIECE_BYTES = 256 << 10
_IN_FLIGHT_BYTES = 4 << 20
"""Bytes that a follower may have received without an answer."""
_RETRY_S = 0.5
_ANSWER_S = 10.0
"""How long a follower may take to answer `begin`: it may have to read its log first."""


class FollowerFeed:
    def __init__(self, state: TopicsState, logs: LocalLogs, connections: ReplicaConnections) -> None:
        self._state = state
        self._logs = logs
        self._connections = connections

    def set_followers(self, topic: HostedTopic, log: HomeLog, replicas: Sequence[Replica]) -> None:
        """Exactly these brokers follow the topic here."""
        wanted = {replica.broker: replica for replica in replicas}
        for broker in [name for name, f in log.followers.items() if wanted.get(name) != f.replica]:
            del log.followers[broker]
            self._connections.release(broker)
        for replica in replicas:
            if replica.broker not in log.followers:
                log.followers[replica.broker] = follower = Follower(replica)
                self._connections.use(replica)
                self._begin(topic, log, follower)

    def on_connection(self, broker: BrokerId, problem: str | None, topics: Iterable[HostedTopic]) -> None:
        """The connection to a follower is open (`problem` is None), or broken."""
        for topic in topics:
            follower = None if topic.log is None else topic.log.followers.get(broker)
            if topic.log is not None and follower is not None:
                follower.lost(problem or "catches up", 0.0)
                self._begin(topic, topic.log, follower)

    def retry(self, topic: HostedTopic, log: HomeLog) -> None:
        for follower in log.followers.values():
            if not follower.begun and self._state.now_s >= follower.retry_s:
                follower.asked = False
                self._begin(topic, log, follower)

    def _begin(self, topic: HostedTopic, log: HomeLog, follower: Follower) -> None:
        broker = follower.replica.broker
        if self._connections.is_open(broker) and log.base >= 0 and not follower.asked:
            local = self._logs.logs[topic.name]
            follower.asked, follower.retry_s = True, self._state.now_s + _ANSWER_S
            created = log.plan.created
            begin = Begin(topic.name, created, topic.epoch, local.start, log.handed, local.epochs)
            self._send(broker, begin)

    # -- answers -------------------------------------------------------------------------------------------------------

    def on_answer(self, topic: HostedTopic, log: HomeLog, broker: BrokerId, message: FromFollower) -> None:
        follower = log.followers.get(broker)
        if follower is None:
            return
        match message:
            case Began(end=None):
                self._state.effects.append(effects.ReadSnapshot(topic.name, log.plan.created, broker))
            case Began(end=int(end), log_epoch=log_epoch) if not follower.begun:
                follower.begun, follower.sent, follower.marked = True, end, log_epoch == topic.epoch
                follower.problem = "catches up"
                if follower.marked:  # it was away, and has nothing to store before the next message
                    follower.stored, follower.problem = end, None
                self.send_more(topic, log, follower)
            case Stored(log_epoch=log_epoch, end=end) if follower.begun:
                follower.confirm(end)
                if log_epoch == topic.epoch:
                    follower.stored, follower.problem = end, None
                self.send_more(topic, log, follower)
            case NotStored(message=reason):
                follower.lost(reason, self._state.now_s + _RETRY_S)

    def install(self, topic: HostedTopic, log: HomeLog, event: events.SnapshotRead) -> None:
        follower = log.followers.get(event.reader)
        if follower is not None and follower.asked and not follower.begun:
            follower.retry_s = self._state.now_s + _ANSWER_S
            self._send(event.reader, Install(topic.name, topic.epoch, event.snapshot))

    # -- pieces --------------------------------------------------------------------------------------------------------

    def send_more(self, topic: HostedTopic, log: HomeLog, follower: Follower) -> None:
        """Send what the follower does not have, from memory if possible, as far as its window allows."""
        while follower.begun and not follower.reading and follower.in_flight_bytes < _IN_FLIGHT_BYTES:
            if follower.sent == log.base and not follower.marked:
                follower.marked = True
                self._append(topic, follower, Piece(topic.epoch, log.base + 1, []))
            elif follower.sent >= log.handed:
                return
            elif follower.sent >= topic.sent:
                start = follower.sent - topic.sent
                entries = _limited(topic.unsent[start : log.handed - topic.sent])
                self._append(topic, follower, Piece(topic.epoch, follower.sent + 1, entries))
            else:
                follower.reading = True
                where = (follower.replica.broker, follower.sent, topic.sent, _PIECE_BYTES)
                self._state.effects.append(effects.ReadLog(topic.name, log.plan.created, *where))

    def on_read(self, topic: HostedTopic, log: HomeLog, broker: BrokerId, event: events.LogRead) -> None:
        follower = log.followers.get(broker)
        if follower is None or not follower.reading:
            return
        follower.reading = False
        for piece in event.pieces:
            if piece.first == follower.sent + 1 and follower.begun:
                follower.marked = follower.marked or piece.epoch == topic.epoch
                self._append(topic, follower, piece)
        if event.start > follower.sent + 1:
            follower.lost("needs a snapshot", self._state.now_s)  # the log was trimmed meanwhile
        elif event.pieces:
            self.send_more(topic, log, follower)

    def _append(self, topic: HostedTopic, follower: Follower, piece: Piece) -> None:
        follower.sent = piece.last
        follower.in_flight.append((piece.last, piece.size_bytes))
        follower.in_flight_bytes += piece.size_bytes
        start = self._logs.logs[topic.name].start
        self._send(follower.replica.broker, Append(topic.name, topic.epoch, piece, start))

    def _send(self, broker: BrokerId, message: FromHome) -> None:
        self._state.effects.append(effects.SendToReplica(broker, message))


def _limited(entries: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """The first entries, of about `_PIECE_BYTES`; at least one."""
    size_bytes = 0
    for index, entry in enumerate(entries):
        size_bytes += len(entry[2]) + 16
        if size_bytes > _PIECE_BYTES:
            return entries[: index + 1]
    return entries
