"""The events of a broker, reported by its driver (asyncio or a simulator). The core has no clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.broker.hosted import BackendKey, Requester, SessionId
from tocsin.broker.message_encoding import Encoding
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code
from tocsin.wire.link import FromCoordinator, Webhook


class Event:
    __slots__ = ()


# -- subscribers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoginRequested(Event):
    """A subscriber with a valid token requests a session; a REST call (no session in `requester`) only an answer."""

    requester: Requester
    subscriber: SubscriberId
    request: int
    resume: dict[SubscriptionId, str] = field(default_factory=dict)
    encoding: Encoding = Encoding.JSON
    expires_s: float | None = None
    migration: str | None = None
    is_webhook: bool = False


@dataclass(frozen=True, slots=True)
class RequestReceived(Event):
    """A subscriber sent any request except a login."""

    requester: Requester
    subscriber: SubscriberId
    request: wire.FromSubscriber


@dataclass(frozen=True, slots=True)
class WebhookChangeRequested(Event):
    requester: Requester
    subscriber: SubscriberId
    webhook: Webhook | None
    """None removes the webhook."""


@dataclass(frozen=True, slots=True)
class SessionBlocked(Event):
    """The connection's queue holds more than its limit."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class SessionDrained(Event):
    """The connection has room again; also the answer to `AwaitDrain`."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class SessionLost(Event):
    """The connection has ended, whichever side closed it."""

    session: SessionId
    reason: str


# -- the data cluster --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackendGranted(Event):
    key: BackendKey
    channel: ChannelName
    subscription: SubscriptionId
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class BackendRefused(Event):
    """The data cluster refused the request. The driver does not report an unreachable data cluster: it retries."""

    key: BackendKey
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ExecutionAnnounced(Event):
    channel: ChannelName
    epoch: int
    execution: int
    subscriptions: list[SubscriptionId]
    finished_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProgressAnnounced(Event):
    channels: dict[ChannelName, Cursor]


@dataclass(frozen=True, slots=True)
class AnnouncementsMissed(Event):
    """The announcement stream started anew or had a gap, so the broker must fetch from its positions."""


@dataclass(frozen=True, slots=True)
class HoldsMissing(Event):
    """The data cluster granted these subscriptions earlier but no longer lists this broker as their holder."""

    subscriptions: list[SubscriptionId]


@dataclass(frozen=True, slots=True)
class GapFound(Event):
    fetch: int
    subscription: SubscriptionId
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class ResultsFetched(Event):
    """Some results of one subscription, in order. A fetch returns them in pieces that fit a session's queue."""

    fetch: int
    subscription: SubscriptionId
    epoch: int
    offsets: list[int]
    rows: list[bytes]


@dataclass(frozen=True, slots=True)
class FetchEnded(Event):
    fetch: int
    upto: Cursor


@dataclass(frozen=True, slots=True)
class FetchFailed(Event):
    fetch: int
    code: str

    @property
    def unknown(self) -> bool:
        """The data cluster answered that it does not know the subscription or its channel."""
        return self.code in (Code.UNKNOWN_SUBSCRIPTION, Code.UNKNOWN_CHANNEL)


# -- the coordinator ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkOpened(Event):
    pass


@dataclass(frozen=True, slots=True)
class LinkLost(Event):
    pass


@dataclass(frozen=True, slots=True)
class CoordinatorMessageReceived(Event):
    message: FromCoordinator


# -- time --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ticked(Event):
    """Time has passed; the driver reports it about twice a second."""


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """The process is stopping: close every session."""
