"""Attaches of a topic session at the target of a move, while the source still serves. Pure.

After `moving` the session attaches to the target. The target answers `waiting`, and the session reports `ready` to the
source. Messages of the target may arrive before the source's last ones: the session holds them until `moved`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tocsin.client import topic_events as events
from tocsin.client.topic_connection import ClientConnection, Need
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire


@dataclass(slots=True, eq=False)
class EarlyAttach:
    address: str
    """Of the target."""
    source: ClientConnection
    source_at: int
    connection: ClientConnection | None = None
    request: int | None = None
    at: int | None = None
    """The topic's number at the target, since the target answered."""
    opened: bool = False
    """The target has opened the topic."""
    released: bool = False
    """The source sends nothing more: the attach counts from now on."""
    held: list[wire.ToClient] = field(default_factory=list)
    """Messages of the target that wait for the source's last message."""


@dataclass(slots=True)
class EarlyAttaches:
    attaches: dict[Need, EarlyAttach] = field(default_factory=dict)

    def announced(self, source: ClientConnection, topic: TopicName, at: int, address: str) -> Iterator[events.Effect]:
        """The source has announced its move to `address`."""
        for role in ("send", "receive"):
            known = self.attaches.get((topic, role))
            same = known is not None and (known.address, known.source) == (address, source)
            if (topic, role) in source.attached and not same:
                self.attaches[topic, role] = EarlyAttach(address, source, at)
        yield from self._report_ready(topic, source)

    def sent(self, need: Need, connection: ClientConnection, request: int) -> None:
        early = self.attaches[need]
        early.connection, early.request = connection, request

    def waits(self, connection: ClientConnection, message: wire.Waiting) -> Iterator[events.Effect]:
        need = connection.requests.get(message.id)
        early = None if need is None else self.attaches.get(need)
        if need is not None and early is not None and early.request == message.id:
            early.at = message.at
            yield from self._report_ready(need[0], early.source)

    def _report_ready(self, topic: TopicName, source: ClientConnection) -> Iterator[events.Effect]:
        """Report once every attach of the topic waits at the target."""
        attaches = [early for role in ("send", "receive") if (early := self.attaches.get((topic, role))) is not None]
        if attaches and all(early.source is source and early.at is not None for early in attaches):
            yield events.Send(source.number, wire.Ready(attaches[0].source_at))

    def holds(self, connection: ClientConnection, message: wire.ToClient) -> bool:
        """Hold a message of a target back until the source has sent its last one."""
        match message:
            case wire.SenderAttached(number, at) | wire.ReceiverAttached(number, at):
                need = connection.requests.get(number)
                early = None if need is None else self.attaches.get(need)
                if early is None or early.request != number:
                    return False
                early.at, early.opened = at, True
                connection.topics[at] = early.source.topics[early.source_at]
            case wire.Messages(at) | wire.Gap(at):
                topic = connection.topics.get(at)
                early = None if topic is None else self.attaches.get((topic, "receive"))
                if early is None or early.connection is not connection or not early.opened:
                    return False
            case _:
                return False
        early.held.append(message)
        return True

    def moved(self, source: ClientConnection, topic: TopicName, address: str) -> None:
        for role in ("send", "receive"):
            early = self.attaches.get((topic, role))
            if early is not None and early.source is source:
                early.released = early.address == address and early.request is not None
                if not early.released:
                    del self.attaches[topic, role]

    def ended(self, connection: ClientConnection, topic: TopicName) -> None:
        """The target sends nothing more: it has lost the topic before the source sent its last message."""
        for role in ("send", "receive"):
            early = self.attaches.get((topic, role))
            if early is not None and early.connection is connection:
                del self.attaches[topic, role]

    def lost(self, connection: ClientConnection) -> None:
        """A connection has ended. Without the target's the session stays at the source."""
        self.attaches = {need: early for need, early in self.attaches.items() if early.connection is not connection}

    def refused(self, need: Need, request: int) -> bool:
        early = self.attaches.get(need)
        if early is None or early.request != request:
            return False
        del self.attaches[need]
        return True
