"""Drives the broker core: handles one event at a time and carries out its effects before the next.

Everything runs on one asyncio loop. The subscribers' connections, the link to the data cluster and the link to the
coordinator report events here and receive effects; they do not know each other.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from tocsin.broker import effects, events
from tocsin.broker.core import Broker
from tocsin.broker.hosted import CallId, Requester, SessionId
from tocsin.broker.result_batch import Batch
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.permission import ALL_RIGHTS, Rights
from tocsin.runtime.broker.audited_sessions import AuditedSessions
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.broker.user_tokens import UserTokens
from tocsin.runtime.http.credentials import Claims
from tocsin.runtime.http.logs import logger
from tocsin.wire import link
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError

TICK_S = 0.5
_ANSWER_S = 30.0
_BOOT_TIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SessionConnection(Protocol):
    """The connection of one session: a WebSocket, an event stream or a webhook."""

    def send_results(self, batch: Batch, data: bytes) -> None: ...

    def send_message(self, message: wire.ToSubscriber, data: bytes) -> None: ...

    def await_drain(self) -> None: ...

    def close(self, reason: str) -> None: ...

    @property
    def claims(self) -> Claims | None:
        """The token that opened the session; None for a webhook."""


class SteadyClock:
    """Wall-clock time at the start, monotonic from then on: setting the system clock does not trigger time-outs.

    Where the system has such a clock, time passes while the machine sleeps: a lease must end then too.
    """

    def __init__(self) -> None:
        self._elapsed_s = partial(time.clock_gettime, _BOOT_TIME) if _BOOT_TIME is not None else time.monotonic
        self._offset_s = time.time() - self._elapsed_s()

    def __call__(self) -> float:
        return self._offset_s + self._elapsed_s()


class BrokerProcess:
    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.id = BrokerId(settings.id)
        self.now_s = SteadyClock()
        self.connections: dict[SessionId, SessionConnection] = {}
        self.user_tokens = UserTokens()
        self.audited: AuditedSessions | None = None
        self.incarnation = secrets.token_hex(8)
        self.core: Broker
        self._events: deque[events.Event] = deque()
        self._handling = False
        self._session_numbers = itertools.count(1)
        self._call_numbers = itertools.count(1)
        self._answers: dict[CallId, asyncio.Future[wire.ToSubscriber]] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._log = logger()
        self.handlers: dict[type[effects.Effect], Callable[[Any], None]] = {
            effects.SendResults: self._send_results,
            effects.SendToSessions: self._send_to_sessions,
            effects.AnswerCall: self._answer,
            effects.AwaitDrain: self._await_drain,
            effects.CloseSession: self._close,
        }
        """The handler of each kind of effect. The server adds the handlers of the links and of the webhooks."""

    def start(self, address: str) -> None:
        """Start the process. `address` is the URL to which subscribers connect."""
        settings = self.settings
        register = None
        if settings.coordinator is not None:
            register = link.Register(
                self.id,
                self.incarnation,
                settings.address or address,
                settings.capacity,
                settings.lat,
                settings.lon,
                topics=True,
            )
        self.core = Broker(self.id, self.incarnation, settings.limits, random.Random().random, register)
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """End every session and every pending REST call. The owners of the connections close them."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
            self.happened(events.StopRequested())
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(TocsinError(Code.NOT_READY, "this broker is stopping", retry_after_s=1))

    async def _tick(self) -> None:
        while True:
            self.happened(events.Ticked())
            await asyncio.sleep(TICK_S)

    # -- events and effects ----------------------------------------------------------------------------------------

    def happened(self, event: events.Event) -> None:
        """Handle an event; call it from the loop's thread.

        An event that an effect reports waits until the earlier effects are carried out.
        """
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._handling = False

    def _handle(self, event: events.Event) -> None:
        try:
            handled = self.core.handle(event, self.now_s())
        except Exception as error:
            self._log.error("an event could not be handled", kind=type(event).__name__, exc_info=error)
            return
        if self.audited is not None:
            self.audited.on_event(event)
            for effect in handled:
                self.audited.on_effect(effect)
        for effect in handled:
            try:
                self.handlers[type(effect)](effect)
            except Exception as error:
                self._log.error("an effect failed", kind=type(effect).__name__, exc_info=error)

    def _send_results(self, effect: effects.SendResults) -> None:
        connections, batch, data = self.connections, effect.batch, effect.data
        for session in effect.sessions:
            connection = connections.get(session)
            if connection is not None:
                connection.send_results(batch, data)

    def _send_to_sessions(self, effect: effects.SendToSessions) -> None:
        for session in effect.sessions:
            connection = self.connections.get(session)
            if connection is not None:
                connection.send_message(effect.message, effect.data)

    def _await_drain(self, effect: effects.AwaitDrain) -> None:
        if (connection := self.connections.get(effect.session)) is not None:
            connection.await_drain()

    def _close(self, effect: effects.CloseSession) -> None:
        if (connection := self.connections.get(effect.session)) is not None:
            connection.close(effect.reason)

    def _answer(self, effect: effects.AnswerCall) -> None:
        answer = self._answers.pop(effect.call, None)
        if answer is not None and not answer.done():
            answer.set_result(effect.message)

    # -- for connections and routes --------------------------------------------------------------------------------

    def new_session(self, connection: SessionConnection) -> SessionId:
        identity = SessionId(next(self._session_numbers))
        self.connections[identity] = connection
        return identity

    def session_lost(self, identity: SessionId, reason: str) -> None:
        if self.connections.pop(identity, None) is not None:
            self.happened(events.SessionLost(identity, reason))

    async def call(
        self, subscriber: SubscriberId, request: wire.FromSubscriber, rights: Rights = ALL_RIGHTS
    ) -> wire.ToSubscriber:
        """Handle a REST call like a request over a connection, and return its answer."""
        call, answer = self._new_call()
        requester = Requester(call=call)
        if isinstance(request, wire.Login):
            self.happened(events.LoginRequested(requester, subscriber, request.id, request.resume))
        else:
            self.happened(events.RequestReceived(requester, subscriber, request, rights))
        return await self._wait(call, answer)

    async def change_webhook(self, subscriber: SubscriberId, webhook: link.Webhook | None) -> None:
        """Set the subscriber's webhook; None removes it."""
        call, answer = self._new_call()
        self.happened(events.WebhookChangeRequested(Requester(call=call), subscriber, webhook))
        await self._wait(call, answer)

    def _new_call(self) -> tuple[CallId, asyncio.Future[wire.ToSubscriber]]:
        call = CallId(next(self._call_numbers))
        answer = self._answers[call] = asyncio.get_running_loop().create_future()
        return call, answer

    async def _wait(self, call: CallId, answer: asyncio.Future[wire.ToSubscriber]) -> wire.ToSubscriber:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        except TimeoutError:
            raise TocsinError(Code.NOT_READY, "no answer in time; try again", retry_after_s=5) from None
        finally:
            self._answers.pop(call, None)
