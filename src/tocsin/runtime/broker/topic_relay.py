"""The relay: this broker attaches to the home of a topic once, for all its clients that have only one connection.

It is a client of topics like any other (`client.topic_session`): it follows moves and failovers, sends unacknowledged
messages again and reports gaps. If the home is this broker, the messages do not leave the process.

A session of topics names everything it uses in each request to the coordinator's directory, which limits the number of
names. The relay therefore has several sessions, and a topic or a pattern stays with the session that it began with.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import deque
from collections.abc import Callable
from itertools import count
from ssl import SSLContext

import msgspec
from websockets.asyncio.client import ClientConnection

from tocsin.broker.message_encoding import Encoding
from tocsin.broker.topics import events as topic_events
from tocsin.client import topic_events as events
from tocsin.client.errors import ClientError
from tocsin.client.topic_driver import TopicDriver, TopicSocket
from tocsin.client.topic_events import Item
from tocsin.client.topic_session import TopicSession
from tocsin.model.ids import TopicName
from tocsin.model.permission import RELAYED_TOPICS
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.runtime.http.credentials import Claims, subject_of
from tocsin.runtime.http.logs import logger
from tocsin.wire import topic as wire
from tocsin.wire.topic_directory import MOST_NAMES

_RUN_BITS = 52
_MOST_PER_SESSION = MOST_NAMES * 2 // 5
"""Topics to send to, and patterns to receive, of one session: each is an attachment, and a connection has 10,000."""
_RETRY_S = 5.0
_OVERHEAD_BYTES = 200
"""Memory of a message that waits, besides its data."""
_SWEEP_TOPICS = 1_000
_decoder = msgspec.msgpack.Decoder(wire.ToClient)


class TopicRelay:
    """Set the callbacks, then `start` it."""

    def __init__(
        self, topics: TopicsProcess, coordinator: str, token: Callable[[], str], tls: SSLContext, user: str
    ) -> None:
        """`token` is this broker's own; `user` the name in it."""
        self.topics = topics
        self.user = user
        self.own_address = ""
        """The address under which the coordinator knows this broker."""
        self.on_items: Callable[[list[Item]], None] = lambda items: None
        self.on_settled: Callable[[int, str | None, str], None] = lambda ticket, code, message: None
        self.on_ready: Callable[[str], None] = lambda pattern: None
        self._coordinator = coordinator
        self._token = token
        self._tls = tls
        self._sessions: list[_RelaySession] = []
        self._senders: dict[str, _RelaySession] = {}
        self._patterns: dict[str, tuple[_RelaySession, int]] = {}
        self._numbers = count(1)
        self.on_room: Callable[[str], None] = lambda user: None
        """Called with the user whose message waits no longer."""
        self._waiting: dict[int, tuple[int, int, str]] = {}
        """Number of a message without an answer of its home → (ticket, size in bytes, user)."""
        self.waiting_bytes = 0
        """Size of the messages that wait for homes: it grows while a home is unreachable."""
        self.waiting_of: dict[str, int] = {}
        """The same for each user with such messages; an empty name for this broker's own."""
        self.last: dict[TopicName, tuple[int, int]] = {}
        """Topic → the last position that was delivered, while there are several sessions."""

    def publish(self, ticket: int, topic: str, data: bytes, user: str = "") -> None:
        """Publish a user's message at the home of the topic; `on_settled` reports the outcome."""
        session = self._senders.get(topic)
        if session is None:
            self._forget_refused()
            session = self._senders[topic] = self._session_with_room()
            session.topics += 1
        if user and not session.sends_to(topic):
            session.driver.creators[TopicName(topic)] = user
        number = next(self._numbers)
        size_bytes = len(data) + _OVERHEAD_BYTES
        self._waiting[number] = (ticket, size_bytes, user)
        self.waiting_bytes += size_bytes
        self.waiting_of[user] = self.waiting_of.get(user, 0) + size_bytes
        session.driver.handle(events.PublishRequested(number, TopicName(topic), data))

    def settle(self, number: int, code: str | None, message: str) -> None:
        ticket, size_bytes, user = self._waiting.pop(number)
        self.waiting_bytes -= size_bytes
        self.waiting_of[user] -= size_bytes
        if not self.waiting_of[user]:
            del self.waiting_of[user]
        self.on_settled(ticket, code, message)
        self.on_room(user)

    def _forget_refused(self) -> None:
        """Forget topics that the coordinator has refused, so that messages to many such topics take no memory."""
        if len(self._senders) % _SWEEP_TOPICS:
            return
        for topic, session in list(self._senders.items()):
            if not session.sends_to(topic):
                del self._senders[topic]
                session.driver.creators.pop(TopicName(topic), None)
                session.topics -= 1

    def watch(self, pattern: str) -> None:
        """Receive the topics that match; `on_ready` reports when all of them send."""
        session = self._session_with_room()
        session.topics += 1
        number = next(self._numbers)
        self._patterns[pattern] = (session, number)
        session.patterns[number] = pattern
        session.driver.handle(events.SubscribeRequested(number, pattern))

    def unwatch(self, pattern: str) -> None:
        session, number = self._patterns.pop(pattern)
        session.topics -= 1
        del session.patterns[number]
        session.driver.handle(events.UnsubscribeRequested(number))

    async def close(self) -> None:
        await asyncio.gather(*(session.driver.close() for session in self._sessions))

    def _session_with_room(self) -> _RelaySession:
        for session in self._sessions:
            if session.topics < _MOST_PER_SESSION:
                return session
        self._sessions.append(_RelaySession(self, self._coordinator, self._token(), self._tls))
        return self._sessions[-1]

    @property
    def sessions(self) -> int:
        return len(self._sessions)


