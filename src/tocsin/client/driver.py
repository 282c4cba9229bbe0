"""Drives a `SubscriberSession` on an asyncio loop: sockets, timers, the coordinator, and pending requests.

It knows nothing of applications: it puts results into the delivery queue, and `subscriber` takes them out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from ssl import SSLContext
from typing import Any

from tocsin.client import events
from tocsin.client.coordinator import CoordinatorClient
from tocsin.client.delivery_queue import DeliveryQueue
from tocsin.client.errors import ClientError, SubscriptionEnded, error_for
from tocsin.client.session import SubscriberSession
from tocsin.client.websocket import BrokerSocket, Codec
from tocsin.model.ids import BrokerId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code


class SessionDriver:
    """Created and used on one loop. `finished` is set when the session ends; `error` is the reason if it failed."""

    def __init__(
        self,
        session: SubscriberSession,
        coordinator: CoordinatorClient,
        codec: Codec,
        tls: SSLContext,
        queue: DeliveryQueue,
    ) -> None:
        self.session = session
        self.error: ClientError | None = None
        self.finished = asyncio.Event()
        self.brokers_seen: list[BrokerId] = []
        self._coordinator = coordinator
        self._codec = codec
        self._tls = tls
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[int, BrokerSocket] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        """Requests without an answer, by ticket."""
        self._last_ticket = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        """When the timer fires, on the loop's clock. Kept here because uvloop's handle for "at once" has no `when`."""
        self._room = asyncio.Event()
        self._room.set()

    # -- called by the subscriber --------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        for effect in self.session.handle(event, time.monotonic()):
            self._perform(effect)
        if not self._timer_suffices(event):
            self._schedule()

    async def request(self, event_for: Callable[[int], events.Event]) -> Any:
        """Send a request of the application and wait for a broker's answer. `event_for` gets the request's ticket."""
        if self.error is not None:
            raise self.error
        self._last_ticket += 1
        ticket = self._last_ticket
        answer = self._answers[ticket] = self._loop.create_future()
        try:
            self.handle(event_for(ticket))
            return await answer
        finally:
            self._answers.pop(ticket, None)
            self.session.subscriptions.requested.pop(ticket, None)
            self.session.subscriptions.updating.pop(ticket, None)

    def resume_reading(self) -> None:
        """Read from the network again if the application has made room in the queue."""
        if not self._room.is_set() and not self._queue.full:
            self.session.resumed_reading(time.monotonic())
            self._room.set()
            self._schedule()

    def break_connections(self) -> None:
        for socket in self._sockets.values():
            socket.abort()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background until `close`."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, error: ClientError) -> None:
        """Fail every pending request, and every reader of the queue once it is empty."""
        self.error = self.error or error
        self._queue.end(self.error)
        for ticket in list(self._answers):
            self._answer(ticket, self.error)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        socket_tasks = [socket.task for socket in self._sockets.values()]
        await asyncio.gather(*self._tasks, *socket_tasks, return_exceptions=True)
        await self._coordinator.close()

    # -- time ----------------------------------------------------------------------------------------------------------

    def _timer_suffices(self, event: events.Event) -> bool:
        """True if the timer needs no update. Frequent events make nothing due earlier, and `due_s` is costly."""
        if self._timer is None:
            return False
        match event:
            case events.MessageReceived(message=wire.Result() | wire.Progress()):
                return True
            case events.ResultHandled():
                return self._timer_s <= self._loop.time() + self.session.timing.ack_s
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
            self._timer = self._loop.call_later(delay_s, self.handle, events.TimePassed())

    # -- effects -------------------------------------------------------------------------------------------------------

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case events.DeliverMessage(message):
                self._queue.put(message.subscription, message)
            case events.SendRequest(number, message):
                self._sockets[number].send(message)
            case events.OpenConnection(number, address):
                self._open(number, address)
            case events.CloseConnection(number):
                if (socket := self._sockets.get(number)) is not None:
                    socket.close()
            case events.LocateBroker(avoid):
                self.start(self._locate(avoid))
            case events.ReportSubscribed(ticket, held):
                self._answer(ticket, held)
            case events.ReportUnsubscribed(ticket) | events.ReportUpdated(ticket):
                self._answer(ticket, None)
            case events.ReportRefused(ticket, code, message):
                self._answer(ticket, error_for(code, message))
            case events.EndSubscription(identity, code, message):
                error_code = Code(code) if code in set(Code) else Code.INTERNAL
                self._queue.put(identity, SubscriptionEnded(error_code, message))
            case events.FailSession(code, message):
                self.end(error_for(code, message))
                self.finished.set()
            case events.FinishSession():
                self.finished.set()

    def _answer(self, ticket: int, outcome: object) -> None:
        answer = self._answers.get(ticket)
        if answer is None or answer.done():
            return
        if isinstance(outcome, ClientError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    def _open(self, number: int, address: events.BrokerAddress) -> None:
        def receive(message: wire.ToSubscriber) -> None:
            if isinstance(message, wire.LoggedIn):
                self.brokers_seen.append(address.broker)
            self.handle(events.MessageReceived(number, message))

        socket = BrokerSocket(
            address.address,
            self._codec,
            opened=lambda: self.handle(events.ConnectionOpened(number)),
            received=receive,
            lost=lambda reason: self.handle(events.ConnectionLost(number, reason)),
            wait_for_room=self._wait_for_room,
            tls=self._tls,
        )
        self._sockets[number] = socket
        socket.task.add_done_callback(lambda _: self._sockets.pop(number, None))

    async def _wait_for_room(self) -> None:
        if self._queue.full:
            self.session.paused = True
            self._room.clear()
            self._schedule()
            await self._room.wait()

    # -- the coordinator -----------------------------------------------------------------------------------------------

    async def _locate(self, avoid: BrokerId | None) -> None:
        try:
            address = await self._coordinator.request_broker(avoid)
        except ClientError as error:
            event: events.Event = events.LocateFailed(error.code, error.message, error.code.retry, error.retry_after_s)
        except Exception as error:  # an answer that cannot be read counts as no answer
            event = events.LocateFailed(Code.NOT_READY, f"{type(error).__name__}: {error}", retry=True)
        else:
            event = events.BrokerLocated(address)
        self.handle(event)
