"""The records of a broker: subscribers, their sessions, frontend subscriptions and backend subscriptions.

These classes hold values and references only; the other modules change them. They are kept small because a broker holds
tens of thousands of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NewType

from tocsin.broker.message_encoding import Encoding
from tocsin.broker.result_batch import Batch
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriberId, SubscriptionId
from tocsin.model.permission import ALL_RIGHTS, Rights
from tocsin.model.rate import MovingAverage
from tocsin.wire.link import Webhook

SessionId = NewType("SessionId", int)
CallId = NewType("CallId", int)
BackendKey = tuple[str, bytes]
"""(channel in lower case, encoded parameters). Two spellings of the same values give two keys for one subscription."""


@dataclass(slots=True, eq=False)
class BackendSubscription:
    """A backend subscription that this broker holds at the data cluster [BAD §3.1]."""

    id: SubscriptionId
    channel: ChannelName
    position: Cursor
    """This broker has fetched every result before this cursor."""
    live_from: Cursor
    """The position of the channel when this broker began to hold the subscription. λ does not count results before it:
    they are a backlog."""
    kept_from: Cursor
    """The cache holds every result in [kept_from, position)."""
    keys: set[BackendKey] = field(default_factory=set)
    frontends: dict[SubscriberId, FrontendSubscription] = field(default_factory=dict)
    live: dict[Encoding, dict[SessionId, None]] = field(default_factory=dict)
    """Sessions that have received every result before `position`; they get new results as soon as they arrive."""
    ahead: dict[SessionId, FrontendSubscription] = field(default_factory=dict)
    """Sessions whose cursor is after `position`: they were at a broker that fetched faster."""
    batches: list[Batch] = field(default_factory=list)
    fetch: int | None = None
    """Number of the running live fetch that includes this subscription."""
    held: bool = True
    """False after the data cluster reported that this broker does not hold the subscription.

    The broker then requests the subscription again. It does not fetch its results until then, because a refused fetch
    would block other subscriptions.
    """
    requested_in_epoch: int | None = None
    """Channel epoch in which the broker last requested the subscription again. A later one may accept the values."""
    rate: MovingAverage = field(default_factory=MovingAverage)
    """λ_k in bytes/s, as they are fetched."""


@dataclass(slots=True, eq=False)
class FrontendSubscription:
    """One subscriber's subscription to one backend subscription."""

    backend: BackendSubscription
    parameters: dict[str, Any]
    """The parameter values as the subscriber spelled them."""
    acked: Cursor
    """The subscriber has acknowledged every result before this cursor. A session that sends no cursor starts here."""
    sent: Cursor | None = None
    """Position of a session that is catching up; None while the session is live or the subscriber is offline."""
    live: bool = False
    reports_recovery: bool = False
    """True if the broker sends `recovered` when the session has caught up."""
    has_gap: bool = False
    """True if results were lost during this catch-up, so that `recovered` is sent with the value false."""
    requested_here: bool = False
    """True if the subscriber requested it at this broker, so that the coordinator may not know it yet."""


@dataclass(slots=True, eq=False)
class HostedSubscriber:
    id: SubscriberId
    frontends: dict[SubscriptionId, FrontendSubscription] = field(default_factory=dict)
    session: HostedSession | None = None
    webhook: Webhook | None = None


@dataclass(slots=True, eq=False)
class HostedSession:
    """A logged-in connection of a subscriber."""

    id: SessionId
    subscriber: HostedSubscriber
    encoding: Encoding
    is_webhook: bool = False
    rights: Rights = ALL_RIGHTS
    """Subscriptions of channels that the session's token does not permit are not sent."""
    writable: bool = True
    """False while the connection's queue is full; the session then gets no live results and catches up later."""
    behind: dict[SubscriptionId, FrontendSubscription] = field(default_factory=dict)
    """Subscriptions that are catching up."""


@dataclass(frozen=True, slots=True)
class Requester:
    """The receiver of an answer: an open session or a REST call."""

    session: SessionId | None = None
    call: CallId | None = None
