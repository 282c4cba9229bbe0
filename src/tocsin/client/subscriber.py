"""The asyncio subscriber: the methods that an application calls and the iterators it reads from.

    async with Subscriber("http://127.0.0.1:8570", user="ann", token=token) as subscriber:
        fires = await subscriber.subscribe("EmergenciesOfType", {"kind": "fire"})
        async for result in fires:
            print(result.value["message"])

It reconnects, resumes, follows moves and removes repeats by itself; `driver` and `session` do that work. A result
counts as handled, and is acknowledged, when the application asks for the next one. With `acknowledge="manual"` it is
acknowledged by `subscriber.ack(result)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

import msgspec

from tocsin.client import state_file
from tocsin.client.coordinator import CoordinatorClient
from tocsin.client.delivery_queue import DeliveryQueue, Item
from tocsin.client.driver import SessionDriver
from tocsin.client.errors import BadResult, ClientError, ResultsMissed, SessionEnded, SubscriptionEnded
from tocsin.client.events import (
    ResultHandled,
    Started,
    Stopped,
    SubscribeRequested,
    UnsubscribeRequested,
    UpdateRequested,
)
from tocsin.client.notifications import Gap, Notification, Recovered, Result
from tocsin.client.session import SubscriberSession
from tocsin.client.timing import Patience
from tocsin.client.tls import Verify, context_for
from tocsin.client.websocket import Codec
from tocsin.coords.coordinate import Coordinate
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, DatasetName, SubscriberId, SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

T = TypeVar("T")
_SAVE_S = 1.0
"""Seconds between two checks whether the state file must be written."""


class Subscriber:
    def __init__(
        self,
        coordinator: str,
        *,
        user: str | None = None,
        token: str | None = None,
        lat: float | None = None,
        lon: float | None = None,
        coordinate: Coordinate | None = None,
        state: str | Path | None = None,
        acknowledge: Literal["automatic", "manual"] = "automatic",
        encoding: Literal["json", "msgpack"] = "json",
        waiting_results: int = 10_000,
        patience: Patience | None = None,
        verify: Verify = True,
    ) -> None:
        """`token`: has the scope `subscribe` for `user`, or may register users. `lat`, `lon`: degrees.
        `coordinate`: the network coordinate that `Topics.locate` measured, for the placement `nearest`. `state`: a file
        that keeps the cursors for the next run. `waiting_results`: how many results may wait for the application.
        `patience`: time-outs and back-off. `verify`: a PEM file of authorities to trust, beside the system's."""
        self._tls = context_for(verify)
        position = {name: value for name, value in (("lat", lat), ("lon", lon)) if value is not None}
        self._coordinator = CoordinatorClient(coordinator, token, self._tls, user, coordinate=coordinate, **position)
        self._codec = Codec(wire.MSGPACK if encoding == "msgpack" else wire.JSON)
        self._automatic = acknowledge == "automatic"
        self._path = None if state is None else Path(state)
        self._patience = patience
        self._queue = DeliveryQueue(waiting_results)
        self._types: dict[SubscriptionId, Any] = {}
        self._unacknowledged: dict[SubscriptionId | None, Result[Any] | Gap] = {}
        """The last notification of each iterator; the key None is the subscriber's own iterator."""
        self._saved: state_file.SavedState | None = None
        self._saving = asyncio.Lock()
        """Serialises writers, so that an older state never overwrites a newer one."""
        self._driver: SessionDriver

    # -- for the application -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        saved = None if self._path is None else state_file.load(self._path)
        if saved is not None and self.user is not None and saved.user != self.user:
            raise ClientError(Code.BAD_REQUEST, f"{self._path} belongs to {saved.user}, not to {self.user}")
        if saved is not None:
            self._coordinator.user = SubscriberId(saved.user)
        session = SubscriberSession(random.random, [] if saved is None else saved.progress(), self._patience)
        self._driver = SessionDriver(session, self._coordinator, self._codec, self._tls, self._queue)
        if self._path is not None:
            self._driver.start(self._keep_saving(self._path))
        self._driver.handle(Started())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._automatic:
            for iterator in list(self._unacknowledged):
                self._acknowledge_last(iterator)
        await self.close()

    async def close(self) -> None:
        """Acknowledge handled results, log out and write the state file. Subscriptions stay for the next session."""
        self._driver.handle(Stopped())
        await self._driver.finished.wait()
        self._driver.end(SessionEnded(Code.NOT_READY, "this subscriber was closed"))
        if self._path is not None:
            await self._save(self._path)
        await self._driver.close()

    @property
    def user(self) -> SubscriberId | None:
        """The subscriber's name. If the program gave no name, None until the coordinator has chosen one."""
        return self._coordinator.user

    @property
    def broker(self) -> BrokerId | None:
        """The broker that serves this subscriber; None while there is no session."""
        serving = self._driver.session.serving
        return None if serving is None else serving.address.broker

    @property
    def brokers_seen(self) -> list[BrokerId]:
        """The broker of every session so far, in order."""
        return self._driver.brokers_seen

    @property
    def trouble(self) -> str:
        """A readable reason why there is no session; during a session, why there was none before it."""
        return self._driver.session.trouble

    async def connected(self) -> BrokerId:
        """Wait for a session and return its broker. Other methods wait by themselves."""
        while (broker := self.broker) is None:
            if self._driver.error is not None:
                raise self._driver.error
            await asyncio.sleep(0.01)
        return broker

    def break_connections(self) -> None:
        """Break the connections as a failing network does, for tests. The session continues over a new connection."""
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
        """Subscribe, waiting for a broker if there is none.

        `after` is the cursor to start at, and `type` is the type of the results.
        """
        values = dict(parameters or {})
        granted: wire.Held = await self._driver.request(
            lambda ticket: SubscribeRequested(ticket, ChannelName(channel), values, after)
        )
        self._types[granted.subscription] = type
        return Subscription(self, granted)

    async def unsubscribe(self, subscription: SubscriptionId) -> None:
        await self._driver.request(lambda ticket: UnsubscribeRequested(ticket, subscription))
        self._queue.drop(subscription)
        ended = SubscriptionEnded(Code.UNKNOWN_SUBSCRIPTION, "unsubscribed by the application", asked=True)
        self._queue.put(subscription, ended)
        self._types.pop(subscription, None)

    async def update(self, dataset: str, record: Mapping[str, Any]) -> None:
        """Replace this user's own record in a KEYED dataset with OWNED BY, waiting for a broker if there is none.

        Returns when the record is on disk, or a newer one of a later call. The owner column may be left out.
        """
        values = msgspec.to_builtins(dict(record), str_keys=True)  # raises for a value that no encoding can carry
        await self._driver.request(lambda ticket: UpdateRequested(ticket, DatasetName(dataset), values))

    def subscriptions(self) -> dict[SubscriptionId, tuple[ChannelName, dict[str, Any]]]:
        """The channel and parameters of every subscription that is held, including those of earlier runs."""
        return {
            identity: (progress.channel, dict(progress.parameters or {}))
            for identity, progress in self._driver.session.subscriptions.progress.items()
        }

    def ack(self, notification: Result[Any] | Gap) -> None:
        """Acknowledge this notification and every earlier one of its subscription."""
        cursor = Cursor.parse(notification.cursor)
        if cursor is not None:
            self._driver.handle(ResultHandled(notification.subscription, cursor))

    def __aiter__(self) -> AsyncIterator[Notification[Any]]:
        return self

    async def __anext__(self) -> Notification[Any]:
        """The next notification of any subscription. Subscriptions take turns; each one's order is kept."""
        while True:
            try:
                return await self._take(None)
            except SubscriptionEnded as ended:
                if not ended.asked:
                    raise

    # -- taking results ------------------------------------------------------------------------------------------------

    async def _take(self, subscription: SubscriptionId | None) -> Notification[Any]:
        if self._automatic:
            self._acknowledge_last(subscription)
        item = await self._queue.take(subscription)
        self._driver.resume_reading()
        notification = self._notification(item)
        if not isinstance(notification, Recovered):
            self._unacknowledged[subscription] = notification
        return notification

    def _acknowledge_last(self, iterator: SubscriptionId | None) -> None:
        notification = self._unacknowledged.pop(iterator, None)
        if notification is not None:
            self.ack(notification)

    def _notification(self, item: Item) -> Notification[Any]:
        match item:
            case ClientError():
                raise item
            case wire.Gap():
                return Gap(item.subscription, item.cursor, item.ended)
            case wire.Recovered():
                return Recovered(item.subscription, item.cursor, item.recovered)
            case wire.Result():
                return Result(item.subscription, item.channel, item.cursor, self._value(item))

    def _value(self, item: wire.Result) -> Any:
        try:
            return self._codec.value(item.result, self._types.get(item.subscription, dict[str, Any]))
        except msgspec.DecodeError as error:
            raise BadResult(
                f"a result of {item.channel} does not fit the requested type: {error}", bytes(item.result), item.cursor
            ) from error

    async def _keep_saving(self, path: Path) -> None:
        while True:
            await asyncio.sleep(_SAVE_S)
            with contextlib.suppress(OSError):  # a full disk may have room later; leaving the block raises the error
                await self._save(path)

    async def _save(self, path: Path) -> None:
        if self.user is None:
            return
        async with self._saving:
            state = state_file.SavedState.of(self.user, self._driver.session.subscriptions.progress.values())
            if state != self._saved:
                await asyncio.shield(asyncio.to_thread(state_file.save, path, state))
                self._saved = state


class Subscription(Generic[T]):
    """A subscription of a `Subscriber`. Iterating yields its results and raises `ResultsMissed` at a gap."""

    def __init__(self, subscriber: Subscriber, held: wire.Held) -> None:
        self._subscriber = subscriber
        self.id = held.subscription
        self.channel = held.channel
        self.parameters = held.parameters
        self.cursor = held.cursor
        """The cursor at which the subscription started in this session."""

    def __aiter__(self) -> AsyncIterator[Result[T]]:
        return self

    async def __anext__(self) -> Result[T]:
        while True:
            notification = await self._subscriber._take(self.id)
            match notification:
                case Result():
                    return notification
                case Gap(cursor=cursor, ended=str(reason)):
                    raise ResultsMissed(f"the subscription to {self.channel} has ended: {reason}", cursor)
                case Gap(cursor=cursor):
                    raise ResultsMissed(
                        f"results of {self.channel} before {cursor} have passed their retention", cursor
                    )
                case Recovered():
                    continue

    async def unsubscribe(self) -> None:
        await self._subscriber.unsubscribe(self.id)
