"""What happened to a broker. The driver (asyncio or a simulator) makes these; nothing here looks at a clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.broker.encodings import Encoding
from tocsin.broker.entities import Asker, Key, SessionId
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code
from tocsin.wire.link import FromCoordinator, Webhook

# -- subscribers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoginRequested:
    """Somebody whose token is good wants a session, or (without `session` in the asker) only an answer."""

    asker: Asker
    subscriber: SubscriberId
    request: int
    resume: dict[SubscriptionId, str] = field(default_factory=dict)
    encoding: Encoding = Encoding.JSON
    expires_s: float | None = None
    migration: str | None = None
    is_webhook: bool = False


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """Anything but a login."""

    asker: Asker
    subscriber: SubscriberId
    request: wire.FromSubscriber


@dataclass(frozen=True, slots=True)
class WebhookChosen:
    asker: Asker
    subscriber: SubscriberId
    webhook: Webhook | None
    """None to have it removed."""


@dataclass(frozen=True, slots=True)
class SessionBlocked:
    """Its connection has more to send than it is allowed to hold back."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class SessionDrained:
    """Its connection takes more again; also the answer to `AskDrained`."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The connection is gone, whoever ended it."""

    session: SessionId
    reason: str


# -- the data cluster --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackendGranted:
    key: Key
    channel: ChannelName
    subscription: SubscriptionId
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class BackendRefused:
    """Not because the data cluster is away: that is waited for."""

    key: Key
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ExecutionAnnounced:
    channel: ChannelName
    epoch: int
    execution: int
    subscriptions: list[SubscriptionId]
    finished_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProgressAnnounced:
    channels: dict[ChannelName, Cursor]


@dataclass(frozen=True, slots=True)
class AnnouncementsMissed:
    """The stream began anew or had a gap: only the positions say what is missing."""


@dataclass(frozen=True, slots=True)
class HoldsMissing:
    """The data cluster does not know that this broker holds these, though it said so once."""

    subscriptions: list[SubscriptionId]


@dataclass(frozen=True, slots=True)
class GapFound:
    fetch: int
    subscription: SubscriptionId
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class ResultsFetched:
    """Some results of one subscription, in order; a fetch brings them in pieces that fit a session's queue."""

    fetch: int
    subscription: SubscriptionId
    epoch: int
    offsets: list[int]
    rows: list[bytes]


@dataclass(frozen=True, slots=True)
class FetchEnded:
    fetch: int
    upto: Cursor


@dataclass(frozen=True, slots=True)
class FetchFailed:
    fetch: int
    code: str

    @property
    def unknown(self) -> bool:
        """The data cluster is there and does not know what was asked for."""
        return self.code in (Code.UNKNOWN_SUBSCRIPTION, Code.UNKNOWN_CHANNEL)


# -- the coordinator ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkOpened:
    pass


@dataclass(frozen=True, slots=True)
class LinkLost:
    pass


@dataclass(frozen=True, slots=True)
class CoordinatorSaid:
    message: FromCoordinator


# -- time --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; about twice a second."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The process ends: say goodbye to everybody."""


Event = (
    LoginRequested | RequestReceived | WebhookChosen | SessionBlocked | SessionDrained | SessionLost
    | BackendGranted | BackendRefused | ExecutionAnnounced | ProgressAnnounced | AnnouncementsMissed
    | HoldsMissing | GapFound | ResultsFetched | FetchEnded | FetchFailed
    | LinkOpened | LinkLost | CoordinatorSaid | Ticked | StopRequested
)  # fmt: skip
