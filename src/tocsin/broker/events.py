"""The events of a broker, reported by its driver (asyncio or a simulator). The core has no clock of its own."""

from __future__ import annotations

import msgspec

from tocsin.broker.hosted import BackendKey, Requester, SessionId
from tocsin.broker.message_encoding import Encoding
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriberId, SubscriptionId
from tocsin.model.permission import ALL_RIGHTS, Rights
from tocsin.wire import session as wire
from tocsin.wire.cluster import RefusedRecord
from tocsin.wire.errors import Code
from tocsin.wire.link import FromCoordinator, Webhook


class Event(msgspec.Struct, frozen=True):
    pass


# -- subscribers -------------------------------------------------------------------------------------------------------


class LoginRequested(Event, frozen=True):
    """A subscriber with a valid token requests a session; a REST call (no session in `requester`) only an answer."""

    requester: Requester
    subscriber: SubscriberId
    request: int
    resume: dict[SubscriptionId, str] = {}
    encoding: Encoding = Encoding.JSON
    expires_s: float | None = None
    migration: str | None = None
    is_webhook: bool = False
    rights: Rights = ALL_RIGHTS


class RequestReceived(Event, frozen=True):
    """A subscriber sent any request except a login."""

    requester: Requester
    subscriber: SubscriberId
    request: wire.FromSubscriber
    rights: Rights = ALL_RIGHTS


class WebhookChangeRequested(Event, frozen=True):
    requester: Requester
    subscriber: SubscriberId
    webhook: Webhook | None
    """None removes the webhook."""


class SessionBlocked(Event, frozen=True):
    """The connection's queue holds more than its limit."""

    session: SessionId


class SessionDrained(Event, frozen=True):
    """The connection has room again; also the answer to `AwaitDrain`."""

    session: SessionId


class SessionLost(Event, frozen=True):
    """The connection has ended, whichever side closed it."""

    session: SessionId
    reason: str


class SessionRevoked(Event, frozen=True):
    """The token that opened the session is revoked."""

    session: SessionId


# -- the data cluster --------------------------------------------------------------------------------------------------


class BackendGranted(Event, frozen=True):
    key: BackendKey
    channel: ChannelName
    subscription: SubscriptionId
    cursor: Cursor
    bound: tuple[str, ...] = ()
    """The channel's parameters that are bound to the session's user."""


class BackendRefused(Event, frozen=True):
    """The data cluster refused the request. The driver does not report an unreachable data cluster: it retries."""

    key: BackendKey
    code: str
    message: str


class ExecutionAnnounced(Event, frozen=True):
    channel: ChannelName
    epoch: int
    execution: int
    subscriptions: list[SubscriptionId]
    finished_s: float = 0.0
    bytes_of: list[int] = []
    """The size of each subscription's results, as JSON; empty if it is not known."""
    is_last_part: bool = True
    """False for a part of a large execution that further parts follow."""


class ProgressAnnounced(Event, frozen=True):
    channels: dict[ChannelName, Cursor]


class AnnouncementsMissed(Event, frozen=True):
    """The announcement stream started anew or had a gap, so the broker must fetch from its positions."""


class HoldsMissing(Event, frozen=True):
    """The data cluster granted these subscriptions earlier but no longer lists this broker as their holder."""

    subscriptions: list[SubscriptionId]


class GapFound(Event, frozen=True):
    fetch: int
    subscription: SubscriptionId
    cursor: Cursor


class ResultsFetched(Event, frozen=True):
    """Some results of one subscription, in order. A fetch returns them in pieces that fit a session's queue."""

    fetch: int
    subscription: SubscriptionId
    epoch: int
    offsets: list[int]
    rows: list[bytes]
    size_bytes: int = 0
    """The bytes that were received: rows with their envelopes. 0: the rows alone."""


class FetchEnded(Event, frozen=True):
    fetch: int
    upto: Cursor


class FetchFailed(Event, frozen=True):
    fetch: int
    code: str

    @property
    def unknown(self) -> bool:
        """The data cluster answered that it does not know the subscription or its channel."""
        return self.code in (Code.UNKNOWN_SUBSCRIPTION, Code.UNKNOWN_CHANNEL)


class UpdatesStored(Event, frozen=True):
    """The data cluster has the records of a `StoreUpdates` on disk, except the refused ones."""

    batch: int
    refused: list[RefusedRecord] = []


class UpdatesFailed(Event, frozen=True):
    """The data cluster refused a `StoreUpdates` as a whole, or did not answer: then its records may be stored."""

    batch: int
    code: str
    message: str
    retry_after_s: float | None = None


# -- the coordinator ---------------------------------------------------------------------------------------------------


class LinkOpened(Event, frozen=True):
    pass


class LinkLost(Event, frozen=True):
    pass


class CoordinatorMessageReceived(Event, frozen=True):
    message: FromCoordinator


# -- time --------------------------------------------------------------------------------------------------------------


class Ticked(Event, frozen=True):
    """Time has passed; the driver reports it about twice a second."""


class StopRequested(Event, frozen=True):
    """The process is stopping: close every session."""
