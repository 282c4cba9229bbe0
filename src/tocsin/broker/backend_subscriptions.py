"""The backend subscriptions of this broker: requested once for all subscribers, released with the last frontend.

The data cluster assigns the ids, because canonical parameters need the channel's signature. Subscribers therefore wait
for its answer. The broker requests two spellings of the same values separately; both are granted the same id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tocsin.broker.effects import ReleaseBackend, RequestBackend
from tocsin.broker.events import BackendGranted, BackendRefused
from tocsin.broker.hosted import BackendKey, BackendSubscription, FrontendSubscription, HostedSubscriber, Requester
from tocsin.broker.state import BrokerState
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriberId
from tocsin.model.rate import MovingAverage
from tocsin.wire.errors import Code

_encode = msgspec.json.Encoder(order="deterministic").encode


def key_of(channel: ChannelName, parameters: dict[str, Any]) -> BackendKey:
    return channel.lower(), _encode(parameters)


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

    @property
    def expects_session(self) -> bool:
        """True if the subscriber has a session or gets one by a migration. An adopted subscriber may stay offline."""
        return self.requester is not None or self.migration is not None


@dataclass(slots=True)
class _PendingBackend:
    channel: ChannelName
    parameters: dict[str, Any]
    requests: list[SubscriptionRequest] = field(default_factory=list)


class BackendSubscriptions:
    def __init__(
        self,
        state: BrokerState,
        granted: Callable[[SubscriptionRequest, FrontendSubscription], None],
        refused: Callable[[SubscriptionRequest, str, str], None],
        released: Callable[[BackendSubscription], None],
    ) -> None:
        """`granted` and `refused` receive the outcome of each request; `released` each released subscription."""
        self._state = state
        self._granted = granted
        self._refused = refused
        self._released = released
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
        key = key_of(channel, request.parameters)
        if (backend := self._known.get(key)) is not None and backend.held:
            self._attach(request, backend)
            return
        self._ask(key, channel, request.parameters).requests.append(request)
        self._requested[request.subscriber] += 1

    def _ask(self, key: BackendKey, channel: ChannelName, parameters: dict[str, Any]) -> _PendingBackend:
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _PendingBackend(channel, parameters)
            self._state.effects.append(RequestBackend(key, channel, parameters))
        return pending

    def on_granted(self, event: BackendGranted) -> None:
        requests = [request for request in self._take_requests(event.key) if self._is_open(request)]
        backend = self._state.backends.get(event.subscription)
        if backend is None:
            if not requests:
                self._state.effects.append(ReleaseBackend(event.channel, event.subscription))
                return
            backend = self._create(event, requests)
        backend.held, backend.requested_in_epoch = True, None
        if requests or backend.frontends:
            backend.keys.add(event.key)
            self._known[event.key] = backend
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

    def _take_requests(self, key: BackendKey) -> list[SubscriptionRequest]:
        """The requests for a backend subscription that the data cluster has answered."""
        pending = self._pending.pop(key, None)
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
        for request in self._take_requests(event.key):
            self._refused(request, event.code, event.message)

    def request_again(self, backend: BackendSubscription) -> None:
        """Request a subscription again: its channel was recreated, or another process released this broker's hold.

        Until the data cluster grants the subscription again, the broker does not fetch its results and attaches no
        other subscriber to it.
        """
        backend.held = False
        for frontend in backend.frontends.values():
            self._ask(key_of(backend.channel, frontend.parameters), backend.channel, frontend.parameters)
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
