"""The process around the broker core: its sessions, its REST calls and its clock.

The subscribers' connections, the link to the data cluster and the link to the coordinator report events here and
receive effects; they do not know each other.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from tocsin.broker import effects, events
from tocsin.broker.core import Broker
from tocsin.broker.hosted import CallId, Requester, SessionId
from tocsin.broker.result_batch import Batch
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.permission import ALL_RIGHTS, Rights
from tocsin.runtime.broker.audited_sessions import AuditedSessions
from tocsin.runtime.broker.core_driver import CoreDriver
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.broker.user_tokens import UserTokens
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import link
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.site_link import Role

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


class BrokerProcess(CoreDriver[events.Event]):
    def __init__(self, settings: BrokerSettings) -> None:
        super().__init__(SteadyClock(), TICK_S, events.Ticked(), events.StopRequested())
        self.settings = settings
        self.id = BrokerId(settings.id)
        self.connections: dict[SessionId, SessionConnection] = {}
        self.user_tokens = UserTokens()
        self.incarnation = secrets.token_hex(8)
        self.core: Broker
        self._session_numbers = itertools.count(1)
        self._call_numbers = itertools.count(1)
        self._answers: dict[CallId, asyncio.Future[wire.ToSubscriber]] = {}
        self.handlers |= {
            effects.SendResults: self._send_results,
            effects.SendToSessions: self._send_to_sessions,
            effects.AnswerCall: self._answer,
            effects.AwaitDrain: self._await_drain,
            effects.CloseSession: self._close,
        }
        # The server adds the handlers of the links and of the webhooks.

    def audit(self, audited: AuditedSessions) -> None:
        """Record logins and requests in the audit log."""

        def observe(event: events.Event, handled: Sequence[effects.Effect]) -> None:
            audited.on_event(event)
            for effect in handled:
                audited.on_effect(effect)

        self.observe = observe

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
                coordinates=settings.coordinates,
                limits=settings.topic_capacity.capacity,
                role=Role(settings.role),
                standby=settings.standby,
            )
        self.core = Broker(self.id, self.incarnation, settings.limits, random.Random().random, register)
        self.handle = self.core.handle
        self.start_ticking()

    async def stop(self) -> None:
        """End every session and every pending REST call. The owners of the connections close them."""
        await self.stop_ticking()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(TocsinError(Code.NOT_READY, "this broker is stopping", retry_after_s=1))

    # -- effects ---------------------------------------------------------------------------------------------------

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
