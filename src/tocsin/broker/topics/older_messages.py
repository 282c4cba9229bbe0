"""Messages of a relayed topic that the edge does not keep: it fetches them from the home for receivers that need them.

Receivers whose positions are near each other share a fetch. The next piece is read when the connections of all of them
have taken the last one, and a receiver that is too slow leaves the fetch. A fetch ends where the edge's memory begins.
"""

from __future__ import annotations

from itertools import count

from tocsin.broker.topics import events
from tocsin.broker.topics.effects import AwaitDrain, EndFetch, FetchOlder, ReadOlder
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.hosted import Connection, TopicsState
from tocsin.broker.topics.relayed import Fetch, RelayedTopic
from tocsin.broker.topics.slow_receivers import SlowReceivers
from tocsin.wire import topic as wire

_SHARED = 2_000
"""A receiver waits for a fetch that has so many messages left before its own position."""
_MOST_FETCHES = 8
"""Fetches of one topic at a time. Each is a connection to the home."""


class OlderMessages:
    def __init__(self, state: TopicsState, slow: SlowReceivers) -> None:
        self._state = state
        self._slow = slow
        self._numbers = count(1)
        self._topics: dict[int, RelayedTopic] = {}
        """The topic of each fetch."""

    def need(self, connection: Connection, topic: RelayedTopic, position: int) -> None:
        """A receiver that lags needs messages behind this position; or it has taken the piece that it got."""
        for fetch in topic.fetches.values():
            if connection.id in fetch.receivers:
                fetch.awaited.discard(connection.id)
                self._go_on(fetch)
                return
        for fetch in topic.fetches.values():
            if fetch.position <= position <= fetch.position + _SHARED:
                fetch.receivers[connection.id] = None
                return
        if len(topic.fetches) < _MOST_FETCHES:
            fetch = Fetch(next(self._numbers), position, {connection.id: None})
            topic.fetches[fetch.number] = fetch
            self._topics[fetch.number] = topic
            self._state.effects.append(FetchOlder(fetch.number, topic.name, (topic.epoch, position)))

    def _go_on(self, fetch: Fetch) -> None:
        if fetch.answered and not fetch.awaited and not fetch.reading:
            fetch.reading = True
            self._state.effects.append(ReadOlder(fetch.number))

    def retry(self, topic: RelayedTopic) -> None:
        """Called at every tick: receivers without a fetch try again. Those that skip messages need none."""
        if not topic.lagging:
            return
        fetching = {identity for fetch in topic.fetches.values() for identity in fetch.receivers}
        for identity, position in list(topic.lagging.items()):
            connection = self._state.connections[identity]
            is_waiting = identity not in fetching and not connection.blocked and not self._slow.has(identity, topic)
            if is_waiting and position < topic.oldest:
                self.need(connection, topic, position)

    # -- the home's answers --------------------------------------------------------------------------------------------

    def on_received(self, event: events.OlderReceived) -> None:
        topic = self._topics.get(event.fetch)
        fetch = None if topic is None else topic.fetches.get(event.fetch)
        if topic is None or fetch is None:
            return
        fetch.reading = False
        match event.message:
            case wire.ReceiverAttached(missed=missed, since=since):
                if missed is not None or (since or topic.since) > topic.epoch:
                    self._end(topic, fetch)  # another sequence: the relay itself hears of it
                    return
                fetch.answered = True
                self._go_on(fetch)
            case wire.Messages() as message:
                self._pass_on(topic, fetch, message.sequence + len(message.messages) - 1, message)
            case wire.Gap() as message:
                self._pass_on(topic, fetch, message.last, message)

    def on_failed(self, event: events.OlderFailed) -> None:
        topic = self._topics.get(event.fetch)
        if topic is not None and event.fetch in topic.fetches:
            self._end(topic, topic.fetches[event.fetch])

    def _pass_on(self, topic: RelayedTopic, fetch: Fetch, last: int, message: wire.Messages | wire.Gap) -> None:
        """Send each receiver the part of a piece, or of a gap, behind its position."""
        last = min(last, topic.sequence)
        positions: dict[int, list[ConnectionId]] = {}
        for identity in fetch.receivers:
            positions.setdefault(topic.lagging[identity], []).append(identity)
        for position, receivers in positions.items():
            if position < last:
                self._state.send_to_all(receivers, _behind(topic.at, position, last, message))
                self._count(message, (last - position) * len(receivers))
                topic.lagging |= dict.fromkeys(receivers, last)
        fetch.position = max(fetch.position, last)
        fetch.awaited = set(fetch.receivers)
        for identity in list(fetch.receivers):
            self._state.effects.append(AwaitDrain(identity))
        if fetch.position >= topic.oldest:
            self._end(topic, fetch)  # the receivers go on with the messages in memory when their connections drain

    def _count(self, message: wire.Messages | wire.Gap, messages: int) -> None:
        if isinstance(message, wire.Gap):
            self._state.missed += messages
        else:
            self._state.delivered += messages

    # -- the end -------------------------------------------------------------------------------------------------------

    def leave(self, topic: RelayedTopic, identity: ConnectionId) -> None:
        for fetch in list(topic.fetches.values()):
            if identity in fetch.receivers:
                del fetch.receivers[identity]
                was_awaited = identity in fetch.awaited
                fetch.awaited.discard(identity)
                if not fetch.receivers:
                    self._end(topic, fetch)
                elif was_awaited:
                    self._go_on(fetch)

    def end_all(self, topic: RelayedTopic) -> None:
        for fetch in list(topic.fetches.values()):
            self._end(topic, fetch)

    def _end(self, topic: RelayedTopic, fetch: Fetch) -> None:
        del topic.fetches[fetch.number], self._topics[fetch.number]
        self._state.effects.append(EndFetch(fetch.number))


def _behind(at: int, position: int, last: int, message: wire.Messages | wire.Gap) -> wire.Messages | wire.Gap:
    if isinstance(message, wire.Gap):
        return wire.Gap(at, message.epoch, max(position + 1, message.first), last)
    start = position + 1 - message.sequence
    return wire.Messages(at, message.epoch, position + 1, message.messages[start : last + 1 - message.sequence])
