"""A topic session's connections to homes, and what is attached where. Pure; it decides when to connect and to attach.

A topic has a known home: from the coordinator's directory, or from a `moved` on an open connection, which is newer.
When the directory names another home while the old connection works, the session waits a moment for `moved`: the old
home may still be sending what it accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from tocsin.client import topic_events as events
from tocsin.client.timing import Jitter, Patience
from tocsin.client.topic_connection import ClientConnection, Need, Role
from tocsin.client.topic_early import EarlyAttaches
from tocsin.client.topic_redirects import RedirectedReceiver, Redirects, plain_address, visit_address
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code

_LINGER_S = 1.0
"""How long a session stays at a working connection after the directory has named another home."""
_RETRY_S = 0.2
_UNUSED_S = 30.0
_EDGE_FAILURES = 3
"""After so many failed connections to an edge its receivers attach to the home."""


@dataclass(slots=True)
class Home:
    address: str
    epoch: int
    hinted: str | None = None
    """The address that a `moved` named; it counts until an attach there is refused, or a later epoch is known."""
    edge: str | None = None
    """The edge at which receivers attach, as the directory says or a `redirect` named it; None: at the home."""

    @property
    def best(self) -> str:
        return self.hinted or self.address


@dataclass(slots=True)
class Attachments:
    patience: Patience
    jitter: Jitter
    run: int = 0
    homes: dict[TopicName, Home] = field(default_factory=dict)
    connections: dict[int, ClientConnection] = field(default_factory=dict)
    _by_address: dict[str, ClientConnection] = field(default_factory=dict)
    _needs: dict[Need, float] = field(default_factory=dict)
    """What must be attached → the earliest time."""
    _where: dict[Need, ClientConnection] = field(default_factory=dict)
    """Where a need is attached, or where its request has no answer yet."""
    _leave_s: dict[Need, float] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)
    _connect_s: dict[str, float] = field(default_factory=dict)
    """Address → the earliest time to connect again."""
    _opening: list[events.Effect] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    early: EarlyAttaches = field(default_factory=EarlyAttaches)
    """Attaches at the targets of announced moves."""
    redirects: Redirects = field(default_factory=Redirects)
    """Receivers that change their edge."""
    away: set[TopicName] = field(default_factory=set)
    """Topics that another site sends. When it ends that, the receiver first asks its own home for a position."""

    # -- needs ---------------------------------------------------------------------------------------------------------

    def need(self, topic: TopicName, role: Role) -> None:
        self._needs.setdefault((topic, role), 0.0)

    def release(self, topic: TopicName, role: Role) -> Iterator[events.Effect]:
        self._needs.pop((topic, role), None)
        self._leave_s.pop((topic, role), None)
        self.early.attaches.pop((topic, role), None)
        if role == "receive":
            self.redirects.receivers.pop(topic, None)
            self.away.discard(topic)
        connection = self._where.pop((topic, role), None)
        at = None if connection is None else connection.attached.pop((topic, role), None)
        if connection is not None and at is not None and role == "receive":
            yield events.Send(connection.number, wire.Detach(next(self._numbers), at))

    def give_up(self, topic: TopicName, role: Role) -> None:
        self._needs.pop((topic, role), None)

    def again(self, topic: TopicName, role: Role, now_s: float, after_s: float = _RETRY_S) -> None:
        """Attach again, later."""
        connection = self._where.pop((topic, role), None)
        if connection is not None:
            connection.attached.pop((topic, role), None)
        self._leave_s.pop((topic, role), None)
        self._needs[topic, role] = now_s + after_s * (0.5 + 0.5 * self.jitter())

    def due(self, now_s: float) -> Iterator[tuple[ClientConnection | None, TopicName, Role]]:
        """What to attach now, and over which connection. Connections that are needed begin to open."""
        for (topic, role), at_s in list(self._needs.items()):
            home = self.homes.get(topic)
            if home is None or now_s < at_s:
                continue
            early = self.early.attaches.get((topic, role))
            is_away = role == "receive" and topic in self.away
            address = home.best if is_away else self._address(home, role)
            if early is not None and early.address == home.best and early.request is not None:
                early.released = True
            elif (connection := self._ready_connection(address, now_s)) is not None:
                yield connection, topic, role

    def _address(self, home: Home, role: Role) -> str:
        """Where to attach. An edge that does not answer again and again is left for the home: the directory has not
        noticed that the edge is gone, or it is gone for this client alone."""
        edge = home.edge if role == "receive" else None
        return home.best if edge is None or self._failures.get(edge, 0) > _EDGE_FAILURES else edge

    def due_redirects(self, now_s: float) -> Iterator[tuple[ClientConnection, TopicName]]:
        """Receivers to attach now at another edge."""
        self.redirects.forget_late(now_s)
        for topic, redirected in list(self.redirects.receivers.items()):
            is_answered = (topic, "receive") not in redirected.source.requests.values()
            waits = redirected.request is None and is_answered and now_s >= redirected.not_before_s
            address, token = self._next_address(topic, redirected)
            if waits and address and (connection := self._ready_connection(address, now_s, token)) is not None:
                yield connection, topic

    def _next_address(self, topic: TopicName, redirected: RedirectedReceiver) -> tuple[str, str | None]:
        """Where the receiver sends its next request: to the new edge, but before a visit to both homes."""
        visit = redirected.visit
        if visit is None:
            return redirected.address, redirected.source.token
        if redirected.present is None:
            home = self.homes.get(topic)
            return "" if home is None else home.best, None
        is_next = redirected.found is None
        return visit_address(visit.home, topic) if is_next else redirected.address, visit.token

    def position_found(self, connection: ClientConnection, need: Need, request: int, now_s: float) -> bool:
        """The own home has found the position of a receiver that returns: attach at the own site. False if that is not
        asked for any more."""
        del connection.requests[request]
        topic, role = need
        if role != "receive" or topic not in self.away or self._where.get(need) is not connection:
            return False
        self.away.discard(topic)
        self.again(topic, role, now_s, 0.0)
        return True

    def requested_redirect(self, connection: ClientConnection, topic: TopicName) -> int:
        number = next(self._numbers)
        redirected = self.redirects.receivers[topic]
        if redirected.visit is not None and redirected.found is None:
            connection.finding[number] = topic
        else:
            connection.requests[number] = (topic, "receive")
        self.redirects.sent(topic, connection, number)
        return number

    def switch_edge(
        self,
        connection: ClientConnection,
        message: wire.ReceiverAttached,
        entered: Callable[[wire.PositionFound], None],
    ) -> Iterator[events.Effect]:
        """If this answers a redirect, receive at the new edge from now on and leave the former one. `entered` is called
        if that edge belongs to another site."""
        need = connection.requests.get(message.id)
        redirected = None if need is None else self.redirects.takes(need[0], connection, message.id)
        if need is None or redirected is None:
            return
        if redirected.found is not None:
            self.away.add(need[0])
            entered(redirected.found)
        former = self._where.get(need)
        if former is not None and former is not connection and (at := former.attached.pop(need, None)) is not None:
            yield events.Send(former.number, wire.Detach(next(self._numbers), at))
        self._where[need] = connection
        self._needs.pop(need, None)
        self._leave_s.pop(need, None)
        self._prefer_edge(need[0], connection)

    def _prefer_edge(self, topic: TopicName, connection: ClientConnection) -> None:
        home = self.homes.get(topic)
        if home is not None and home.best != connection.address and connection.token is None:
            home.edge = connection.address

    def due_early(self, now_s: float) -> Iterator[tuple[ClientConnection, TopicName, Role]]:
        """What to attach now at the target of an announced move."""
        for (topic, role), early in list(self.early.attaches.items()):
            if early.request is None and (connection := self._ready_connection(early.address, now_s)) is not None:
                yield connection, topic, role

    def _ready_connection(self, address: str, now_s: float, token: str | None = None) -> ClientConnection | None:
        """The connection to an address if it is ready; else it begins to open."""
        connection = self._by_address.get(address)
        if connection is None:
            self._open(address, now_s, token)
        return connection if connection is not None and connection.ready else None

    def _open(self, address: str, now_s: float, token: str | None = None) -> None:
        if now_s >= self._connect_s.get(address, 0.0):
            number = next(self._numbers)
            connection = ClientConnection(number, address, heard_s=now_s, used_s=now_s, token=token)
            self.connections[number] = self._by_address[address] = connection
            self._opening.append(events.Connect(number, plain_address(address)))

    def visit(self, address: str, now_s: float) -> None:
        """Connect to a broker that may be no home; without an attachment the connection is closed after a while."""
        if address not in self._by_address:
            self._open(address, now_s)

    def keep(self, address: str, now_s: float) -> None:
        """Stay connected to a broker that may be no home."""
        if (connection := self._by_address.get(address)) is None:
            self._open(address, now_s)
        else:
            connection.used_s = now_s

    def connects(self) -> Iterator[events.Effect]:
        opening, self._opening = self._opening, []
        yield from opening

    # -- homes ---------------------------------------------------------------------------------------------------------

    def learn(self, topic: TopicName, epoch: int, address: str, now_s: float, edge: str | None = None) -> None:
        """The directory names the home, and the edge for receivers. A receiver that is attached stays at its edge."""
        home = self.homes.get(topic)
        if home is not None:
            home.edge = edge
        if home is not None and home.epoch >= epoch:
            return
        self.homes[topic] = Home(address, epoch, edge=edge)
        for role in ("send", "receive"):
            connection = self._where.get((topic, role))
            is_away = role == "receive" and topic in self.away
            if connection is None or connection.address == address or is_away:
                continue
            if role == "send" or edge is None or home is None or connection.address in (home.address, home.hinted):
                self._leave_s.setdefault((topic, role), now_s + _LINGER_S)

    def leave_late(self, now_s: float) -> None:
        """Leave former homes that have not sent `moved` in time."""
        for topic, role in [need for need, at_s in self._leave_s.items() if now_s >= at_s]:
            self.again(topic, role, now_s, 0.0)

    def moved(self, connection: ClientConnection, topic: TopicName, address: str) -> None:
        home = self.homes.get(topic)
        if home is not None and home.address == connection.address:
            home.hinted = address
        self.early.moved(connection, topic, address)
        self.ended(connection, topic, 0.0, 0.0)

    def switched(self) -> Iterator[tuple[TopicName, Role, ClientConnection, list[wire.ToClient]]]:
        """Continue at the targets of moves whose source sends nothing more, or was lost after the hand-over.

        Yields what the target has sent already.
        """
        for need, early in list(self.early.attaches.items()):
            left = early.released or (early.opened and self._where.get(need) is not early.source)
            if not left or early.connection is None:
                continue
            del self.early.attaches[need]
            early.source.attached.pop(need, None)
            self._needs.pop(need, None)
            self._leave_s.pop(need, None)
            self._where[need] = early.connection
            if need[1] == "send" and early.at is not None:
                early.connection.attached[need] = early.at
                early.connection.topics[early.at] = need[0]
            yield (*need, early.connection, early.held)

    def ended(self, connection: ClientConnection, topic: TopicName, now_s: float, after_s: float = _RETRY_S) -> None:
        """The broker sends nothing more. A receiver that is being redirected goes to the new edge at once."""
        self.early.ended(connection, topic)
        redirected = self.redirects.receivers.get(topic)
        if redirected is not None and redirected.source is connection:
            self._follow_redirect(topic, redirected)
        for role in ("send", "receive"):
            if self._where.get((topic, role)) is connection:
                self.again(topic, role, now_s, after_s)

    def _follow_redirect(self, topic: TopicName, redirected: RedirectedReceiver) -> None:
        """The former edge is lost: wait for the new one's answer, or attach there as to any edge."""
        del self.redirects.receivers[topic]
        if redirected.visit is not None or redirected.source.token is not None:
            return  # stay at the own site, or return there
        home = self.homes.get(topic)
        if home is not None and home.best != redirected.address:
            home.edge = redirected.address
        if redirected.connection is not None:
            redirected.source.attached.pop((topic, "receive"), None)
            self._where[topic, "receive"] = redirected.connection

    # -- connections ---------------------------------------------------------------------------------------------------

    def opened(self, number: int, token: str, now_s: float) -> Iterator[events.Effect]:
        connection = self.heard(number, now_s)
        if connection is not None:
            connection.opened_s = now_s
            yield events.Send(number, wire.Login(next(self._numbers), connection.token or token, self.run))

    def logged_in(self, connection: ClientConnection, message: wire.LoggedIn) -> None:
        connection.ready, connection.beat_s = True, message.beat_s
        connection.message_bytes, connection.frame_bytes = message.message_bytes, message.frame_bytes
        connection.probes = message.probes
        self._failures.pop(connection.address, None)

    def heard(self, number: int, now_s: float) -> ClientConnection | None:
        connection = self.connections.get(number)
        if connection is not None:
            connection.heard_s = now_s
        return connection

    def excuse_silence(self, now_s: float) -> None:
        """The driver does not read: silence says nothing about the brokers."""
        for connection in self.connections.values():
            connection.heard_s = now_s

    def stalled(self, now_s: float) -> list[int]:
        """Connections that were silent for too long, or did not log in in time."""
        return [
            connection.number
            for connection in self.connections.values()
            if now_s - connection.heard_s
            > (self.patience.stall_after_s(connection.beat_s) if connection.ready else self.patience.open_s)
        ]

    def unused(self, now_s: float) -> list[int]:
        """Connections to brokers that have not been the home of anything for a while."""
        unused = []
        for connection in self.connections.values():
            if connection.attached or connection.requests or connection.finding or not connection.ready:
                connection.used_s = now_s
            elif now_s - connection.used_s > _UNUSED_S:
                unused.append(connection.number)
        return unused

    def lost(self, number: int, now_s: float) -> None:
        connection = self.connections.pop(number, None)
        if connection is None:
            return
        self.early.lost(connection)
        self.redirects.lost(connection)
        for topic, redirected in list(self.redirects.receivers.items()):
            if redirected.source is connection:
                self._follow_redirect(topic, redirected)
        if self._by_address.get(connection.address) is connection:
            del self._by_address[connection.address]
        if connection.ready and not (connection.attached or connection.requests):
            return  # it was not used, so its end is no failure of a home
        failures = self._failures[connection.address] = self._failures.get(connection.address, 0) + 1
        delay_s = self.patience.delay_s(failures, self.jitter)
        self._connect_s[connection.address] = now_s + (delay_s if failures > 1 else 0.05 * self.jitter())
        for home in self.homes.values():
            if home.hinted == connection.address:
                home.hinted = None
        for topic, role in [need for need, where in self._where.items() if where is connection]:
            self.again(topic, role, now_s, 0.0)

    # -- attachments ---------------------------------------------------------------------------------------------------

    def requested(self, connection: ClientConnection, topic: TopicName, role: Role) -> int:
        """An attach is sent now. Returns the id of the request."""
        number = next(self._numbers)
        connection.requests[number] = (topic, role)
        self.early.attaches.pop((topic, role), None)
        self._where[topic, role] = connection
        del self._needs[topic, role]
        return number

    def requested_early(self, connection: ClientConnection, topic: TopicName, role: Role) -> int:
        number = next(self._numbers)
        connection.requests[number] = (topic, role)
        self.early.sent((topic, role), connection, number)
        return number

    def answered(self, connection: ClientConnection, request: int, at: int, now_s: float) -> TopicName | None:
        """The topic of an attach that succeeded; None if the session does not want it any more, or has asked again over
        the same connection: the later answer counts, because it belongs to the later position."""
        need = connection.requests.pop(request, None)
        if need is None or self._where.get(need) is not connection or need in connection.requests.values():
            return None
        connection.attached[need] = at
        connection.topics[at] = need[0]
        return need[0]

    def refused(self, connection: ClientConnection, message: wire.Refused, now_s: float) -> Need | None:
        need, finding = connection.requests.pop(message.id, None), connection.finding.pop(message.id, None)
        topic = finding if need is None else need[0]
        if topic is not None and (redirected := self.redirects.takes(topic, connection, message.id)) is not None:
            if message.retry_after_s is not None:
                self.redirects.retried(topic, redirected, now_s + message.retry_after_s)
            return None  # stay at the present edge
        if need is None or self.early.refused(need, message.id) or self._where.get(need) is not connection:
            return None
        home = self.homes.get(need[0])
        if home is not None and message.code == Code.NOT_HOME and home.hinted == connection.address:
            home.hinted = None
        self.again(*need, now_s, message.retry_after_s or _RETRY_S)
        return need

    def uses(self, connection: ClientConnection, need: Need) -> bool:
        """True if the topic is attached over this connection, or a later attach there has no answer yet. To detach
        because of an earlier answer would end that one, and the home would send nothing more."""
        early = self.early.attaches.get(need)
        is_early = early is not None and early.connection is connection
        return need in connection.attached or need in connection.requests.values() or is_early

    def attached(self, topic: TopicName, role: Role) -> tuple[ClientConnection, int] | None:
        """Where the topic is attached, and its number there."""
        connection = self._where.get((topic, role))
        at = None if connection is None else connection.attached.get((topic, role))
        return None if connection is None or at is None else (connection, at)

    def is_attached(self, topic: TopicName, role: Role) -> bool:
        return self.attached(topic, role) is not None

    def topic_at(self, connection: ClientConnection, at: int, role: Role) -> TopicName | None:
        """The topic that has this number on this connection, if the session is attached to it there."""
        topic = connection.topics.get(at)
        return topic if topic is not None and connection.attached.get((topic, role)) == at else None
