"""Receivers that move between edges: the edge that they leave, and the edge that expects them [decision 20]."""

from __future__ import annotations

from collections.abc import Collection

from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.hosted import Connection, HostedTopic, TopicsState
from tocsin.broker.topics.relayed import RelayedTopic
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire
from tocsin.wire.site_link import Client, ReceiverArrived, ReceiverLeft, RedirectReceivers

_EXPECTED_S = 30.0
"""How long an edge expects a receiver."""
_ABSENT_S = 15.0
"""How long an edge remembers to send an absent receiver away; one that returns later was named this edge anew."""


class Redirecting:
    def __init__(self, state: TopicsState) -> None:
        self._state = state
        self._leaving: dict[tuple[TopicName, Client], tuple[RedirectReceivers, set[ConnectionId]]] = {}
        """Receivers that were sent to another edge → the order, and their connections that are still attached here."""
        self._absent: dict[tuple[TopicName, Client], tuple[RedirectReceivers, float]] = {}
        """Receivers that were not attached when the order came, or lost their connection before they left → the order,
        and until when it holds."""

    # -- the target ----------------------------------------------------------------------------------------------------

    def expect(self, topic: RelayedTopic, clients: Collection[Client]) -> None:
        topic.since_s = self._state.now_s
        for client in clients:
            self._absent.pop((topic.name, client), None)
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
        """Send the receivers to another edge; no names means all receivers. Those that are not here count as gone, but
        one that reconnects, or whose attach has no answer yet, is sent there when it is attached."""
        state = self._state
        here: dict[Client, set[ConnectionId]] = {}
        for identity in () if topic is None else (*topic.live, *topic.lagging):
            if topic is not None and (identity in topic.flows or identity in topic.relays):
                continue  # neighbouring sites and relays receive from homes
            here.setdefault(state.connections[identity].client, set()).add(identity)
        for client in order.clients or list(here):
            connections = here.get(client)
            if topic is None or connections is None:
                state.report(ReceiverLeft(order.topic, client, gone=True))
                self._remember(client, order)
                continue
            self._absent.pop((order.topic, client), None)
            self._leaving[order.topic, client] = (order, connections)
            state.send_to_all(connections, _redirect(topic, order, client))

    def _remember(self, client: Client, order: RedirectReceivers) -> None:
        self._absent[order.topic, client] = (order, self._state.now_s + _ABSENT_S)

    def attached(self, connection: Connection, topic: HostedTopic) -> None:
        """A receiver has attached. Send it away if it was absent when it was ordered to leave."""
        if not self._absent:
            return
        absent = self._absent.pop((topic.name, connection.client), None)
        if absent is not None and self._state.now_s < absent[1] and topic.name in connection.receiving:
            self._state.send(connection, _redirect(topic, absent[0], connection.client))

    def forget_absent(self) -> None:
        if self._absent:
            now_s = self._state.now_s
            self._absent = {key: absent for key, absent in self._absent.items() if absent[1] > now_s}

    def left(self, connection: Connection, topic: TopicName, *, gone: bool) -> bool:
        """A receiver is not attached here any more. Report it if it was sent away; returns True if so."""
        if not self._leaving:
            return False
        leaving = self._leaving.get((topic, connection.client))
        if leaving is None or connection.id not in leaving[1]:
            return False
        order, connections = leaving
        connections.discard(connection.id)
        if connections:
            return False
        del self._leaving[topic, connection.client]
        if gone:
            self._remember(connection.client, order)
        self._state.report(ReceiverLeft(topic, connection.client, gone=gone))
        return True


def _redirect(topic: HostedTopic, order: RedirectReceivers, client: Client) -> wire.Redirect:
    return wire.Redirect(topic.at, topic.name, order.broker, order.address, order.visitors.get(client))
