"""The state that all parts of a broker share, and the methods that send results and messages to sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from tocsin.broker.effects import AnswerCall, CloseSession, Effect, SendResults, SendToCoordinator, SendToSessions
from tocsin.broker.hosted import BackendSubscription, HostedSession, HostedSubscriber, Requester, SessionId
from tocsin.broker.load import LoadMeter
from tocsin.broker.message_encoding import MessageEncoder
from tocsin.broker.result_batch import Batch
from tocsin.broker.result_cache import ResultCache
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.rate import WINDOW_S
from tocsin.wire import link
from tocsin.wire import session as wire
from tocsin.wire.errors import Code


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of the broker's logic."""

    cache_bytes: Annotated[
        int, "Results kept for subscribers that connect late or reconnect, in bytes over all subscriptions."
    ] = 64 << 20
    queue_bytes: Annotated[int, "Bytes that may wait in the connection of one session before it counts as slow."] = (
        256 << 10
    )
    """A session that is catching up gets at most this many bytes per step."""
    slow: Annotated[
        str,
        "What happens to a slow session: `drop` (it lags and catches up later) or `disconnect` (close code 4002).",
    ] = "drop"
    catch_ups: Annotated[int, "Fetches of old results from the data cluster at the same time."] = 8
    progress_s: Annotated[float, "Longest silence of a healthy session in seconds."] = 15.0
    request_s: float = 10.0
    """A `subscribe` or `update` is refused with `not_ready` if the data cluster does not answer within this time."""
    stored_s: float = 2.0
    """A `subscribe` request is answered with `stored: false` if the coordinator does not confirm within this time."""
    subscriptions: Annotated[int, "Most subscriptions of one subscriber, pending requests included."] = 10_000
    parameter_bytes: Annotated[int, "Largest parameter values of one subscription, in bytes of JSON."] = 1 << 10
    update_bytes: Annotated[int, "Largest record that a subscriber may store about itself, in bytes."] = 4 << 10
    updates: Annotated[int, "Most updates that wait for the data cluster, over all subscribers."] = 20_000
    rate_window_s: Annotated[
        float, "Time constant in seconds of the loads that the broker reports: traffic this old counts for 1/e."
    ] = WINDOW_S
    """The rates λ use the same time constant."""


@dataclass(slots=True)
class BrokerState:
    broker: BrokerId
    incarnation: str
    limits: Limits
    jitter: Callable[[], float]
    """Returns a number between 0 and 1. The driver passes it in because the core has no randomness of its own."""
    has_coordinator: bool = True
    cache: ResultCache = field(init=False)
    encode: MessageEncoder = field(init=False)
    load: LoadMeter = field(init=False)
    now_s: float = 0.0
    effects: list[Effect] = field(default_factory=list)
    """Effects of the event that is being handled."""
    subscribers: dict[SubscriberId, HostedSubscriber] = field(default_factory=dict)
    sessions: dict[SessionId, HostedSession] = field(default_factory=dict)
    backends: dict[SubscriptionId, BackendSubscription] = field(default_factory=dict)
    pulls: dict[SubscriptionId, None] = field(default_factory=dict)
    """Backend subscriptions to fetch although no execution was announced for them."""
    spellings: dict[str, ChannelName] = field(default_factory=dict)
    """Channel name in lower case → the name as it was declared."""
    bound: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Channel name in lower case → its parameters that are bound to the session's user, as the last grant named them.
    A channel without a grant is missing."""
    adopting: dict[SubscriberId, int] = field(default_factory=dict)
    """Adopted subscriber → number of its subscriptions that the data cluster has not granted yet."""
    early_unsubscribes: dict[SubscriberId, set[SubscriptionId]] = field(default_factory=dict)
    """Adopted subscriber → subscriptions it removed before the data cluster granted them."""
    places: dict[SubscriberId, tuple[float, float]] = field(default_factory=dict)
    """The latest position of each subscriber that reported one since the last load report."""

    def __post_init__(self) -> None:
        self.cache = ResultCache(self.limits.cache_bytes)
        self.encode = MessageEncoder(self.broker, self.incarnation)
        self.load = LoadMeter.fresh(self.limits.rate_window_s)

    def subscriber(self, name: SubscriberId) -> HostedSubscriber:
        """Return the subscriber; create it if this broker does not host it yet."""
        subscriber = self.subscribers.get(name)
        if subscriber is None:
            subscriber = self.subscribers[name] = HostedSubscriber(name)
        return subscriber

    def forget_if_empty(self, subscriber: HostedSubscriber) -> None:
        """Remove a subscriber without subscriptions, session and webhook.

        A subscriber whose adoption is pending stays: the broker must name it when it registers.
        """
        has_state = subscriber.frontends or subscriber.session is not None or subscriber.webhook is not None
        if not has_state and subscriber.id not in self.adopting:
            self.subscribers.pop(subscriber.id, None)
            self.places.pop(subscriber.id, None)

    def send_to_coordinator(self, message: link.FromBroker) -> None:
        if self.has_coordinator:
            self.effects.append(SendToCoordinator(message))

    # -- to subscribers --------------------------------------------------------------------------------------------

    def send(self, session: HostedSession, message: wire.ToSubscriber) -> None:
        self.effects.append(SendToSessions((session.id,), message, self.encode(message, session.encoding)))

    def answer(self, requester: Requester, message: wire.ToSubscriber) -> None:
        if requester.call is not None:
            self.effects.append(AnswerCall(requester.call, message))
        elif requester.session is not None and requester.session in self.sessions:
            self.send(self.sessions[requester.session], message)

    def refuse(
        self, requester: Requester, request: int, code: Code | str, message: str, retry_after_s: float | None = None
    ) -> None:
        self.answer(requester, wire.Refused(request, str(code), message, retry_after_s))

    def send_live(self, backend: BackendSubscription, batch: Batch) -> None:
        """Send a cached batch to every live session of the backend subscription."""
        for encoding, sessions in backend.live.items():
            data = self.cache.encoded(batch, encoding)
            self.effects.append(SendResults(tuple(sessions), batch, data))
            self._count(batch, data, len(sessions))

    def send_results(self, session: HostedSession, batch: Batch) -> int:
        """Send a batch to one session that is catching up; return its size in bytes."""
        data = self.cache.encoded(batch, session.encoding)
        self.effects.append(SendResults((session.id,), batch, data))
        self._count(batch, data, 1, catches_up=True)
        return len(data) or batch.raw_bytes

    def _count(self, batch: Batch, data: bytes, sessions: int, *, catches_up: bool = False) -> None:
        sent_bytes, row_bytes = (len(data) or batch.raw_bytes) * sessions, batch.raw_bytes * sessions
        self.load.delivered(sent_bytes, row_bytes, len(batch) * sessions, self.now_s, catches_up=catches_up)

    def close(self, session: HostedSession, reason: str, message: str) -> None:
        """Send the reason and close. The driver reports `SessionLost` later, but the broker does not wait for it."""
        _, reconnect = wire.CLOSE_CODES[reason]
        self.send(session, wire.Closing(reason, message, reconnect))
        self.effects.append(CloseSession(session.id, reason))
