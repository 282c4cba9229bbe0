"""Drives a broker's logic: one event at a time, its effects carried out before the next.

Everything happens on one asyncio loop. Connections, the link to the data cluster and the link to the coordinator report
events here and are told what to do; none of them knows another.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import time
from collections import deque
from typing import Any, Protocol

from tocsin.broker import effects as wanted
from tocsin.broker import events as seen
from tocsin.broker.result_batch import Batch
from tocsin.broker.core import Broker
from tocsin.broker.hosted import Requester, CallId, SessionId
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.http.logs import logger
from tocsin.wire import link
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError

TICK_S = 0.5


class Outlet(Protocol):
    """A connection to a subscriber, as the process sees it."""

    def deliver(self, batch: Batch, data: bytes) -> None: ...

    def message(self, message: wire.ToSubscriber, data: bytes) -> None: ...

    def ask_drained(self) -> None: ...

    def close(self, reason: str) -> None: ...


class ClusterLink(Protocol):
    def ask(self, effect: wanted.RequestBackend) -> None: ...

    def release(self, effect: wanted.ReleaseBackend) -> None: ...

    def fetch(self, effect: wanted.Fetch) -> None: ...

    def cancel_fetch(self, effect: wanted.CancelFetch) -> None: ...


class CoordinatorLink(Protocol):
    def tell(self, message: link.FromBroker) -> None: ...


class WebhookCalls(Protocol):
    def begin(self, subscriber: SubscriberId, webhook: link.Webhook) -> None: ...


class Clock:
    """Wall time at the start, then steady: a clock that is set does not make time-outs fire."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._offset_s + time.monotonic()


class BrokerProcess:
    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.id = BrokerId(settings.id)
        self.now_s = Clock()
        self.outlets: dict[SessionId, Outlet] = {}
        self.cluster: ClusterLink
        self.coordinator: CoordinatorLink | None = None
        self.webhooks: WebhookCalls | None = None
        self.incarnation = secrets.token_hex(8)
        self.core: Broker
        self._events: deque[seen.Event] = deque()
        self._handling = False
        self._sessions = itertools.count(1)
        self._calls = itertools.count(1)
        self._answers: dict[CallId, asyncio.Future[wire.ToSubscriber]] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._log = logger()
        self._effects: dict[type, Any] = {
            wanted.SendResults: self._deliver,
            wanted.SendToSessions: self._send,
            wanted.AnswerCall: self._answer,
            wanted.AwaitDrain: self._ask_drained,
            wanted.CloseSession: self._close,
            wanted.CallWebhook: self._call_webhook,
            wanted.RequestBackend: lambda effect: self.cluster.ask(effect),
            wanted.ReleaseBackend: lambda effect: self.cluster.release(effect),
            wanted.Fetch: lambda effect: self.cluster.fetch(effect),
            wanted.CancelFetch: lambda effect: self.cluster.cancel_fetch(effect),
            wanted.SendToCoordinator: self._tell_coordinator,
        }

    def start(self, address: str) -> None:
        """`address` is where subscribers connect."""
        settings = self.settings
        register = link.Register(
            self.id, self.incarnation, settings.address or address, settings.capacity, settings.lat, settings.lon
        )
        self.core = Broker(
            self.id, self.incarnation, settings.limits(), random.Random().random,
            register if settings.coordinator is not None else None,
        )  # fmt: skip
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Say goodbye to every session. The connections are closed by whoever owns them."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
            self.happened(seen.StopRequested())
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(TocsinError(Code.NOT_READY, "this broker is stopping", retry_after_s=1))

    async def _tick(self) -> None:
        while True:
            self.happened(seen.Ticked())
            await asyncio.sleep(TICK_S)

    # -- events and effects ----------------------------------------------------------------------------------------

    def happened(self, event: seen.Event) -> None:
        """From the loop's own thread. What an effect causes at once waits for the effects before it."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._handling = False

    def _handle(self, event: seen.Event) -> None:
        try:
            effects = self.core.handle(event, self.now_s())
        except Exception as error:
            self._log.error("an event could not be handled", kind=type(event).__name__, exc_info=error)
            return
        for effect in effects:
            try:
                self._effects[type(effect)](effect)
            except Exception as error:
                self._log.error("an effect failed", kind=type(effect).__name__, exc_info=error)

    def _deliver(self, effect: wanted.SendResults) -> None:
        outlets, batch, data = self.outlets, effect.batch, effect.data
        for session in effect.sessions:
            outlet = outlets.get(session)
            if outlet is not None:
                outlet.deliver(batch, data)

    def _send(self, effect: wanted.SendToSessions) -> None:
        for session in effect.sessions:
            outlet = self.outlets.get(session)
            if outlet is not None:
                outlet.message(effect.message, effect.data)

    def _ask_drained(self, effect: wanted.AwaitDrain) -> None:
        if (outlet := self.outlets.get(effect.session)) is not None:
            outlet.ask_drained()

    def _close(self, effect: wanted.CloseSession) -> None:
        if (outlet := self.outlets.get(effect.session)) is not None:
            outlet.close(effect.reason)

    def _call_webhook(self, effect: wanted.CallWebhook) -> None:
        if self.webhooks is not None:
            self.webhooks.begin(effect.subscriber, effect.webhook)

    def _tell_coordinator(self, effect: wanted.SendToCoordinator) -> None:
        if self.coordinator is not None:
            self.coordinator.tell(effect.message)

    def _answer(self, effect: wanted.AnswerCall) -> None:
        answer = self._answers.pop(effect.call, None)
        if answer is not None and not answer.done():
            answer.set_result(effect.message)

    # -- for connections and routes --------------------------------------------------------------------------------

    def new_session(self, outlet: Outlet) -> SessionId:
        identity = SessionId(next(self._sessions))
        self.outlets[identity] = outlet
        return identity

    def session_lost(self, identity: SessionId, reason: str) -> None:
        if self.outlets.pop(identity, None) is not None:
            self.happened(seen.SessionLost(identity, reason))

    async def call(self, subscriber: SubscriberId, request: wire.FromSubscriber) -> wire.ToSubscriber:
        """A REST call: the same request as over a connection, and its one answer."""
        identity, answer = self._new_call()
        asker = Requester(call=identity)
        if isinstance(request, wire.Login):
            self.happened(seen.LoginRequested(asker, subscriber, request.id, request.resume))
        else:
            self.happened(seen.RequestReceived(asker, subscriber, request))
        return await self._answered(identity, answer)

    async def choose_webhook(self, subscriber: SubscriberId, webhook: link.Webhook | None) -> None:
        identity, answer = self._new_call()
        self.happened(seen.WebhookChangeRequested(Requester(call=identity), subscriber, webhook))
        await self._answered(identity, answer)

    def _new_call(self) -> tuple[CallId, asyncio.Future[wire.ToSubscriber]]:
        identity = CallId(next(self._calls))
        answer = self._answers[identity] = asyncio.get_running_loop().create_future()
        return identity, answer

    async def _answered(self, identity: CallId, answer: asyncio.Future[wire.ToSubscriber]) -> wire.ToSubscriber:
        try:
            async with asyncio.timeout(30):
                return await answer
        except TimeoutError:
            raise TocsinError(Code.NOT_READY, "no answer in time; try again", retry_after_s=5) from None
        finally:
            self._answers.pop(identity, None)
