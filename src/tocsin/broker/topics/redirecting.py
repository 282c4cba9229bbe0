"""Receivers that move between edges: the edge that they leave, and the edge that expects them [decision 20]."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.hosted import Connection, HostedTopic, TopicsState
from tocsin.broker.topics.relayed import RelayedTopic
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire
from tocsin.wire.site_link import Client, ReceiverArrived, ReceiverLeft, RedirectReceivers

_EXPECTED_S = 30.0
"""How long an edge expects a receiver."""


class Redirecting:
    def __init__(self, state: TopicsState) -> None:
        self._state = state
        self._leaving: dict[tuple[TopicName, Client], set[ConnectionId]] = {}
        """Receivers that were sent to another edge → their connections that are still attached here."""

    # -- the target ----------------------------------------------------------------------------------------------------

    def expect(self, topic: RelayedTopic, clients: Iterable[Client]) -> None:
        topic.since_s = self._state.now_s
        topic.expected |= dict.fromkeys(clients, self._state.now_s + _EXPECTED_S)
        for identity in topic.live:
            self.arrived(self._state.connections[identity], topic)

    def arrived(self, connection: Connection, topic: RelayedTopic) -> None:
        """A receiver has caught up. Report it if it is expected."""
        if topic.expected.pop(connection.client, None) is not None:
            self._state.report(ReceiverArrived(topic.name, connection.client))

    def forget_late(self, topic: RelayedTopic) -> None:
        if topic.expected:
            now_s = self._state.now_s
            topic.expected = {client: until_s for client, until_s in topic.expected.items() if until_s > now_s}

    # -- the source ----------------------------------------------------------------------------------------------------

    def redirect(self, topic: HostedTopic | None, order: RedirectReceivers) -> None:
        """Send the receivers to another edge. Those that are not here are gone; no names means all receivers."""
        state = self._state
        here: dict[Client, set[ConnectionId]] = {}
        for identity in () if topic is None else (*topic.live, *topic.lagging):
            here.setdefault(state.connections[identity].client, set()).add(identity)
        for client in order.clients or list(here):
            connections = here.get(client)
            if topic is None or connections is None:
                state.report(ReceiverLeft(order.topic, client, gone=True))
                continue
            self._leaving[order.topic, client] = connections
            state.send_to_all(connections, wire.Redirect(topic.at, topic.name, order.broker, order.address))

    def left(self, connection: Connection, topic: TopicName, *, gone: bool) -> bool:
        """A receiver is not attached here any more. Report it if it was sent away; returns True if so."""
        if not self._leaving:
            return False
        connections = self._leaving.get((topic, connection.client))
        if connections is not None and connection.id in connections:
            connections.discard(connection.id)
            if not connections:
                del self._leaving[topic, connection.client]
                self._state.report(ReceiverLeft(topic, connection.client, gone=gone))
                return True
        return False
