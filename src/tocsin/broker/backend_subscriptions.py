"""The backend subscriptions of this broker: requested once for all subscribers, released with the last frontend.

The data cluster assigns the ids, because canonical parameters need the channel's signature. Subscribers therefore wait
for its answer. The broker requests two spellings of the same values separately; both are granted the same id.

A parameter may be bound to the session's user. The broker learns from a grant which parameters are bound, fills in the
subscriber's name and refuses any other value. Before the first grant of a channel one request stands for all
subscribers with the same values, in the name of the first of them; its answer shows whether the others need their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from tocsin.broker.effects import ReleaseBackend, RequestBackend
from tocsin.broker.events import BackendGranted, BackendRefused
from tocsin.broker.hosted import BackendKey, BackendSubscription, FrontendSubscription, HostedSubscriber, Requester
from tocsin.broker.state import BrokerState
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriberId
from tocsin.model.rate import MovingAverage
from tocsin.model.subscription import ForeignUser, bind_user
from tocsin.wire.errors import Code
from tocsin.wire.session import Gap

_encode = msgspec.json.Encoder(order="deterministic").encode
_OF_ANOTHER_USER = (Code.FOREIGN_USER, Code.UNPROVEN_USER)
"""Refusals that concern the user of a request and not its values."""


def key_of(channel: ChannelName, parameters: dict[str, Any], user: SubscriberId | None = None) -> BackendKey:
    """The key of a request. With `user`, no other subscriber shares the request."""
    return channel.lower(), _encode(parameters if user is None else [parameters, user])


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """A frontend subscription to create as soon as the data cluster has granted the backend subscription."""

    subscriber: SubscriberId
    parameters: dict[str, Any]
    after: Cursor | None
    """Start after this cursor; None starts at the present."""
    since_s: float
    requester: Requester | None = None
    """Receiver of the answer. None: the coordinator made the request, and the request has no time limit."""
    request: int = 0
    migration: str | None = None
    alone: bool = False
    """True if no other subscriber may share the request at the data cluster."""

    @property
    def expects_session(self) -> bool:
        """True if the subscriber has a session or gets one by a migration. An adopted subscriber may stay offline."""
        return self.requester is not None or self.migration is not None


@dataclass(slots=True)
class _PendingBackend:
    channel: ChannelName
    parameters: dict[str, Any]
    user: SubscriberId
    """The subscriber in whose name the broker sent the request."""
    requests: list[SubscriptionRequest] = field(default_factory=list)
    again: BackendSubscription | None = None
    """The subscription that is requested again; None for a new one."""


class BackendSubscriptions:
    def __init__(
        self,
        state: BrokerState,
        granted: Callable[[SubscriptionRequest, FrontendSubscription], None],
        refused: Callable[[SubscriptionRequest, str, str], None],
        released: Callable[[BackendSubscription], None],
        forbidden: Callable[[SubscriberId, BackendSubscription], None],
    ) -> None:
        """`granted` and `refused` receive the outcome of each request; `released` each released subscription.

        `forbidden` ends the subscription of a subscriber that may not have it any more.
        """
        self._state = state
        self._granted = granted
        self._refused = refused
        self._released = released
        self._forbidden = forbidden
        self._pending: dict[BackendKey, _PendingBackend] = {}
        self._known: dict[BackendKey, BackendSubscription] = {}
        self._requested: Counter[SubscriberId] = Counter()
        """Pending requests of each subscriber."""

    @property
    def idle(self) -> bool:
        return not self._pending and not self._known and not self._requested

    @property
    def pending(self) -> int:
        """The number of backend subscriptions that the data cluster has not granted or refused."""
        return len(self._pending)

    def pending_of(self, subscriber: SubscriberId) -> int:
        """The number of requests of a subscriber that the data cluster has not answered."""
        return self._requested[subscriber]

    def request(self, channel: ChannelName, request: SubscriptionRequest) -> None:
        values = bind_user(self._state.bound.get(channel.lower(), ()), request.parameters, request.subscriber)
        if isinstance(values, ForeignUser):
            self._refused(request, Code.FOREIGN_USER, f"channel {channel}: {values}")
            return
        request = replace(request, parameters=values)
        key = key_of(channel, values, request.subscriber if request.alone else None)
        if (backend := self._known.get(key)) is not None and backend.held:
            self._attach(request, backend)
            return
        self._ask(key, channel, values, request.subscriber).requests.append(request)
        self._requested[request.subscriber] += 1

    def _ask(
        self, key: BackendKey, channel: ChannelName, parameters: dict[str, Any], user: SubscriberId
    ) -> _PendingBackend:
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _PendingBackend(channel, parameters, user)
            self._state.effects.append(RequestBackend(key, channel, parameters, user))
        return pending

    def on_granted(self, event: BackendGranted) -> None:
        pending = self._pending.pop(event.key, None)
        self._state.bound[event.channel.lower()] = event.bound
        requests = [request for request in self._take_all(pending) if self._is_open(request)]
        others: list[SubscriptionRequest] = []
        if pending is not None and event.bound:
            others = [request for request in requests if request.subscriber != pending.user]
            requests = [self._bound(request, event) for request in requests if request.subscriber == pending.user]
        self._grant(event, requests)
        if pending is not None and event.bound and pending.again is not None:
            self._end_others(pending.again, pending.user)
        for request in others:
            self.request(event.channel, request)

    def _bound(self, request: SubscriptionRequest, event: BackendGranted) -> SubscriptionRequest:
        """The request with the name of its subscriber in the bound parameters."""
        return replace(request, parameters=request.parameters | dict.fromkeys(event.bound, str(request.subscriber)))

    def _end_others(self, backend: BackendSubscription, owner: SubscriberId) -> None:
        """End the other subscribers' subscriptions: the channel was recreated with a bound parameter."""
        for name in [name for name in backend.frontends if name != owner]:
            self._forbidden(name, backend)

    def _grant(self, event: BackendGranted, requests: list[SubscriptionRequest]) -> None:
        backend = self._state.backends.get(event.subscription)
        if backend is None:
            if not requests:
                self._state.effects.append(ReleaseBackend(event.channel, event.subscription))
                return
            backend = self._create(event, requests)
        backend.held, backend.requested_in_epoch = True, None
        if requests or backend.frontends:
            for key in {event.key, *(key_of(event.channel, request.parameters) for request in requests)}:
                backend.keys.add(key)
                self._known[key] = backend
        # An execution between the grant and this event may have been announced before the broker knew the id.
        self._state.pulls[backend.id] = None
        for request in requests:
            self._attach(request, backend)

    def _create(self, event: BackendGranted, requests: list[SubscriptionRequest]) -> BackendSubscription:
        """Create a backend subscription. The first fetch starts at the oldest cursor that a session will need.

        No other session uses the subscription yet. An adopted subscriber may stay offline: its results are fetched when
        it logs in.
        """
        cursors = [request.after for request in requests if request.expects_session and request.after is not None]
        start = min([event.cursor, *(cursor for cursor in cursors if cursor.epoch == event.cursor.epoch)])
        name = self._state.spellings.get(event.channel.lower(), event.channel)
        rate = MovingAverage(self._state.limits.rate_window_s, self._state.now_s)
        backend = BackendSubscription(event.subscription, name, start, event.cursor, start, rate=rate)
        self._state.backends[backend.id] = backend
        return backend

    def _is_open(self, request: SubscriptionRequest) -> bool:
        session = None if request.requester is None else request.requester.session
        return session is None or session in self._state.sessions

    def _take_all(self, pending: _PendingBackend | None) -> list[SubscriptionRequest]:
        """The requests for a backend subscription that the data cluster has answered."""
        return [] if pending is None else self._take_if(pending, lambda request: True)

    def _take_if(
        self, pending: _PendingBackend, is_taken: Callable[[SubscriptionRequest], bool]
    ) -> list[SubscriptionRequest]:
        taken = [request for request in pending.requests if is_taken(request)]
        if taken:
            pending.requests = [request for request in pending.requests if not is_taken(request)]
        for request in taken:
            self._requested[request.subscriber] -= 1
            if not self._requested[request.subscriber]:
                del self._requested[request.subscriber]
        return taken

    def on_refused(self, event: BackendRefused) -> None:
        """Refuse the requests. Other subscribers than the refused user get a request of their own."""
        pending = self._pending.pop(event.key, None)
        backend = self._known.get(event.key)
        if backend is not None and not backend.held and event.code == Code.BAD_PARAMETER:
            self._report_end(backend, event.message)
        if pending is None:
            return
        is_personal = event.code in _OF_ANOTHER_USER
        for request in self._take_all(pending):
            if is_personal and request.subscriber != pending.user and not request.alone:
                self.request(pending.channel, replace(request, alone=True))
            else:
                self._refused(request, event.code, event.message)
        if event.code == Code.FOREIGN_USER and pending.again is not None:
            self._forbidden(pending.user, pending.again)
            if pending.again.frontends:
                self.request_again(pending.again)

    def _report_end(self, backend: BackendSubscription, reason: str) -> None:
        """Report to every session that the data cluster has ended this subscription and refuses it from now on."""
        for subscriber in backend.frontends:
            session = self._state.subscribers[subscriber].session
            if session is not None:
                self._state.send(session, Gap(backend.id, str(backend.position), reason))

    def request_again(self, backend: BackendSubscription) -> None:
        """Request a subscription again: its channel was recreated, or another process released this broker's hold.

        Until the data cluster grants the subscription again, the broker does not fetch its results and attaches no
        other subscriber to it.
        """
        backend.held = False
        self._state.bound.pop(backend.channel.lower(), None)  # the channel may have other bound parameters now
        for name, frontend in backend.frontends.items():
            key = key_of(backend.channel, frontend.parameters)
            self._ask(key, backend.channel, frontend.parameters, name).again = backend
            return

    def withdraw(self, subscriber: SubscriberId, migration: str | None = None) -> None:
        """Drop the pending requests of a subscriber; with `migration`, only those of that migration."""

        def is_withdrawn(request: SubscriptionRequest) -> bool:
            return request.subscriber == subscriber and migration in (None, request.migration)

        for pending in self._pending.values():
            self._take_if(pending, is_withdrawn)

    def expire_requests(self) -> None:
        """Refuse subscribers' requests that are older than `request_s`. Requests of the coordinator keep waiting."""
        limit_s = self._state.now_s - self._state.limits.request_s

        def is_late(request: SubscriptionRequest) -> bool:
            return request.requester is not None and request.since_s < limit_s

        for pending in self._pending.values():
            for request in self._take_if(pending, is_late):
                self._refused(request, Code.NOT_READY, "the data cluster does not answer at the moment; try again")

    def _attach(self, request: SubscriptionRequest, backend: BackendSubscription) -> None:
        subscriber = self._state.subscriber(request.subscriber)
        frontend = subscriber.frontends.get(backend.id)
        if frontend is None:
            start = backend.position if request.after is None else request.after
            frontend = FrontendSubscription(backend, request.parameters, start)
            subscriber.frontends[backend.id] = frontend
            backend.frontends[subscriber.id] = frontend
        self._granted(request, frontend)

    def detach(self, subscriber: HostedSubscriber, frontend: FrontendSubscription) -> None:
        """Remove a frontend subscription; with the last one, release the backend subscription [BAD §3.1]."""
        backend = frontend.backend
        subscriber.frontends.pop(backend.id, None)
        backend.frontends.pop(subscriber.id, None)
        if backend.frontends or self._state.backends.pop(backend.id, None) is None:
            return
        for key in backend.keys:
            self._known.pop(key, None)
        self._state.cache.forget(backend)
        self._state.pulls.pop(backend.id, None)
        self._released(backend)
        self._state.effects.append(ReleaseBackend(backend.channel, backend.id))
