"""The receiver's side of a home: attach, fan-out, slow consumers, gaps.

The recent messages of a topic are one interval that ends with its last message. A receiver is *live* (it gets every
flush) or *lagging* (its connection is full). A lagging receiver gets recent messages when its connection drains, after
a gap for those that are not kept any more; if it rates messages, the most useful ones (`slow_receivers`). So a receiver
gets each message after its position, or a gap that covers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from tocsin.broker.topics.effects import AwaitDrain, ReadLog
from tocsin.broker.topics.events import ConnectionId, LogRead
from tocsin.broker.topics.flows import MOST_FLOWS, Flows, lose, without_marks
from tocsin.broker.topics.hosted import PIECE_BYTES, RELAYED, Connection, HostedTopic, TopicsState
from tocsin.broker.topics.slow_receivers import SlowReceivers
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
        self.slow = SlowReceivers(state)
        self.flows = Flows(state)
        self.relays: RelayedReceivers | None = None
        """Set if this broker relays topics."""

    # -- attach --------------------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, topic: HostedTopic, request: wire.AttachReceiver) -> None:
        if not permits_topic(connection.scopes, RECEIVE, topic.name):
            self._state.forbid(connection, request.id, RECEIVE, topic.name)
            return
        if request.flows is not None and not self._state.site:
            self._state.refuse(connection, request.id, Code.NOT_READY, "this broker does not know its site yet", 0.2)
            return
        if len(request.flows or ()) > MOST_FLOWS:
            message = f"an attach names at most {MOST_FLOWS:,} flows"
            self._state.refuse(connection, request.id, Code.TOO_MANY, message)
            return
        self.flush_topic(topic)
        self.detach(connection, connection.receiving.get(topic.name, topic))
        after = request.after
        if self.flows.newest_epoch(request) > topic.epoch:
            message = "this broker was the home before that position: look the home up"
            self._state.refuse(connection, request.id, Code.NOT_HOME, message, 0.2)
            return
        if request.early and topic.since == topic.epoch:
            message = "the sequence has begun again; attach with the last position"
            self._state.refuse(connection, request.id, Code.NOT_HOME, message, 0.0)
            return
        if request.flows is None:
            position, missed = topic.start_behind(after)
        else:
            position, missed = self.flows.attach(connection, topic, request), None
        if request.early:
            position = max(position, topic.base)
        connection.receiving[topic.name] = topic
        if request.at_home:
            topic.relays.add(connection.id)
        where = (topic.epoch, position, missed, topic.since)
        self._state.send(connection, wire.ReceiverAttached(request.id, topic.at, *where))
        topic.lagging[connection.id] = position
        self.catch_up(connection, topic)

    def detach(self, connection: Connection, topic: HostedTopic) -> None:
        topic.live.pop(connection.id, None)
        topic.lagging.pop(connection.id, None)
        topic.relays.discard(connection.id)
        self.slow.end(connection.id, topic)
        connection.ratings.pop(topic.at, None)
        self.flows.detach(connection.id, topic)
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
        if topic.flows:
            self.flows.send_ready(topic, first, entries)
        if topic.marked and topic.live:
            self._fan_out_marked(topic, first, entries)
        elif topic.live:
            self.fan_out(topic, topic.epoch, first, entries)

    def _fan_out_marked(self, topic: HostedTopic, first: int, entries: list[wire.Entry]) -> None:
        for start, run in without_marks(first, entries):
            if run:
                self.fan_out(topic, topic.epoch, start, run)
            else:
                self._state.fan_out(topic.live, wire.Gap(topic.at, topic.epoch, start, start))

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
            flow = topic.flows.get(connection.id)
            if connection.id in topic.live or (flow is not None and flow.live):
                topic.live.pop(connection.id, None)
                topic.lagging[connection.id] = topic.sent
                if flow is not None:
                    flow.live = False
            if connection.ratings and flow is None and connection.id in topic.lagging:
                self.slow.begin(connection, topic)

    def on_drained(self, connection: Connection) -> None:
        connection.blocked = False
        for topic in connection.receiving.values():
            if connection.id in topic.lagging and not self.catch_up(connection, topic):
                return

    def catch_up(self, connection: Connection, topic: HostedTopic) -> bool:
        """Send one piece of the recent messages. Returns True if the receiver is live now, or waits for the home."""
        if connection.blocked:
            return False
        if self.slow.has(connection.id, topic):
            return self._go_on(connection, topic, self._send_useful(connection, topic))
        position = topic.lagging[connection.id]
        oldest = min(topic.sequence - len(topic.recent), topic.sent)
        if position < oldest and topic.log is not None:
            self._read_log(connection, topic, position)
            return False
        if position < oldest and self.relays is not None and topic.phase is RELAYED:
            self.relays.needs_older(connection, topic, position)
            return True
        if position < oldest:
            self._skip(connection, topic, position, oldest)
            position = oldest
        epoch, last = topic.epoch_at(position + 1)
        start, limit_bytes = max(0, position - topic.sequence + len(topic.recent)), self._state.piece_bytes
        piece = _piece(topic, start, min(last, topic.sent) - position, limit_bytes)
        if piece:
            self._send(connection, topic, epoch, position + 1, piece)
        return self._go_on(connection, topic, position + len(piece))

    def _send_useful(self, connection: Connection, topic: HostedTopic) -> int:
        """Send one piece of what a slow receiver still wants; returns its position behind it."""
        pieces, position = self.slow.take(connection, topic)
        for piece in pieces:
            if isinstance(piece, wire.Gap):
                self._state.missed += piece.last - piece.first + 1
            else:
                self._state.delivered += len(piece.messages)
            self._state.send(connection, piece)
        return position

    def _go_on(self, connection: Connection, topic: HostedTopic, position: int) -> bool:
        """The receiver has got everything up to this position."""
        if position == topic.sent:
            del topic.lagging[connection.id]
            self.slow.end(connection.id, topic)
            if connection.id in topic.flows:
                self.flows.caught_up(connection, topic)
            else:
                topic.live[connection.id] = connection.encoding
            self.announce_move(topic, [connection.id])
            if self.relays is not None and topic.phase is RELAYED:
                self.relays.caught_up(connection, topic)
            return True
        topic.lagging[connection.id] = position
        self._state.effects.append(AwaitDrain(connection.id))
        return False

    def _skip(self, connection: Connection, topic: HostedTopic, position: int, last: int) -> None:
        """The home does not keep the messages behind `position` up to `last`."""
        if (flow := topic.flows.get(connection.id)) is not None:
            lose(flow, last)
            return
        self._state.missed += last - position
        self._state.send(connection, wire.Gap(topic.at, topic.epoch, position + 1, last))

    def _send(
        self, connection: Connection, topic: HostedTopic, epoch: int, first: int, entries: list[wire.Entry]
    ) -> None:
        """Send messages to one receiver that lags."""
        if connection.id in topic.flows:
            self.flows.send(connection, topic, epoch, first, entries)
            return
        self._state.delivered += len(entries)
        for start, run in without_marks(first, entries) if topic.marked else ((first, entries),):
            message = wire.Messages(topic.at, epoch, start, run) if run else wire.Gap(topic.at, epoch, start, start)
            self._state.send(connection, message)

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
            self._skip(connection, topic, position, event.start - 1)
            position = event.start - 1
        for piece in event.pieces:
            if piece.entries and piece.first == position + 1:
                self._send(connection, topic, piece.epoch, piece.first, piece.entries)
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
