"""The broker core: `handle(event, now_s) -> effects`. It has no clock and no socket; asyncio or a simulator drives it.

This module connects the parts and passes each event to one of them:

    sessions        login and the end of sessions         requests        subscribe, unsubscribe, ack, list, ping
    live_fetches    fetch new results                     backfill        fetch results older than the cache
    catch_up        bring sessions to the live position   result_cache    recent results
    adoption        which subscribers to serve            preparations    the target's part in a migration
    outbox          changes the coordinator must store    reports         progress, heartbeats, load
    updates         records of subscribers, to be stored  surges          bursts that are announced
    backend_subscriptions   what this broker holds at the data cluster

The driver carries out the effects in order, before it reports the next event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tocsin.broker import events
from tocsin.broker.adoption import Adoption
from tocsin.broker.backend_subscriptions import BackendSubscriptions, SubscriptionRequest
from tocsin.broker.backfill import Backfills
from tocsin.broker.catch_up import CatchUp
from tocsin.broker.effects import CloseSession, Effect
from tocsin.broker.hosted import BackendSubscription, FrontendSubscription
from tocsin.broker.live_fetches import LiveFetches
from tocsin.broker.outbox import Outbox
from tocsin.broker.preparations import Preparations
from tocsin.broker.reports import Reports
from tocsin.broker.requests import SubscriberRequests
from tocsin.broker.sessions import Sessions
from tocsin.broker.state import BrokerState, Limits
from tocsin.broker.surges import Surges
from tocsin.broker.updates import Updates
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.wire import link
from tocsin.wire.errors import Code


class Broker:
    def __init__(
        self,
        broker: BrokerId,
        incarnation: str,
        limits: Limits,
        jitter: Callable[[], float],
        register: link.Register | None = None,
    ) -> None:
        """`register` is this broker's registration message; None runs the broker without a coordinator."""
        self.state = state = BrokerState(broker, incarnation, limits, jitter, register is not None)
        self._register = register
        self.accepting = True
        self.draining = False
        self._stopping = False
        outbox = self._outbox = Outbox(state)
        backends = self._backends = BackendSubscriptions(
            state, self._on_grant, self._on_refusal, self._on_backend_released, self._on_forbidden
        )
        catch_up = CatchUp(state, backends.request_again)
        self._backfills = catch_up.backfill
        self._fetches = LiveFetches(state, catch_up, backends.request_again)
        self._sessions = Sessions(state, catch_up, outbox)
        self.updates = Updates(state)
        self._requests = SubscriberRequests(state, backends, catch_up, outbox, self._sessions, self.updates)
        self._preparations = Preparations(state, backends, self._requests, self._fetches, self._backfills)
        self._adoption = Adoption(state, backends, catch_up, outbox, self._sessions, self._requests, self._preparations)
        self._surges = Surges(state)
        self._reports = Reports(state, self._fetches, self._surges, outbox)
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.LoginRequested: self._login,
            events.RequestReceived: self._requests.handle,
            events.WebhookChangeRequested: self._sessions.change_webhook,
            events.SessionBlocked: self._sessions.on_blocked,
            events.SessionDrained: self._sessions.on_drained,
            events.SessionLost: self._on_session_lost,
            events.SessionRevoked: self._on_session_revoked,
            events.BackendGranted: backends.on_granted,
            events.BackendRefused: backends.on_refused,
            events.ExecutionAnnounced: self._on_execution,
            events.ProgressAnnounced: self._fetches.on_progress,
            events.AnnouncementsMissed: lambda event: self._fetches.on_announcements_missed(),
            events.HoldsMissing: self._fetches.on_holds_missing,
            events.GapFound: lambda event: self._fetcher(event.fetch).on_gap(event),
            events.ResultsFetched: lambda event: self._fetcher(event.fetch).on_results(event),
            events.FetchEnded: lambda event: self._fetcher(event.fetch).on_ended(event),
            events.FetchFailed: lambda event: self._fetcher(event.fetch).on_failed(event),
            events.UpdatesStored: self.updates.on_stored,
            events.UpdatesFailed: self.updates.on_failed,
            events.LinkOpened: self._on_link_opened,
            events.LinkLost: self._on_link_lost,
            events.CoordinatorMessageReceived: self._on_coordinator_message,
            events.Ticked: self._tick,
            events.StopRequested: self._stop,
        }

    @property
    def linked(self) -> bool:
        """Whether this broker is registered with the coordinator at the moment."""
        return self._outbox.connected

    @property
    def idle(self) -> bool:
        """Whether the broker holds no state for any subscriber; must be true after the last one has left."""
        state = self.state
        parts = (self._backends, self._backfills, self._fetches, self._sessions, self._requests, self._adoption)
        holds_state = state.subscribers or state.sessions or state.backends or state.cache.used_bytes or state.pulls
        return not (holds_state or state.places) and self.updates.idle and all(part.idle for part in parts)

    def handle(self, event: events.Event, now_s: float) -> list[Effect]:
        state = self.state
        state.now_s = now_s
        self._handlers[type(event)](event)
        self._fetches.start()
        self._backfills.start()
        self.updates.start()
        self._adoption.release_unsubscribed()
        self._preparations.report_ready()
        state.cache.trim()
        effects, state.effects = state.effects, []
        return effects

    def _fetcher(self, fetch: int) -> LiveFetches | Backfills:
        """Live fetches have positive numbers, backfills negative ones."""
        return self._fetches if fetch > 0 else self._backfills

    # -- subscribers -----------------------------------------------------------------------------------------------

    def _login(self, event: events.LoginRequested) -> None:
        session = event.requester.session
        accepted = self.accepting or event.migration is not None or session is None or event.is_webhook
        if accepted and not self._stopping:
            self._adoption.login(event)
            return
        message = "this broker accepts no new sessions at the moment; ask the coordinator for another broker"
        self._sessions.refuse_login(event, Code.NOT_READY, message, 1.0)
        if session is not None:
            self.state.effects.append(CloseSession(session, "draining"))

    def _on_session_lost(self, event: events.SessionLost) -> None:
        self._adoption.on_connection_lost(event.session)
        session = self.state.sessions.get(event.session)
        if session is not None:
            self._sessions.forget(session, event.reason)

    def _on_session_revoked(self, event: events.SessionRevoked) -> None:
        """End the session. A login that still waits for the subscriber's state ends too."""
        session = self.state.sessions.get(event.session)
        if session is not None:
            self._sessions.end(session, "revoked", "the token was revoked")
        else:
            self._adoption.on_connection_lost(event.session)
            self.state.effects.append(CloseSession(event.session, "revoked"))

    def _on_grant(self, request: SubscriptionRequest, frontend: FrontendSubscription) -> None:
        """Pass the grant to the part that made the request: a subscriber, an adoption or a preparation."""
        if request.requester is not None:
            self._requests.on_granted(request, frontend)
            return
        if request.after is not None and request.after > frontend.acked:
            frontend.acked = request.after
        if request.migration is None:
            self._adoption.on_granted(request, frontend)
        else:
            self._preparations.on_granted(request, frontend)

    def _on_refusal(self, request: SubscriptionRequest, code: str, message: str) -> None:
        if request.requester is not None:
            self._requests.on_refused(request, code, message)
        elif request.migration is None:
            self._adoption.on_refused(request)
        else:
            self._preparations.on_refused(request, code, message)

    def _on_forbidden(self, name: SubscriberId, backend: BackendSubscription) -> None:
        """End a subscription that its subscriber may not have any more, and report that to the coordinator."""
        subscriber = self.state.subscribers.get(name)
        frontend = None if subscriber is None else subscriber.frontends.get(backend.id)
        if subscriber is not None and frontend is not None:
            self._outbox.removed(name, backend.id)
            self._outbox.flush()
            self._requests.release(subscriber, frontend)
            self.state.forget_if_empty(subscriber)

    def _on_execution(self, event: events.ExecutionAnnounced) -> None:
        self._surges.on_execution(event)
        self._fetches.on_execution(event)

    def _on_backend_released(self, backend: BackendSubscription) -> None:
        self._fetches.forget(backend)
        self._backfills.forget(backend)
        self._reports.on_backend_released(backend)

    # -- the coordinator -------------------------------------------------------------------------------------------

    def _on_link_opened(self, _event: events.LinkOpened) -> None:
        assert self._register is not None
        online = [session.subscriber.id for session in self.state.sessions.values() if not session.is_webhook]
        message = msgspec.structs.replace(self._register, online=online, hosting=list(self.state.subscribers))
        self.state.send_to_coordinator(message)

    def _on_link_lost(self, _event: events.LinkLost) -> None:
        self._outbox.connected = False
        self._requests.on_link_lost()
        self._adoption.on_link_lost()

    def _on_coordinator_message(self, event: events.CoordinatorMessageReceived) -> None:
        match event.message:
            case link.Registered() as message:
                self.accepting = message.accepting
                self._surges.limit_bytes_per_s = 0.0
                self._outbox.on_registered()
                self._adoption.on_registered()
                self._reports.on_registered(message)
            case link.Stored(upto):
                self._outbox.on_stored(upto)
                self._requests.on_stored(upto)
            case link.Adopt() as message:
                self._adoption.adopt(message)
            case link.Prepare() as message:
                self._adoption.prepare(message)
            case link.HandOver() as message:
                self._adoption.hand_over(message)
            case link.Release() as message:
                self._adoption.release(message)
            case link.Abandon() as message:
                self._preparations.undo(message.migration)
            case link.Accepting(accepting, draining, limit_bytes_per_s):
                self.accepting, self.draining = accepting, draining
                if limit_bytes_per_s is not None:
                    self._surges.limit_bytes_per_s = limit_bytes_per_s
            case link.Beat():
                pass

    # -- time ------------------------------------------------------------------------------------------------------

    def _tick(self, _event: events.Ticked) -> None:
        self._backends.expire_requests()
        self._requests.confirm_late()
        self.updates.expire()
        self._sessions.end_expired()
        self._preparations.expire()
        self._adoption.admit_late()
        self._reports.tick()

    def _stop(self, _event: events.StopRequested) -> None:
        self._stopping = True
        self._sessions.end_all()
