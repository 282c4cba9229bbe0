"""Drives a `SubscriberSession` on an asyncio loop: sockets, timers, the coordinator, and whoever waits for an answer.

Knows nothing of applications: results go into `waiting`, and `subscriber` takes them out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from ssl import SSLContext
from typing import Any

from tocsin.client.connection import Codec, Connection
from tocsin.client.coordinator import Coordinator, Registration
from tocsin.client.errors import ClientError, Denied, SubscriptionEnded, error_for
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
    Ticked,
)
from tocsin.client.session import SubscriberSession
from tocsin.client.waiting import Waiting
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code


class SessionDriver:
    """Made and used on one loop. `finished`: the session is over; `error` says why, unless it was stopped."""

    def __init__(
        self,
        session: SubscriberSession,
        coordinator: Coordinator,
        user: SubscriberId | None,
        where: dict[str, float],
        codec: Codec,
        tls: SSLContext,
        waiting: Waiting,
    ) -> None:
        self.session = session
        self.user = user
        self.error: ClientError | None = None
        self.finished = asyncio.Event()
        self.brokers_seen: list[BrokerId] = []
        self._coordinator = coordinator
        self._where = where
        self._codec = codec
        self._tls = tls
        self._waiting = waiting
        self._loop = asyncio.get_running_loop()
        self._registration: Registration | None = None
        self._connections: dict[int, Connection] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tickets: dict[int, asyncio.Future[Any]] = {}
        self._last_ticket = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        """When it fires, on the loop's clock. Not asked of the handle: uvloop's for "at once" does not know."""
        self._room = asyncio.Event()
        self._room.set()

    # -- what the subscriber asks for ----------------------------------------------------------------------------------

    def happen(self, event: Event) -> None:
        for effect in self.session.handle(event, time.monotonic()):
            self._perform(effect)
        if not self._timer_suffices(event):
            self._schedule()

    async def ask(self, wish: Callable[[int], Event]) -> Any:
        """The answer to a wish of the application, from whichever broker gives it in the end."""
        if self.error is not None:
            raise self.error
        self._last_ticket += 1
        ticket = self._last_ticket
        answer = self._tickets[ticket] = self._loop.create_future()
        try:
            self.happen(wish(ticket))
            return await answer
        finally:
            self._tickets.pop(ticket, None)
            self.session.holdings.wants.pop(ticket, None)

    def made_room(self) -> None:
        """The application took something."""
        if not self._room.is_set() and not self._waiting.full:
            self.session.resumed_reading(time.monotonic())
            self._room.set()
            self._schedule()

    def break_connections(self) -> None:
        for connection in self._connections.values():
            connection.abort()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """In the background, until `close`."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, error: ClientError) -> None:
        """Nothing more comes: whoever waits is told so."""
        self.error = self.error or error
        self._waiting.end(self.error)
        for ticket in list(self._tickets):
            self._settle(ticket, self.error)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        talking = [connection.task for connection in self._connections.values()]
        await asyncio.gather(*self._tasks, *talking, return_exceptions=True)
        await self._coordinator.close()

    # -- time ----------------------------------------------------------------------------------------------------------

    def _timer_suffices(self, event: Event) -> bool:
        """The common events bring nothing forward; looking for what is due next for each of them would cost more."""
        if self._timer is None:
            return False
        match event:
            case Received(message=wire.Result() | wire.Progress()):
                return True
            case Handled():
                return self._timer_s <= self._loop.time() + self.session.patience.ack_s
            case _:
                return False

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.session.due_s()
        if not self.session.ended and due_s < float("inf"):
            delay_s = max(0.0, due_s - time.monotonic())
            self._timer_s = self._loop.time() + delay_s
            self._timer = self._loop.call_later(delay_s, self.happen, Ticked())

    # -- effects -------------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Deliver(message):
                self._waiting.put(message.subscription, message)
            case Send(number, message):
                self._connections[number].send(message)
            case Open(number, place):
                self._open(number, place)
            case Close(number):
                if (connection := self._connections.get(number)) is not None:
                    connection.close()
            case Locate(avoid):
                self.start(self._locate(avoid))
            case Grant(ticket, held):
                self._settle(ticket, held)
            case Confirm(ticket):
                self._settle(ticket, None)
            case Refuse(ticket, code, message):
                self._settle(ticket, error_for(code, message))
            case End(name, code, message):
                known = Code(code) if code in set(Code) else Code.INTERNAL
                self._waiting.put(name, SubscriptionEnded(known, message))
            case GiveUp(code, message):
                self.end(error_for(code, message))
                self.finished.set()
            case Finish():
                self.finished.set()

    def _settle(self, ticket: int, outcome: object) -> None:
        answer = self._tickets.get(ticket)
        if answer is None or answer.done():
            return
        if isinstance(outcome, ClientError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    def _open(self, number: int, place: Place) -> None:
        def received(message: wire.ToSubscriber) -> None:
            if isinstance(message, wire.LoggedIn):
                self.brokers_seen.append(place.broker)
            self.happen(Received(number, message))

        connection = Connection(
            place.address, self._codec, opened=lambda: self.happen(Opened(number)), received=received,
            lost=lambda reason: self.happen(Lost(number, reason)), room=self._wait_for_room, tls=self._tls,
        )  # fmt: skip
        self._connections[number] = connection
        connection.task.add_done_callback(lambda _: self._connections.pop(number, None))

    async def _wait_for_room(self) -> None:
        if self._waiting.full:
            self.session.paused = True
            self._room.clear()
            self._schedule()
            await self._room.wait()

    # -- the coordinator -----------------------------------------------------------------------------------------------

    async def _locate(self, avoid: BrokerId | None) -> None:
        try:
            place = await self._request_broker(avoid)
        except ClientError as error:
            event: Event = NotLocated(error.code, error.message, error.code.retry, error.retry_after_s)
        except Exception as error:  # a coordinator that answers nonsense is as good as none
            event = NotLocated(Code.NOT_READY, f"{type(error).__name__}: {error}", retry=True)
        else:
            event = Located(place)
        self.happen(event)

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
