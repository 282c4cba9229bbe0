"""The asyncio shell of a subscriber: sockets, timers and iterators around `session.SubscriberSession`.

    async with Subscriber("http://127.0.0.1:8570", user="ann", token=token) as subscriber:
        fires = await subscriber.subscribe("EmergenciesOfType", {"kind": "fire"})
        async for result in fires:
            print(result.value["message"])

It reconnects, resumes, follows moves and removes repeats by itself. A result counts as handled, and is acknowledged,
when the application asks for the next one (or says so: `acknowledge="manual"` and `subscriber.ack(result)`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

import msgspec

from tocsin.client import memory
from tocsin.client.connection import Codec, Connection
from tocsin.client.coordinator import Coordinator, Registration
from tocsin.client.errors import (
    BadResult,
    ClientError,
    Denied,
    ResultsMissed,
    SessionEnded,
    SubscriptionEnded,
    error_for,
)
from tocsin.client.events import (
    Close,
    Confirm,
    Deliver,
    Effect,
    End,
    Event,
    Finish,
    GiveUp,
    Grant,
    Handled,
    Locate,
    Located,
    Lost,
    NotLocated,
    Open,
    Opened,
    Place,
    Received,
    Refuse,
    Send,
    Started,
    Stopped,
    Ticked,
    Unwanted,
    Wanted,
)
from tocsin.client.notifications import Gap, Notification, Recovered, Result
from tocsin.client.patience import Patience
from tocsin.client.session import SubscriberSession
from tocsin.client.tls import Verify, context_for
from tocsin.client.waiting import Item, Waiting
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

T = TypeVar("T")
_SAVE_S = 1.0
"""How often the state file is written when something changed."""


class Subscriber:
    def __init__(
        self,
        coordinator: str,
        *,
        user: str | None = None,
        token: str | None = None,
        lat: float | None = None,
        lon: float | None = None,
        state: str | Path | None = None,
        acknowledge: Literal["automatic", "manual"] = "automatic",
        encoding: Literal["json", "msgpack"] = "json",
        waiting_results: int = 10_000,
        patience: Patience | None = None,
        verify: Verify = True,
    ) -> None:
        """`token`: one with the scope `subscribe` for `user`, or one that may register users. `state`: a file that
        remembers cursors for the next run. `verify`: a PEM file of authorities to trust, beside the system's."""
        self._tls = context_for(verify)
        self._coordinator = Coordinator(coordinator, token, self._tls)
        self._token = token
        self.user = None if user is None else SubscriberId(user)
        self._registration: Registration | None = None
        self._where = {name: value for name, value in (("lat", lat), ("lon", lon)) if value is not None}
        self._codec = Codec(wire.MSGPACK if encoding == "msgpack" else wire.JSON)
        self._automatic = acknowledge == "automatic"
        self._path = None if state is None else Path(state)
        self._patience = patience
        self._session: SubscriberSession
        self._connections: dict[int, Connection] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting = Waiting(waiting_results)
        self._room = asyncio.Event()
        self._room.set()
        self._tickets: dict[int, asyncio.Future[Any]] = {}
        self._types: dict[SubscriptionId, Any] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._finished = asyncio.Event()
        self._error: ClientError | None = None
        self._givens: dict[SubscriptionId | None, Result[Any] | Gap] = {}
        """What each iterator gave last; None is the subscriber's own."""
        self._saved: memory.Memory | None = None
        self._saving = asyncio.Lock()
        """One at a time: an older memory must not be written over a newer one."""
        self.brokers_seen: list[BrokerId] = []
        """The brokers that served this subscriber, in order, each as often as a session began there."""

    # -- for the application -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        remembered = None if self._path is None else memory.load(self._path)
        if remembered is not None and self.user is not None and remembered.user != self.user:
            raise ClientError(Code.BAD_REQUEST, f"{self._path} belongs to {remembered.user}, not to {self.user}")
        if remembered is not None:
            self.user = SubscriberId(remembered.user)
        standings = [] if remembered is None else memory.standings(remembered)
        self._session = SubscriberSession(random.random, standings, self._patience)
        if self._path is not None:
            self._start(self._keep_saving(self._path))
        self._happen(Started())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._automatic:
            for iterated in list(self._givens):
                self._done_with_given(iterated)
        await self.close()

    async def close(self) -> None:
        """Acknowledge what was handled, log out, remember. Subscriptions stay; results wait for the next session."""
        self._happen(Stopped())
        await self._finished.wait()
        self._end(SessionEnded(Code.NOT_READY, "this subscriber was closed"))
        if self._path is not None:
            await self._save(self._path)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(one.task for one in self._connections.values()), return_exceptions=True)
        await self._coordinator.close()

    @overload
    async def subscribe(
        self, channel: str, parameters: Mapping[str, Any] | None = None, *, after: str | None = None
    ) -> Subscription[dict[str, Any]]: ...

    @overload
    async def subscribe(
        self,
        channel: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        type: type[T],
        after: str | None = None,
    ) -> Subscription[T]: ...

    async def subscribe(
        self,
        channel: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        type: Any = dict[str, Any],
        after: str | None = None,
    ) -> Subscription[Any]:
        """Hold a subscription; waits for a broker if there is none. `after` is a cursor to begin at."""
        ticket, answer = self._ticket()
        self._happen(Wanted(ticket, ChannelName(channel), dict(parameters or {}), after))
        held: wire.Held = await self._answer(ticket, answer)
        self._types[held.subscription] = type
        return Subscription(self, held)

    async def unsubscribe(self, subscription: SubscriptionId) -> None:
        ticket, answer = self._ticket()
        self._happen(Unwanted(ticket, subscription))
        await self._answer(ticket, answer)
        self._waiting.drop(subscription)
        self._waiting.put(subscription, SubscriptionEnded(Code.UNKNOWN_SUBSCRIPTION, "unsubscribed, as asked for"))
        self._types.pop(subscription, None)

    def subscriptions(self) -> dict[SubscriptionId, tuple[ChannelName, dict[str, Any]]]:
        """All that this subscriber holds, also from earlier runs."""
        return {
            name: (standing.channel, dict(standing.parameters or {}))
            for name, standing in self._session.holdings.standings.items()
        }

    async def connected(self) -> BrokerId:
        """Waits for a session; the broker that serves it. Only needed by who wants to know."""
        while self._session.serving is None:
            if self._error is not None:
                raise self._error
            await asyncio.sleep(0.01)
        return self._session.serving.place.broker

    @property
    def broker(self) -> BrokerId | None:
        """The one that serves this subscriber; None while there is no session."""
        return None if self._session.serving is None else self._session.serving.place.broker

    @property
    def trouble(self) -> str:
        """Why there is no session, in words; what it was before this one if there is."""
        return self._session.trouble

    def break_connections(self) -> None:
        """As a network does that fails: for tests and drills. The session goes on over a new connection."""
        for connection in self._connections.values():
            connection.abort()

    def ack(self, notification: Result[Any] | Gap) -> None:
        """The application is done with this and everything before it, of its subscription."""
        cursor = Cursor.parse(notification.cursor)
        if cursor is not None:
            self._happen(Handled(notification.subscription, cursor))

    def __aiter__(self) -> AsyncIterator[Notification[Any]]:
        return self

    async def __anext__(self) -> Notification[Any]:
        """The next notification of any subscription. They take turns; each one's order is kept."""
        return await self._take(None)

    # -- taking --------------------------------------------------------------------------------------------------------

    async def _take(self, subscription: SubscriptionId | None) -> Notification[Any]:
        if self._automatic:
            self._done_with_given(subscription)
        item = await self._waiting.take(subscription)
        self._make_room()
        notification = self._shown(item)
        if not isinstance(notification, Recovered):
            self._givens[subscription] = notification
        return notification

    def _done_with_given(self, subscription: SubscriptionId | None) -> None:
        given = self._givens.pop(subscription, None)
        if given is not None:
            self.ack(given)

    def _shown(self, item: Item) -> Notification[Any]:
        match item:
            case ClientError():
                raise item
            case wire.Gap():
                return Gap(item.subscription, item.cursor)
            case wire.Recovered():
                return Recovered(item.subscription, item.cursor, item.recovered)
            case wire.Result():
                return Result(item.subscription, item.channel, item.cursor, self._value(item))

    def _value(self, item: wire.Result) -> Any:
        try:
            return self._codec.value(item.result, self._types.get(item.subscription, dict[str, Any]))
        except msgspec.DecodeError as error:
            raise BadResult(
                f"a result of {item.channel} does not fit: {error}", bytes(item.result), item.cursor
            ) from error

    def _make_room(self) -> None:
        if not self._room.is_set() and not self._waiting.full:
            self._session.resumed_reading(self._now_s())
            self._room.set()
            self._schedule()

    # -- driving the session -------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return time.monotonic()

    def _happen(self, event: Event) -> None:
        for effect in self._session.handle(event, self._now_s()):
            self._perform(effect)
        if not self._timer_suffices(event):
            self._schedule()

    def _timer_suffices(self, event: Event) -> bool:
        """The common events bring nothing forward; looking for what is due next for each of them would cost more."""
        if self._timer is None:
            return False
        match event:
            case Received(message=wire.Result() | wire.Progress()):
                return True
            case Handled():
                return self._timer.when() <= self._loop.time() + self._session.patience.ack_s
            case _:
                return False

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._session.due_s()
        if not self._session.ended and due_s < float("inf"):
            self._timer = self._loop.call_later(max(0.0, due_s - self._now_s()), self._happen, Ticked())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Deliver(message):
                self._waiting.put(message.subscription, message)
            case Send(number, message):
                self._connections[number].send(message)
            case Open(number, place):
                self._open(number, place.address, place.broker)
            case Close(number):
                if (connection := self._connections.get(number)) is not None:
                    connection.close()
            case Locate(avoid):
                self._start(self._locate(avoid))
            case Grant(ticket, held):
                self._settle(ticket, held)
            case Confirm(ticket):
                self._settle(ticket, None)
            case Refuse(ticket, code, message):
                self._settle(ticket, error_for(code, message))
            case End(name, code, message):
                self._waiting.put(name, SubscriptionEnded(_known(code), message))
            case GiveUp(code, message):
                self._end(error_for(code, message))
                self._finished.set()
            case Finish():
                self._finished.set()

    def _open(self, number: int, address: str, broker: BrokerId) -> None:
        def received(message: wire.ToSubscriber) -> None:
            if isinstance(message, wire.LoggedIn):
                self.brokers_seen.append(broker)
            self._happen(Received(number, message))

        connection = Connection(
            address, self._codec, opened=lambda: self._happen(Opened(number)), received=received,
            lost=lambda reason: self._happen(Lost(number, reason)), room=self._wait_for_room, tls=self._tls,
        )  # fmt: skip
        self._connections[number] = connection
        connection.task.add_done_callback(lambda _: self._connections.pop(number, None))

    async def _wait_for_room(self) -> None:
        if self._waiting.full:
            self._session.paused = True
            self._room.clear()
            self._schedule()
            await self._room.wait()

    async def _locate(self, avoid: BrokerId | None) -> None:
        try:
            place = await self._request_broker(avoid)
        except ClientError as error:
            event: Event = NotLocated(error.code, error.message, error.code.retry, error.retry_after_s)
        except Exception as error:  # a coordinator that answers nonsense is as good as none
            event = NotLocated(Code.NOT_READY, f"{type(error).__name__}: {error}", retry=True)
        else:
            event = Located(place)
        self._happen(event)

    async def _request_broker(self, avoid: BrokerId | None) -> Place:
        known = self._registration
        try:
            return await self._coordinator.request_broker(await self._registered(), self._where, avoid)
        except Denied:
            if known is None:
                raise
            self._registration = None  # it was good once and may have expired: what it was made from may be good still
            return await self._coordinator.request_broker(await self._registered(), self._where, avoid)

    async def _registered(self) -> Registration:
        if self._registration is None:
            self._registration = await self._coordinator.register(self.user, self._where)
            self.user = self._registration.user
        return self._registration

    # -- tickets, tasks, the end ---------------------------------------------------------------------------------------

    def _ticket(self) -> tuple[int, asyncio.Future[Any]]:
        if self._error is not None:
            raise self._error
        ticket = len(self._tickets) + 1
        while ticket in self._tickets:
            ticket += 1
        answer = self._tickets[ticket] = self._loop.create_future()
        return ticket, answer

    async def _answer(self, ticket: int, answer: asyncio.Future[Any]) -> Any:
        try:
            return await answer
        finally:
            self._tickets.pop(ticket, None)
            self._session.holdings.wants.pop(ticket, None)

    def _settle(self, ticket: int, outcome: object) -> None:
        answer = self._tickets.get(ticket)
        if answer is not None and not answer.done():
            if isinstance(outcome, ClientError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, error: ClientError) -> None:
        self._error = self._error or error
        self._waiting.end(self._error)
        for ticket in list(self._tickets):
            self._settle(ticket, self._error)

    async def _keep_saving(self, path: Path) -> None:
        while True:
            await asyncio.sleep(_SAVE_S)
            await self._save(path)

    async def _save(self, path: Path) -> None:
        if self.user is None:
            return
        async with self._saving:
            now = memory.of(self.user, self._session.holdings.standings.values())
            if now != self._saved:
                await asyncio.shield(asyncio.to_thread(memory.save, path, now))
                self._saved = now


class Subscription(Generic[T]):
    """One subscription of a `Subscriber`. Iterating yields its results; a gap is raised as `ResultsMissed`."""

    def __init__(self, subscriber: Subscriber, held: wire.Held) -> None:
        self._subscriber = subscriber
        self.id = held.subscription
        self.channel = held.channel
        self.parameters = held.parameters
        self.cursor = held.cursor
        """Where it began in this session."""

    def __aiter__(self) -> AsyncIterator[Result[T]]:
        return self

    async def __anext__(self) -> Result[T]:
        while True:
            notification = await self._subscriber._take(self.id)
            match notification:
                case Result():
                    return notification
                case Gap(cursor=cursor):
                    raise ResultsMissed(
                        f"results of {self.channel} before {cursor} have passed their retention", cursor
                    )
                case Recovered():
                    continue

    async def unsubscribe(self) -> None:
        await self._subscriber.unsubscribe(self.id)


def _known(code: str) -> Code:
    try:
        return Code(code)
    except ValueError:
        return Code.INTERNAL
