"""The importing side of a home: it receives flows of its topics from the homes of neighbouring sites [decision 21].

For each neighbour a session of topics follows the homes there, as any client does (`client.topic_session`): it asks the
neighbour's coordinator for homes and reconnects. The frames go to the topics core, which keeps the numbers.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from functools import partial

from tocsin.broker.topics import effects
from tocsin.broker.topics import events as core_events
from tocsin.client import topic_events as events
from tocsin.client.errors import ClientError
from tocsin.client.tls import context_with
from tocsin.client.topic_driver import TopicDriver
from tocsin.client.topic_events import TopicFailure, TopicFrame
from tocsin.client.topic_flows import FlowReceiver
from tocsin.client.topic_session import TopicSession
from tocsin.model.ids import TopicName
from tocsin.model.topic import Position
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.runtime.http.logs import logger
from tocsin.wire import topic as wire
from tocsin.wire.site_link import NeighbourAccess
from tocsin.wire.topic_directory import MOST_NAMES

_RUN_BITS = 52
_MOST_PER_SESSION = MOST_NAMES * 2 // 5
_RETRY_S = 5.0
_BACKLOG_S = 0.05
"""How often an import looks again whether the log of its topic has room."""
_PATIENCE_S = 1.0
"""An import whose log has had no room for so long ends: other topics of the session wait with it. The home begins it
again behind the last number when the log has room."""


class TopicImports:
    def __init__(self, topics: TopicsProcess, source: str | None = None) -> None:
        """`source` is the local address of the connections to neighbours."""
        self._topics = topics
        self._source = source
        self._access: dict[str, NeighbourAccess] = {}
        self._sessions: dict[str, list[_ImportSession]] = {}
        self._imports: dict[int, _ImportSession] = {}
        """Number of an import → its session."""
        topics.handlers |= {
            effects.UseNeighbours: self._use,
            effects.StartImport: self._start,
            effects.StopImport: self._stop,
        }

    async def close(self) -> None:
        sessions = [session for sessions in self._sessions.values() for session in sessions]
        await asyncio.gather(*(session.driver.close() for session in sessions))

    def _use(self, effect: effects.UseNeighbours) -> None:
        access = {neighbour.site: neighbour for neighbour in effect.neighbours}
        for site in [site for site, known in self._access.items() if access.get(site) != known]:
            for session in self._sessions.pop(site, []):
                for number in list(session.numbers.values()):
                    self._imports.pop(number, None)
                    self._topics.happened(core_events.ImportBroken(number, "the address of the neighbour has changed"))
                session.closing = asyncio.create_task(session.driver.close())
        self._access = access

    def _start(self, effect: effects.StartImport) -> None:
        access = self._access.get(effect.neighbour)
        if access is None:
            message = f"{effect.neighbour} is not a neighbour"
            self._topics.happened(core_events.ImportBroken(effect.number, message))
            return
        sessions = self._sessions.setdefault(effect.neighbour, [])
        session = next((session for session in sessions if session.has_room(effect.topic)), None)
        if session is None:
            session = _ImportSession(self._topics, access, self._source)
            sessions.append(session)
        self._imports[effect.number] = session
        session.start(effect.topic, effect.number)

    def _stop(self, effect: effects.StopImport) -> None:
        if (session := self._imports.pop(effect.number, None)) is not None:
            session.stop(effect.number)


class _ImportSession:
    def __init__(self, topics: TopicsProcess, access: NeighbourAccess, source: str | None) -> None:
        self._topics = topics
        self._access = access
        self.numbers: dict[TopicName, int] = {}
        """Topic → the number of its import."""
        self.closing: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        """Clear while a log has much to store: the session stops reading then."""
        self._full: set[int] = set()
        """The imports whose logs have much to store."""
        self._room.set()
        session = TopicSession(secrets.randbits(_RUN_BITS), random.random, make_receiver=self._make_receiver)
        tls = context_with(access.ca)
        self.driver = TopicDriver(session, access.coordinator, access.token, tls, self._on_effect, self._room, source)
        self.driver.on_failure = self._on_failure

    def has_room(self, topic: TopicName) -> bool:
        return len(self.numbers) < _MOST_PER_SESSION and topic not in self.numbers

    def start(self, topic: TopicName, number: int) -> None:
        self.numbers[topic] = number
        self._later(events.SubscribeRequested(number, topic))

    def stop(self, number: int) -> None:
        for topic in [topic for topic, known in self.numbers.items() if known == number]:
            del self.numbers[topic]
        self._later(events.UnsubscribeRequested(number))

    def _later(self, event: events.Event) -> None:
        """The session may be handling an event: a frame of it led to this one."""
        asyncio.get_running_loop().call_soon(self.driver.handle, event)

    def _make_receiver(self, topic: TopicName, _after: Position | None) -> FlowReceiver:
        return FlowReceiver(topic, numbers=partial(self._numbers, topic))

    def _numbers(self, topic: TopicName) -> dict[str, int]:
        return self._topics.core.importing.numbers(self.numbers.get(topic, 0))

    def _on_effect(self, effect: events.Effect) -> None:
        if not isinstance(effect, events.Deliver):
            return
        for item in effect.items:
            number = self.numbers.get(item.topic)
            if number is None:
                continue
            if isinstance(item, TopicFrame) and isinstance(item.message, wire.Messages):
                self._topics.happened(core_events.ImportReceived(number, item.message.messages))
                self._wait_for_log(number)
            elif isinstance(item, TopicFailure):
                self._log_failure(item.topic, item.message)
                broken = core_events.ImportBroken(number, item.message)
                asyncio.get_running_loop().call_later(_RETRY_S, self._topics.happened, broken)

    def _wait_for_log(self, number: int) -> None:
        if number not in self._full and self._topics.core.importing.is_backlogged(number):
            self._full.add(number)
            self._room.clear()
            loop = asyncio.get_running_loop()
            loop.call_later(_BACKLOG_S, self._look_again, number, loop.time() + _PATIENCE_S)

    def _look_again(self, number: int, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._topics.core.importing.is_backlogged(number) and loop.time() < until_s:
            loop.call_later(_BACKLOG_S, self._look_again, number, until_s)
            return
        if self._topics.core.importing.is_backlogged(number):
            self._topics.happened(core_events.ImportBroken(number, "the log of the topic has much to store"))
        self._full.discard(number)
        if not self._full:
            self._room.set()

    def _on_failure(self, error: ClientError) -> None:
        """The neighbour's coordinator refused the directory. A later key or token may be accepted."""
        self._log_failure("", str(error))
        asyncio.get_running_loop().call_later(_RETRY_S, self.driver.watch_again)

    def _log_failure(self, topic: str, reason: str) -> None:
        logger().error("a neighbouring site refuses a flow", site=self._access.site, topic=topic, reason=reason)
