"""The asyncio subscriber: what an application calls and iterates over. `driver` and `session` do the work.

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
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

import msgspec

from tocsin.client import memory
from tocsin.client.connection import Codec
from tocsin.client.coordinator import Coordinator
from tocsin.client.driver import SessionDriver
from tocsin.client.errors import BadResult, ClientError, ResultsMissed, SessionEnded, SubscriptionEnded
from tocsin.client.events import Handled, Started, Stopped, Unwanted, Wanted
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
        self._user = None if user is None else SubscriberId(user)
        self._where = {name: value for name, value in (("lat", lat), ("lon", lon)) if value is not None}
        self._codec = Codec(wire.MSGPACK if encoding == "msgpack" else wire.JSON)
        self._automatic = acknowledge == "automatic"
        self._path = None if state is None else Path(state)
        self._patience = patience
        self._waiting = Waiting(waiting_results)
        self._types: dict[SubscriptionId, Any] = {}
        self._givens: dict[SubscriptionId | None, Result[Any] | Gap] = {}
        """What each iterator gave last; None is the subscriber's own."""
        self._saved: memory.Memory | None = None
        self._saving = asyncio.Lock()
        """One at a time: an older memory must not be written over a newer one."""
        self._driver: SessionDriver

    # -- for the application -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        remembered = None if self._path is None else memory.load(self._path)
        if remembered is not None and self._user is not None and remembered.user != self._user:
            raise ClientError(Code.BAD_REQUEST, f"{self._path} belongs to {remembered.user}, not to {self._user}")
        if remembered is not None:
            self._user = SubscriberId(remembered.user)
        standings = [] if remembered is None else memory.standings(remembered)
        session = SubscriberSession(random.random, standings, self._patience)
        self._driver = SessionDriver(
            session, self._coordinator, self._user, self._where, self._codec, self._tls, self._waiting
        )
        if self._path is not None:
            self._driver.start(self._keep_saving(self._path))
        self._driver.happen(Started())
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
        self._driver.happen(Stopped())
        await self._driver.finished.wait()
        self._driver.end(SessionEnded(Code.NOT_READY, "this subscriber was closed"))
        if self._path is not None:
            await self._save(self._path)
        await self._driver.close()

    @property
    def user(self) -> SubscriberId | None:
        """None until the coordinator has given a name to one who came without."""
        return self._driver.user

    @property
    def broker(self) -> BrokerId | None:
        """The one that serves this subscriber; None while there is no session."""
        serving = self._driver.session.serving
        return None if serving is None else serving.place.broker

    @property
    def brokers_seen(self) -> list[BrokerId]:
        """The brokers that served this subscriber, in order, each as often as a session began there."""
        return self._driver.brokers_seen

    @property
    def trouble(self) -> str:
        """Why there is no session, in words; what it was before this one if there is."""
        return self._driver.session.trouble

    async def connected(self) -> BrokerId:
        """Waits for a session; the broker that serves it. Only needed by who wants to know."""
        while (broker := self.broker) is None:
            if self._driver.error is not None:
                raise self._driver.error
            await asyncio.sleep(0.01)
        return broker

    def break_connections(self) -> None:
        """As a network does that fails: for tests and drills. The session goes on over a new connection."""
        self._driver.break_connections()

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
        values = dict(parameters or {})
        held: wire.Held = await self._driver.ask(lambda ticket: Wanted(ticket, ChannelName(channel), values, after))
        self._types[held.subscription] = type
        return Subscription(self, held)

    async def unsubscribe(self, subscription: SubscriptionId) -> None:
        await self._driver.ask(lambda ticket: Unwanted(ticket, subscription))
        self._waiting.drop(subscription)
        ended = SubscriptionEnded(Code.UNKNOWN_SUBSCRIPTION, "unsubscribed, as asked for", asked=True)
        self._waiting.put(subscription, ended)
        self._types.pop(subscription, None)

    def subscriptions(self) -> dict[SubscriptionId, tuple[ChannelName, dict[str, Any]]]:
        """All that this subscriber holds, also from earlier runs."""
        return {
            name: (standing.channel, dict(standing.parameters or {}))
            for name, standing in self._driver.session.holdings.standings.items()
        }

    def ack(self, notification: Result[Any] | Gap) -> None:
        """The application is done with this and everything before it, of its subscription."""
        cursor = Cursor.parse(notification.cursor)
        if cursor is not None:
            self._driver.happen(Handled(notification.subscription, cursor))

    def __aiter__(self) -> AsyncIterator[Notification[Any]]:
        return self

    async def __anext__(self) -> Notification[Any]:
        """The next notification of any subscription. They take turns; each one's order is kept."""
        while True:
            try:
                return await self._take(None)
            except SubscriptionEnded as ended:
                if not ended.asked:
                    raise

    # -- taking --------------------------------------------------------------------------------------------------------

    async def _take(self, subscription: SubscriptionId | None) -> Notification[Any]:
        if self._automatic:
            self._done_with_given(subscription)
        item = await self._waiting.take(subscription)
        self._driver.made_room()
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

    async def _keep_saving(self, path: Path) -> None:
        while True:
            await asyncio.sleep(_SAVE_S)
            await self._save(path)

    async def _save(self, path: Path) -> None:
        if self.user is None:
            return
        async with self._saving:
            now = memory.of(self.user, self._driver.session.holdings.standings.values())
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
