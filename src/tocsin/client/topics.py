"""The asyncio client of topics: publish and receive messages in milliseconds.

    async with Topics("http://127.0.0.1:8570", token=token) as topics:
        await topics.publish("swarm/3/leader", b"60.17 24.94")
        async for item in topics.subscribe("swarm/+/leader"):
            ...  # a TopicMessage, or a TopicGap where messages are missing

It attaches to the home of each topic, reconnects, follows moves and failovers, sends unacknowledged messages again and
removes repeats; `topic_session` and `topic_driver` do that work.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import Self

from tocsin.client.errors import ClientError, RequestRefused, SessionEnded, error_for
from tocsin.client.timing import Patience
from tocsin.client.tls import Verify, context_for
from tocsin.client.topic_coordinates import REFERENCES, ClientAgent
from tocsin.client.topic_driver import TopicDriver
from tocsin.client.topic_events import (
    Deliver,
    Effect,
    GatewayChanged,
    Item,
    LimitChanged,
    MarkReady,
    PublishRequested,
    Settle,
    SubscribeRequested,
    TopicFailure,
    TopicFrame,
    TopicGap,
    TopicMessage,
    UnsubscribeRequested,
)
from tocsin.client.topic_rating import Rater, Utility
from tocsin.client.topic_session import TopicSession
from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import TopicName
from tocsin.model.topic import BEGINNING, Position, is_exact, matches, pattern_problem, topic_problem
from tocsin.wire.errors import Code
from tocsin.wire.topic_envelope import MARK, unwrapped

_RUN_BITS = 52
_LOOK_S = 0.1


class Topics:
    def __init__(
        self,
        coordinator: str,
        *,
        token: str | None = None,
        waiting_messages: int = 100_000,
        patience: Patience | None = None,
        verify: Verify = True,
        prompt: bool = True,
        coordinates: bool = True,
        gateway: str | None = None,
        source: str | None = None,
        utility: Utility | Collection[str] | None = None,
        on_limit: Callable[[str, float | None], None] | None = None,
    ) -> None:
        """`token` has scopes such as `send:swarm/3/#` and `receive:swarm/#`. `waiting_messages`: how many received
        messages may wait for the application before the client stops reading; a home then reports a gap. `prompt=False`
        is for programs that do not wait for each message: homes acknowledge ten times a second, which costs them less.
        `coordinates=False` measures no round trips to brokers. `gateway`: see `use_gateway`. `source` is the local
        address of all connections, for a machine with several. `utility` rates received messages for the congestion
        control of a site: a function from a message to a number in [0, 1] or None, or keywords of interest. `on_limit`
        is called with a topic and its limit in messages per second, or None, whenever that changes.
        """
        self._coordinator = coordinator
        self._token = token
        self._tls = context_for(verify)
        self._limit = waiting_messages
        self._source = source
        self._on_limit = on_limit
        rater = None if utility is None else Rater(utility)
        agent = ClientAgent(partial(random.gauss, 0.0, 1.0), gateway=gateway) if coordinates else None
        self._session = TopicSession(
            secrets.randbits(_RUN_BITS), random.random, patience, prompt=prompt, agent=agent, rater=rater
        )
        self._numbers = count(1)
        self._tickets: dict[int, asyncio.Future[None]] = {}
        self._subscriptions: dict[int, TopicSubscription] = {}
        self._waiting = 0
        self._room: asyncio.Event
        self._driver: TopicDriver

    async def __aenter__(self) -> Self:
        self._room = asyncio.Event()
        self._room.set()
        self._driver = TopicDriver(
            self._session, self._coordinator, self._token, self._tls, self._on_effect, self._room, self._source
        )
        self._driver.on_failure = self._fail_all
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Messages without an acknowledgement fail; they may have been accepted."""
        await self._driver.close()
        self._fail_all(SessionEnded(Code.NOT_READY, "this client was closed"))

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def publish(self, topic: str, data: bytes) -> None:
        """Publish a message and wait until the home has accepted it. It waits through moves and failovers.

        Raises RequestRefused with the code `limited`, and sends nothing, if the site is congested and the message
        exceeds the limit of this publisher.
        """
        await self.send(topic, data)

    def may_publish(self, topic: str) -> bool:
        """False if the site is congested and a message now would exceed the limit of this publisher.

        Ask it before building a message: a message that would be refused need not be built. False counts as a message
        that the application offered, and the site grants capacity by what is offered.
        """
        return self._session.limits.may_publish(TopicName(topic), time.monotonic())

    def limit_per_s(self, topic: str) -> float | None:
        """The limit of this publisher in messages per second; None without a limit."""
        return self._session.limits.rate_per_s(TopicName(topic))

    def send(self, topic: str, data: bytes) -> asyncio.Future[None]:
        """Publish a message without waiting. The future is done when the home has accepted it.

        Messages that are sent before the program awaits anything travel together.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        problem = topic_problem(topic)
        if problem is not None or self._driver.failure is not None:
            future.set_exception(self._driver.failure or RequestRefused(Code.BAD_REQUEST, problem or ""))
            return future
        if not self._session.limits.admit(TopicName(topic), time.monotonic()):
            message = f"the site is congested: at most {self.limit_per_s(topic):g} messages per second to {topic}"
            future.set_exception(RequestRefused(Code.LIMITED, message))
            return future
        ticket = next(self._numbers)
        self._tickets[ticket] = future
        self._driver.handle(PublishRequested(ticket, TopicName(topic), data))
        return future

    # -- receiving -----------------------------------------------------------------------------------------------------

    def subscribe(self, pattern: str, *, after: Position | None = None) -> TopicSubscription:
        """Receive every message of the topics that match, from now on; of topics created later, from their first.

        `after` resumes behind the position of a message that the program has handled: a persistent topic sends
        everything since then, a volatile one what its home still keeps, after a gap for the rest. `BEGINNING` starts
        with the oldest message that is kept.
        """
        problem = pattern_problem(pattern)
        if problem is not None:
            raise RequestRefused(Code.BAD_REQUEST, problem)
        if after is not None and after != BEGINNING and not is_exact(pattern):
            raise RequestRefused(Code.BAD_REQUEST, "a position belongs to one topic: subscribe to it by its name")
        if after is not None and any(matches(pattern, topic) for topic in self._session.receivers):
            message = f"this client receives {pattern} already, from another position: use another client"
            raise RequestRefused(Code.BAD_REQUEST, message)
        if self._driver.failure is not None:
            raise self._driver.failure
        number = next(self._numbers)
        subscription = self._subscriptions[number] = TopicSubscription(self, number, pattern)
        self._driver.handle(SubscribeRequested(number, pattern, after))
        return subscription

    @property
    def run(self) -> int:
        """This run of the program, as brokers know it: the receiver is `<user>/<run>` in the plans of a site."""
        return self._session.run

    def home(self, topic: str) -> str | None:
        """The address of the topic's home, as far as this client knows."""
        home = self._session.homes.get(TopicName(topic))
        return None if home is None else home.best

    @property
    def coordinate(self) -> Coordinate | None:
        """This client's network coordinate; None before `locate`, or before enough measurements."""
        return None if self._session.agent is None else self._session.agent.coordinate

    @property
    def agent(self) -> ClientAgent | None:
        """The agent of this client's network coordinate, for experiments; None with `coordinates=False`."""
        return self._session.agent

    async def locate(self, timeout_s: float = 20.0) -> Coordinate | None:
        """Measure a few brokers that are far from each other, and return this client's network coordinate.

        The topics that this client creates by their first message get a home near it. None if the brokers have no
        coordinates, or if the time is over. Raises if the coordinator refuses the client.
        """
        agent = self._session.agent
        if agent is None or (landmarks := await self._driver.visit_landmarks()) == 0:
            return None
        agent.references = min(REFERENCES, landmarks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while agent.coordinate is None:
                    await asyncio.sleep(_LOOK_S)
        return agent.coordinate

    def use_gateway(self, address: str | None) -> None:
        """A mobile client is near the broker at this address now; None: the client stays where it is.

        The client uses the coordinate of that broker with its own round trip to it. Call it whenever the client enters
        another network: homes learn it at once, and the topics of the client can follow it.
        """
        self._driver.handle(GatewayChanged(address))

    def receives_at(self, topic: str) -> str | None:
        """The address of the broker that sends the topic to this client now; None while none does."""
        return self._session.receives_at(TopicName(topic))

    def break_connections(self) -> None:
        """Break the connections as a failing network does, for tests."""
        self._driver.break_connections()

    def _end(self, subscription: TopicSubscription) -> None:
        if self._subscriptions.pop(subscription.number, None) is not None:
            self._take(len(subscription.items))
            subscription.items.clear()
            self._driver.handle(UnsubscribeRequested(subscription.number))

    def _take(self, items: int) -> None:
        self._waiting -= items
        if self._waiting <= self._limit // 2:
            self._room.set()

    # -- effects -------------------------------------------------------------------------------------------------------

    def _on_effect(self, effect: Effect) -> None:
        match effect:
            case Settle(ticket, code, message):
                future = self._tickets.pop(ticket, None)
                if future is not None and not future.done():
                    if code is None:
                        future.set_result(None)
                    else:
                        future.set_exception(error_for(code, message))
            case Deliver(number, items):
                subscription = self._subscriptions.get(number)
                if subscription is not None:
                    self._waiting += len(items)
                    subscription.put(items)
                    if self._waiting > self._limit:
                        self._room.clear()
            case LimitChanged(topic, per_s):
                if self._on_limit is not None:
                    self._on_limit(topic, per_s)
            case MarkReady(number):
                if (subscription := self._subscriptions.get(number)) is not None:
                    subscription.is_ready.set()

    def _fail_all(self, error: ClientError) -> None:
        for future in self._tickets.values():
            if not future.done():
                future.set_exception(error)
        self._tickets.clear()
        for subscription in self._subscriptions.values():
            subscription.fail(error)


class TopicSubscription:
    """Iterating yields `TopicMessage`, and `TopicGap` where messages are missing. `async with` ends it at the end."""

    def __init__(self, topics: Topics, number: int, pattern: str) -> None:
        self._topics = topics
        self.number = number
        self.pattern = pattern
        self.items: deque[Item] = deque()
        self.is_ready = asyncio.Event()
        self._arrived = asyncio.Event()
        self._error: ClientError | None = None

    async def ready(self) -> Self:
        """Wait until the homes of all topics that match now send their messages here."""
        await self.is_ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def end(self) -> None:
        """Stop receiving."""
        self._topics._end(self)
        self.fail(SessionEnded(Code.NOT_READY, "this subscription was ended"))

    async def __aenter__(self) -> Self:
        return await self.ready()

    async def __aexit__(self, *error: object) -> None:
        self.end()

    def put(self, items: list[Item]) -> None:
        self.items.extend(items)
        self._arrived.set()

    def fail(self, error: ClientError) -> None:
        self._error = self._error or error
        self.is_ready.set()
        self._arrived.set()

    def __aiter__(self) -> AsyncIterator[TopicMessage | TopicGap]:
        return self

    async def __anext__(self) -> TopicMessage | TopicGap:
        while not self.items:
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        item = self.items.popleft()
        self._topics._take(1)
        if isinstance(item, TopicFailure):
            raise error_for(item.code, f"{item.topic}: {item.message}")
        assert not isinstance(item, TopicFrame), "only relays get frames"
        if isinstance(item, TopicMessage) and item.data.startswith(MARK):
            data, properties = unwrapped(item.data)
            return replace(item, data=data, properties=properties)
        return item
