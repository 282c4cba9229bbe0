"""The tables all parts of a broker share, and the two ways anything leaves it: as an effect, or as a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from tocsin.broker.batches import Batch
from tocsin.broker.cache import ResultCache
from tocsin.broker.effects import AnswerCall, CloseSession, Deliver, Effect, SendMessage
from tocsin.broker.encodings import MessageEncoder
from tocsin.broker.entities import Asker, Backend, Frontend, Session, SessionId, Subscriber
from tocsin.broker.load import WINDOW_S, LoadMeter
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code


@dataclass(frozen=True, slots=True)
class Limits:
    """What can be set about a broker's logic."""

    cache_bytes: Annotated[
        int, "Results kept for subscribers that connect late or reconnect, in bytes over all subscriptions."
    ] = 64 << 20
    queue_bytes: Annotated[int, "Bytes that may wait in the connection of one session before it counts as slow."] = (
        256 << 10
    )
    """A catching-up session gets at most this much at a time."""
    slow: Annotated[
        str,
        "What happens to a slow session: `drop` (it lags and catches up later) or `disconnect` (close code 4002).",
    ] = "drop"
    catch_ups: Annotated[int, "Fetches of old results from the data cluster at the same time."] = 8
    progress_s: Annotated[float, "Longest silence of a healthy session in seconds."] = 15.0
    request_s: float = 10.0
    """How long a subscriber waits for the data cluster before it is told to try again."""
    stored_s: float = 2.0
    """How long it waits for the coordinator's disk before it is told that it was not stored yet."""
    subscriptions: Annotated[int, "Most subscriptions of one subscriber."] = 10_000
    rate_window_s: Annotated[
        float, "Time constant in seconds of the loads that the broker reports: traffic this old counts for 1/e."
    ] = WINDOW_S
    """Also of the rates λ."""


@dataclass(slots=True)
class World:
    broker: BrokerId
    incarnation: str
    limits: Limits
    jitter: Callable[[], float]
    """Between 0 and 1; randomness comes from outside."""
    cache: ResultCache = field(init=False)
    encode: MessageEncoder = field(init=False)
    load: LoadMeter = field(init=False)
    now_s: float = 0.0
    out: list[Effect] = field(default_factory=list)
    subscribers: dict[SubscriberId, Subscriber] = field(default_factory=dict)
    sessions: dict[SessionId, Session] = field(default_factory=dict)
    backends: dict[SubscriptionId, Backend] = field(default_factory=dict)
    pulls: dict[SubscriptionId, None] = field(default_factory=dict)
    """Backend subscriptions whose results are to be pulled, for a reason other than news."""
    spellings: dict[str, ChannelName] = field(default_factory=dict)
    """Channel names in small letters → as they were declared."""

    def __post_init__(self) -> None:
        self.cache = ResultCache(self.limits.cache_bytes)
        self.encode = MessageEncoder(self.broker, self.incarnation)
        self.load = LoadMeter.fresh(self.limits.rate_window_s)

    def subscriber(self, name: SubscriberId) -> Subscriber:
        found = self.subscribers.get(name)
        if found is None:
            found = self.subscribers[name] = Subscriber(name)
        return found

    def forget_if_empty(self, subscriber: Subscriber) -> None:
        if not subscriber.frontends and subscriber.session is None and subscriber.webhook is None:
            self.subscribers.pop(subscriber.id, None)

    # -- to subscribers --------------------------------------------------------------------------------------------

    def send(self, session: Session, message: wire.ToSubscriber) -> None:
        self.out.append(SendMessage((session.id,), message, self.encode(message, session.encoding)))

    def answer(self, asker: Asker, message: wire.ToSubscriber) -> None:
        if asker.call is not None:
            self.out.append(AnswerCall(asker.call, message))
        elif asker.session is not None and asker.session in self.sessions:
            self.send(self.sessions[asker.session], message)

    def refuse(
        self, asker: Asker, request: int, code: Code | str, message: str, retry_after_s: float | None = None
    ) -> None:
        self.answer(asker, wire.Refused(request, str(code), message, retry_after_s))

    def deliver_live(self, backend: Backend, batch: Batch) -> None:
        """To everybody who is waiting for nothing older. The batch is in the cache."""
        for encoding, sessions in backend.live.items():
            data = self.cache.encoded(batch, encoding)
            self.out.append(Deliver(tuple(sessions), batch, data))
            self._count(batch, data, len(sessions))

    def deliver(self, session: Session, batch: Batch) -> int:
        """To one that catches up; returns how many bytes that is."""
        data = self.cache.encoded(batch, session.encoding)
        self.out.append(Deliver((session.id,), batch, data))
        self._count(batch, data, 1)
        return len(data) or batch.raw_bytes

    def _count(self, batch: Batch, data: bytes, sessions: int) -> None:
        size_bytes = len(data) or batch.raw_bytes
        self.load.delivered(size_bytes * sessions, len(batch) * sessions, self.now_s)

    def close(self, session: Session, reason: str, message: str) -> None:
        """Say why and close; the driver reports `SessionLost` when the connection is gone, but nothing waits for it."""
        _, reconnect = wire.CLOSE_CODES[reason]
        self.send(session, wire.Closing(reason, message, reconnect))
        self.out.append(CloseSession(session.id, reason))


def held(subscription: SubscriptionId, frontend: Frontend) -> wire.Held:
    """How a subscriber is told about one of its subscriptions."""
    stands = frontend.sent if frontend.sent is not None else frontend.acked
    if frontend.live:
        stands = frontend.backend.position
    return wire.Held(subscription, frontend.backend.channel, frontend.parameters, str(stands))
