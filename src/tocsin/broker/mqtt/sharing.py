"""From a message to its receivers: ordinary subscriptions, and one member per shared subscription [MQTT5 §4.8.2]."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.broker.mqtt.effects import Send
from tocsin.broker.mqtt.outgoing import Outgoing
from tocsin.broker.mqtt.publication import Publication
from tocsin.broker.mqtt.session import Connection, MqttState, Outbound, Session
from tocsin.broker.mqtt.subscriptions import Group, Subscription


class Sharing:
    def __init__(self, state: MqttState, outgoing: Outgoing) -> None:
        self._state = state
        self._outgoing = outgoing

    def deliver(self, publication: Publication) -> None:
        """Give a message to every session that receives it: one copy with the highest quality of service of its
        matching subscriptions, and all their identifiers [MQTT5 §3.3.4]."""
        found = self._state.tree.matching(publication.name)
        plain: dict[bytes, list[Connection]] = {}
        for session, subscriptions in found.direct.items():
            if session.may_receive(publication.topic):
                self._offer(session, subscriptions, publication, plain)
        for data, connections in plain.items():
            self._state.delivered += len(connections)
            self._state.effects.append(Send(tuple(connection.id for connection in connections), data))
        for group in found.groups:
            self._share(group, publication)

    def report_gap(self, topic: str, name: str, gap: str) -> None:
        """The next message of the topic reports the gap to every session that receives the topic."""
        found = self._state.tree.matching(name)
        members = [member for group in found.groups for member in group.members]
        for session in {*found.direct, *members}:
            if session.may_receive(topic):
                session.gaps.setdefault(topic, gap)

    def _offer(
        self,
        session: Session,
        subscriptions: tuple[Subscription, ...],
        publication: Publication,
        plain: dict[bytes, list[Connection]],
    ) -> None:
        properties = publication.properties
        if properties.origin == session.key:
            subscriptions = tuple(each for each in subscriptions if not each.no_local)
            if not subscriptions:
                return
        wanted = max(each.qos for each in subscriptions) if len(subscriptions) > 1 else subscriptions[0].qos
        qos = min(wanted, properties.qos)
        retain = properties.retain and any(each.retain_as_published for each in subscriptions)
        identifiers = tuple(each.identifier for each in subscriptions if each.identifier is not None)
        connection = session.connection
        if qos == 0 and not identifiers and connection is not None and self._is_plain(session, connection, publication):
            data = publication.shared_bytes(connection.version, retain, self._state.now_s)
            plain.setdefault(data, []).append(connection)
        else:
            self._outgoing.offer(session, Outbound(publication, qos, retain, identifiers))

    def _is_plain(self, session: Session, connection: Connection, publication: Publication) -> bool:
        """True if the packet for this connection is the same as for others."""
        return not (
            connection.blocked
            or connection.closed
            or session.queue
            or session.gaps
            or connection.alias_maximum
            or connection.wants_positions
            or connection.maximum_packet_bytes is not None
        )

    def _share(self, group: Group[Session], publication: Publication) -> bool:
        """Give the message to the next member: one with room, else one that is connected, else any with a session.

        Returns False if no member may receive it.
        """
        members = [session for session in group.members if session.may_receive(publication.topic)]
        if not members:
            return False
        group.turn += 1
        start = group.turn % len(members)
        ordered = members[start:] + members[:start]
        chosen = min(ordered, key=self._reluctance)
        subscription = group.members[chosen]
        identifiers = () if subscription.identifier is None else (subscription.identifier,)
        qos = min(subscription.qos, publication.properties.qos)
        retain = publication.properties.retain and subscription.retain_as_published
        self._outgoing.offer(chosen, Outbound(publication, qos, retain, identifiers, subscription))
        return True

    def _reluctance(self, session: Session) -> int:
        if session.connection is None:
            return 2
        return 1 if session.queue or session.connection.blocked else 0

    def pass_on(self, session: Session) -> None:
        """Give messages of shared subscriptions that an ended session has not received to the other members.

        A message of quality of service 2 that was sent stays with its client [MQTT-4.8.2-5].
        """
        unsent = [outbound for outbound in session.inflight.values() if outbound.qos == 1]
        self.share_again([*unsent, *session.queue])
        session.inflight.clear()
        session.queue.clear()

    def share_again(self, messages: Iterable[Outbound]) -> list[Outbound]:
        """Give those that came through a shared subscription to a member of its group that may receive them.

        Returns those that no member may receive.
        """
        left: list[Outbound] = []
        for outbound in messages:
            group = None if outbound.shared is None else self._state.tree.group(outbound.shared.filter)
            if group is None or not self._share(group, outbound.publication):
                left.append(outbound)
        return left
