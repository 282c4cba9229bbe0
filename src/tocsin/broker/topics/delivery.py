"""The receiver's side of a home: attach, fan-out, slow consumers, gaps.

The recent messages of a topic are one interval that ends with its last message. A receiver is *live* (it gets every
flush) or *lagging* (its connection is full). A lagging receiver gets recent messages when its connection drains, after
a gap for those that are not kept any more. So a receiver gets each message after its position, or a gap that covers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from tocsin.broker.topics.effects import AwaitDrain, ReadLog
from tocsin.broker.topics.events import ConnectionId, LogRead
from tocsin.broker.topics.hosted import PIECE_BYTES, RELAYED, Connection, HostedTopic, TopicsState
from tocsin.model.permission import RECEIVE, permits_topic
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code


class RelayedReceivers(Protocol):
    """What the relay of topics does for their receivers."""

    def needs_older(self, connection: Connection, topic: HostedTopic, position: int) -> None:
        """The receiver needs messages that this edge does not keep: fetch them from the home."""

    def caught_up(self, connection: Connection, topic: HostedTopic) -> None: ...


class Delivery:
    def __init__(self, state: TopicsState) -> None:
        self._state = state
        self.relays: RelayedReceivers | None = None
        """Set if this broker relays topics."""

    # -- attach --------------------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, topic: HostedTopic, request: wire.AttachReceiver) -> None:
        if not permits_topic(connection.scopes, RECEIVE, topic.name):
            self._state.forbid(connection, request.id, RECEIVE, topic.name)
            return
        self.flush_topic(topic)
        self.detach(connection, connection.receiving.get(topic.name, topic))
        after = request.after
        if after is not None and after[0] > topic.epoch:
            message = "this broker was the home before that position: look the home up"
            self._state.refuse(connection, request.id, Code.NOT_HOME, message, 0.2)
            return
        if request.early and topic.since == topic.epoch:
            message = "the sequence has begun again; attach with the last position"
            self._state.refuse(connection, request.id, Code.NOT_HOME, message, 0.0)
            return
        position, missed = _start(topic, after)
        if request.early:
            position = max(position, topic.base)
        connection.receiving[topic.name] = topic
        where = (topic.epoch, position, missed, topic.since)
        self._state.send(connection, wire.ReceiverAttached(request.id, topic.at, *where))
        topic.lagging[connection.id] = position
        self.catch_up(connection, topic)

    def detach(self, connection: Connection, topic: HostedTopic) -> None:
        topic.live.pop(connection.id, None)
        topic.lagging.pop(connection.id, None)
        if connection.receiving.get(topic.name) is topic:
            del connection.receiving[topic.name]

    # -- fan-out -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send everything that was accepted since the last flush, then the acknowledgements."""
        state = self._state
        if state.dirty:
            for topic in state.dirty.values():
                self.flush_topic(topic)
            state.dirty.clear()
        if state.acknowledge:
            self._acknowledge(state.acknowledge)
        self.trim()

    def acknowledge_later(self) -> None:
        """Acknowledge the messages of senders that do not wait for it."""
        self._acknowledge(self._state.acknowledge_later)

    def _acknowledge(self, numbers: dict[tuple[ConnectionId, int], int]) -> None:
        for (identity, at), number in numbers.items():
            connection = self._state.connections.get(identity)
            if connection is not None:
                self._state.send(connection, wire.Acknowledged(at, number))
        numbers.clear()

    def flush_topic(self, topic: HostedTopic) -> None:
        """Send what was accepted. A persistent topic sends a message when it is committed instead."""
        if topic.unsent and topic.log is None:
            self.send_ready(topic, len(topic.unsent))

    def send_ready(self, topic: HostedTopic, count: int) -> None:
        """Send the next `count` messages to the live receivers."""
        entries = topic.unsent
        first = topic.sequence - len(entries) + 1
        if count == len(entries):
            topic.unsent = []
        else:
            entries, topic.unsent = entries[:count], entries[count:]
        if topic.recorder is not None:
            topic.recorder.take(topic.epoch, first, entries)
        if topic.live:
            self.fan_out(topic, topic.epoch, first, entries)

    def fan_out(self, topic: HostedTopic, epoch: int, first: int, entries: list[wire.Entry]) -> None:
        """Send messages to the live receivers; in pieces while the output is limited, because a large frame would leave
        as one block beyond the rate."""
        state = self._state
        state.delivered += len(entries) * len(topic.live)
        if len(entries) == 1 or state.piece_bytes == PIECE_BYTES:
            state.fan_out(topic.live, wire.Messages(topic.at, epoch, first, entries))
            return
        start = size_bytes = 0
        for end, entry in enumerate(entries, 1):
            size_bytes += len(entry[2])
            if size_bytes >= state.piece_bytes or end == len(entries):
                state.fan_out(topic.live, wire.Messages(topic.at, epoch, first + start, entries[start:end]))
                start, size_bytes = end, 0

    def trim(self) -> None:
        """Forget the oldest messages of all topics beyond `topic_recent_bytes`."""
        state = self._state
        while state.recent_bytes > state.limits.topic_recent_bytes:
            topic = state.recent_order.popleft()
            state.recent_bytes -= len(topic.recent.popleft()[2])

    # -- slow consumers ------------------------------------------------------------------------------------------------

    def on_blocked(self, connection: Connection) -> None:
        connection.blocked = True
        for topic in connection.receiving.values():
            if connection.id in topic.live:
                del topic.live[connection.id]
                topic.lagging[connection.id] = topic.sent

    def on_drained(self, connection: Connection) -> None:
        connection.blocked = False
        for topic in connection.receiving.values():
            if connection.id in topic.lagging and not self.catch_up(connection, topic):
                return

    def catch_up(self, connection: Connection, topic: HostedTopic) -> bool:
        """Send one piece of the recent messages. Returns True if the receiver is live now, or waits for the home."""
        if connection.blocked:
            return False
        position = topic.lagging[connection.id]
        oldest = min(topic.sequence - len(topic.recent), topic.sent)
        if position < oldest and topic.log is not None:
            self._read_log(connection, topic, position)
            return False
        if position < oldest and self.relays is not None and topic.phase is RELAYED:
            self.relays.needs_older(connection, topic, position)
            return True
        if position < oldest:
            self._state.missed += oldest - position
            self._state.send(connection, wire.Gap(topic.at, topic.epoch, position + 1, oldest))
            position = oldest
        epoch, last = topic.epoch_at(position + 1)
        start, limit_bytes = max(0, position - topic.sequence + len(topic.recent)), self._state.piece_bytes
        piece = _piece(topic, start, min(last, topic.sent) - position, limit_bytes)
        if piece:
            self._state.delivered += len(piece)
            self._state.send(connection, wire.Messages(topic.at, epoch, position + 1, piece))
        position += len(piece)
        if position == topic.sent:
            del topic.lagging[connection.id]
            topic.live[connection.id] = connection.encoding
            self.announce_move(topic, [connection.id])
            if self.relays is not None and topic.phase is RELAYED:
                self.relays.caught_up(connection, topic)
            return True
        topic.lagging[connection.id] = position
        self._state.effects.append(AwaitDrain(connection.id))
        return False

    def _read_log(self, connection: Connection, topic: HostedTopic, position: int) -> None:
        """The receiver needs older messages of a persistent topic than those in memory."""
        if topic.log is not None and connection.id not in topic.log.reading:
            topic.log.reading.add(connection.id)
            where = (connection.id, position, topic.sent, self._state.piece_bytes)
            self._state.effects.append(ReadLog(topic.name, topic.log.plan.created, *where))

    def on_read(self, topic: HostedTopic, identity: ConnectionId, event: LogRead) -> None:
        """Send what was read from the log; the retention may have removed its first part."""
        if topic.log is not None:
            topic.log.reading.discard(identity)
        connection, position = self._state.connections.get(identity), topic.lagging.get(identity)
        if connection is None or position is None or connection.blocked:
            return
        if event.start > position + 1:
            self._state.missed += event.start - 1 - position
            self._state.send(connection, wire.Gap(topic.at, topic.epoch, position + 1, event.start - 1))
            position = event.start - 1
        for piece in event.pieces:
            if piece.entries and piece.first == position + 1:
                self._state.delivered += len(piece.entries)
                self._state.send(connection, wire.Messages(topic.at, piece.epoch, piece.first, piece.entries))
                position = piece.last
        topic.lagging[identity] = position
        self._state.effects.append(AwaitDrain(identity))

    def leave(self, topic: HostedTopic, message: wire.ToClient) -> None:
        """Send every client away. They continue from their positions elsewhere."""
        clients = topic.clients
        self._state.send_to_all(clients, message)
        for identity in clients:
            connection = self._state.connections[identity]
            self.detach(connection, topic)
            topic.senders.pop(identity, None)
            connection.senders.pop(topic.name, None)

    def announce_move(self, topic: HostedTopic, clients: Sequence[ConnectionId]) -> None:
        """Send `moved` to clients that have got everything. Without an address, let them look the home up."""
        if topic.moved_to is None:
            return
        broker, address = topic.moved_to
        moved = wire.Moved(topic.at, topic.name, broker, address)
        ended = wire.Ended(topic.at, topic.name, str(Code.NOT_HOME), "the topic moves; look its home up")
        self._state.send_to_all(clients, moved if address else ended)


def _start(topic: HostedTopic, after: tuple[int, int] | None) -> tuple[int, tuple[int, int] | None]:
    """The sequence number to start behind, and from where on messages of an earlier epoch are lost."""
    if after is None:
        return topic.sent, None
    epoch, sequence = after
    if epoch >= topic.since:
        return min(max(sequence, 0), topic.sent), None
    if epoch == 0:
        return 0, None  # from the oldest message that the home keeps
    return 0, (epoch, sequence + 1)


def _piece(topic: HostedTopic, start: int, count: int, limit_bytes: int) -> list[wire.Entry]:
    """At most `count` recent messages from index `start` on, of about `limit_bytes` in all; at least one."""
    piece: list[wire.Entry] = []
    size_bytes = 0
    for entry in islice(topic.recent, start, start + count):
        piece.append(entry)
        size_bytes += len(entry[2])
        if size_bytes >= limit_bytes:
            break
    return piece