class _RelaySession:
    def __init__(self, relay: TopicRelay, coordinator: str, token: str, tls: SSLContext) -> None:
        self._relay = relay
        self.topics = 0
        self.patterns: dict[int, str] = {}
        self._delivered: list[Item] | None = None
        room = asyncio.Event()
        room.set()  # the queues of the clients are bounded, so the relay never stops reading
        session = TopicSession(secrets.randbits(_RUN_BITS), random.random)
        self.driver = TopicDriver(session, coordinator, token, tls, self._on_effect, room)
        self.driver.make_socket = self._make_socket
        self.driver.on_failure = self._on_failure

    def sends_to(self, topic: str) -> bool:
        return TopicName(topic) in self.driver.session.senders

    def _make_socket(self, driver: TopicDriver, number: int, address: str) -> TopicSocket | LocalHome:
        if address.rstrip("/") == self._relay.own_address.rstrip("/"):
            return LocalHome(driver, number, self._relay.topics, self._relay.user)
        return TopicSocket(driver, number, address)

    def _on_failure(self, error: ClientError) -> None:
        """The coordinator refused the directory. A later key or token may be accepted."""
        logger().error("the coordinator refuses this broker's relay of topics", reason=str(error))
        asyncio.get_running_loop().call_later(_RETRY_S, self.driver.watch_again)

    def _on_effect(self, effect: events.Effect) -> None:
        match effect:
            case events.Settle(ticket, code, message):
                self._relay.settle(ticket, code, message)
            case events.Deliver(_, items):
                if items is not self._delivered:  # the same list follows once for each pattern that matches
                    self._delivered = items
                    self._relay.on_items(items if self._relay.sessions == 1 else self._new(items))
            case events.MarkReady(number):
                if number in self.patterns:
                    self._relay.on_ready(self.patterns[number])

    def _new(self, items: list[Item]) -> list[Item]:
        """Those of the items that no other session of the relay has delivered."""
        return [item for item in items if self._is_new(item)]

    def _is_new(self, item: Item) -> bool:
        if not isinstance(item, events.TopicMessage):
            return True
        position = (item.position.epoch, item.position.sequence)
        if position <= self._relay.last.get(item.topic, (0, 0)):
            return False
        self._relay.last[item.topic] = position
        return True


class LocalHome:
    """A connection of the relay to the topics of its own broker, without a socket."""

    def __init__(self, driver: TopicDriver, number: int, topics: TopicsProcess, user: str) -> None:
        self._driver = driver
        self._number = number
        self._topics = topics
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._frames: deque[bytes] = deque()
        self._identity = topics.new_connection(self)
        self._user = user
        self.claims: Claims | None = None
        """The relay is a part of this process: no token can be revoked."""
        self.socket: ClientConnection | None = None
        self.task: asyncio.Task[None] = asyncio.create_task(self._open())

    async def _open(self) -> None:
        self._driver.handle(events.ConnectionOpened(self._number))

    # -- called by the driver of the relay -----------------------------------------------------------------------------

    def send(self, message: wire.FromClient) -> None:
        if isinstance(message, wire.Login):
            # The same user as at other brokers, which read it from this token: homes know a publisher by its user.
            user = subject_of(message.token or "") or self._user
            opened = topic_events.ConnectionOpened(
                self._identity, user, message.id, Encoding.MSGPACK, RELAYED_TOPICS, None
            )
            self._topics.happened(opened)
        else:
            self._topics.happened(topic_events.RequestReceived(self._identity, message))

    # -- called by the topics of this broker ---------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self._frames:
            self._loop.call_soon(self._deliver)
        self._frames.append(data)

    def _deliver(self) -> None:
        """Hand the frames over after the effects that made them: neither side handles two events at once."""
        frames, self._frames = self._frames, deque()
        for data in frames:
            if not self._closed:
                message = _decoder.decode(memoryview(data)[_header_bytes(data) :])
                self._driver.handle(events.MessageReceived(self._number, message))

    def await_drain(self) -> None:
        self._loop.call_soon(self._topics.connection_drained, self._identity)

    def close(self, reason: str = "") -> None:
        """Called by either side: the driver needs no report of its own close."""
        if self._closed:
            return
        self._closed = True
        self._topics.connections.pop(self._identity, None)
        self._loop.call_soon(self._closed_by, reason)

    def _closed_by(self, reason: str) -> None:
        self._topics.happened(topic_events.ConnectionLost(self._identity))
        if reason:
            self._driver.lost(self._number, reason)


def _header_bytes(data: bytes) -> int:
    """The size of the header of an unmasked WebSocket frame."""
    size = data[1] & 0x7F
    return 10 if size == 127 else 4 if size == 126 else 2
