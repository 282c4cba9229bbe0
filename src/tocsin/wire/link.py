"""The protocol between a broker and the coordinator: one WebSocket, which the broker opens and keeps open.

JSON, one message per text frame. The broker sends `Register` first, and again after every reconnect. Durable changes
(subscriptions, acknowledged cursors, webhooks) are numbered; the broker repeats them until `Stored` confirms them, and
a repeat is harmless. Each side works without the other: a broker without its coordinator keeps delivering, and a
restarted coordinator learns from `Register` what it missed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import site_link, topic_link
from tocsin.wire.coordinates import CoordinatePeers, CoordinateReport
from tocsin.wire.session import CursorText

VOUCHERS = "/v1/brokers/{broker}/vouchers"
REPLICA_TOKENS = "/v1/brokers/{broker}/replica_tokens"
REPLICATE = "replicate"
"""Scope of a token by which a home connects to its followers. The coordinator signs it for brokers alone."""
"""POST `VoucherRequest` → `Voucher`: the coordinator's word to the data cluster that the broker serves some users."""


class Frontend(msgspec.Struct, frozen=True):
    """A frontend subscription in a message."""

    subscription: SubscriptionId
    channel: ChannelName
    parameters: dict[str, Any]
    cursor: CursorText
    """The position that the subscriber acknowledged; before the first acknowledgement, its start."""


class Webhook(msgspec.Struct, frozen=True):
    """The URL to which a broker posts results of a subscriber without a connection (Standard Webhooks)."""

    url: str
    secrets: list[str]
    """`whsec_…`, newest first; more than one while a secret is being replaced."""


class SubscriberState(msgspec.Struct, frozen=True):
    """The state that a broker needs to serve a subscriber that is new to it."""

    subscriber: SubscriberId
    subscriptions: list[Frontend]
    webhook: Webhook | None = None


# -- from the broker ---------------------------------------------------------------------------------------------------


class FromBrokerMessage(msgspec.Struct, tag_field="type"):
    pass


class Register(FromBrokerMessage, tag="register"):
    """registerbroker: sent after every connect and reconnect, with the subscribers of this process."""

    broker: BrokerId
    incarnation: str
    """New with every start of the process. It distinguishes a restart from a reconnect."""
    address: str
    """The URL for subscribers, such as `ws://127.0.0.1:8600`."""
    capacity: float = 1.0
    lat: float | None = None
    lon: float | None = None
    online: list[SubscriberId] = []
    """Subscribers with an open session."""
    hosting: list[SubscriberId] = []
    """Subscribers it serves, online or not. Empty after a restart: then the coordinator sends `Adopt`."""
    tokens: dict[SubscriberId, str] = {}
    """Tokens of these subscribers. Without one, the coordinator accepts only subscribers that it has assigned to this
    broker."""
    topics: bool = False
    """True if this broker can be the home of topics. The messages of `topic_link` are for such brokers only."""
    coordinates: bool = False
    """True if this broker measures a network coordinate. `CoordinatePeers` is for such brokers only."""
    role: site_link.Role = site_link.Role.PLAIN
    """Its role in a site."""
    standby: bool = False
    """True for an edge that may become the home of topics when no head is alive."""
    limits: site_link.Capacity = site_link.Capacity()
    """The capacity in its configuration, for the loads of topics."""


class Heartbeat(FromBrokerMessage, tag="heartbeat"):
    sessions: int
    frontend: int
    backend: int


class LoadReport(FromBrokerMessage, tag="load"):
    """Moving averages of the broker's traffic [BAD §3.2, eq. 1–5]."""

    in_bytes_per_s: float
    """I_j: fetched from the data cluster."""
    out_bytes_per_s: float
    """O_j: delivered to subscribers."""
    rates: dict[SubscriptionId, float]
    """λ_k in bytes/s of backend subscriptions whose average changed by over 5 % since the last report."""
    notifications_per_s: float = 0.0
    delivery_s_p50: float | None = None
    """Seconds from the end of the execution to the write to the socket."""
    delivery_s_p95: float | None = None
    shares: dict[SubscriptionId, float] = {}
    """The share of an average in `rates` that is measured, if it is below 1: the broker holds the subscription since
    recently (`model.rate`)."""
    released: list[SubscriptionId] = []
    """Backend subscriptions that the broker does not hold any more."""
    in_bytes: int = 0
    """Fetched since the start of the broker's process."""
    out_bytes: int = 0
    """Delivered since the start of the broker's process."""
    catch_up_bytes: int = 0
    """The part of both that brought sessions up to date; rates do not count it."""
    delivery_ratio: float | None = None
    """Bytes that one session gets per byte that is fetched for it: encodings differ. None: nothing delivered yet."""
    surge: bool = False
    """True if announced results are several times the usual traffic; `rates` has the announced rates."""
    places: dict[SubscriberId, tuple[float, float]] = {}
    """Latitude and longitude of the subscribers that sent a position since the last report."""
    overload: bool = False
    """True if announced results will raise the load above the limit of `Accepting`; `rates` has the announced
    rates."""


class SessionOpened(FromBrokerMessage, tag="session_opened"):
    subscriber: SubscriberId
    migration: str | None = None
    """The migration that moved it here; None if there was none."""
    token: str | None = None
    """The subscriber's token: it proves the session of a subscriber that the coordinator has not assigned here."""


class SessionClosed(FromBrokerMessage, tag="session_closed"):
    subscriber: SubscriberId
    reason: str


class Changed(FromBrokerMessage, tag="changed"):
    """Durable changes of one subscriber. Numbered per incarnation without holes; answered with `Stored`."""

    number: int
    subscriber: SubscriberId
    added: list[Frontend] = []
    removed: list[SubscriptionId] = []
    acked: dict[SubscriptionId, CursorText] = {}
    webhook: Webhook | None = None
    webhook_removed: bool = False
    token: str | None = None
    """The subscriber's token, as in `SessionOpened`."""


class StateRequest(FromBrokerMessage, tag="wanted"):
    """A subscriber logged in that this broker does not know: request its state. Answered with `Adopt`."""

    subscriber: SubscriberId
    token: str | None = None
    """The subscriber's token, as in `SessionOpened`."""


class Prepared(FromBrokerMessage, tag="prepared"):
    """From the target: it holds the subscriptions and has caught up; the subscriber may connect."""

    migration: str


class PrepareFailed(FromBrokerMessage, tag="prepare_failed"):
    migration: str
    code: str
    message: str


class HandOverFailed(FromBrokerMessage, tag="hand_over_failed"):
    """From the source: it could not notify the subscriber (which is offline, or whose session ended)."""

    migration: str
    code: str
    message: str


class Released(FromBrokerMessage, tag="released"):
    """From the source: it holds no subscription of this subscriber any more."""

    subscriber: SubscriberId
    migration: str | None = None


MigrationReport = Prepared | PrepareFailed | HandOverFailed | Released
FromBroker = (
    Register
    | Heartbeat
    | LoadReport
    | SessionOpened
    | SessionClosed
    | Changed
    | StateRequest
    | MigrationReport
    | CoordinateReport
    | topic_link.FromBroker
    | site_link.FromBroker
)


# -- from the coordinator ----------------------------------------------------------------------------------------------


class FromCoordinatorMessage(msgspec.Struct, tag_field="type"):
    pass


class Registered(FromCoordinatorMessage, tag="registered"):
    heartbeat_s: float
    """Pause between `Heartbeat` messages. The coordinator also sends at least one message in this time."""
    report_s: float
    accepting: bool
    """False while draining or on probation: refuse new sessions, except those of a migration."""


class Stored(FromCoordinatorMessage, tag="stored"):
    upto: int
    """Every `Changed` up to this number is on disk."""


class Adopt(FromCoordinatorMessage, tag="adopt"):
    """Serve these subscribers, connected or not: after a restart, a broker's failure, or a `StateRequest`."""

    subscribers: list[SubscriberState]


class Prepare(FromCoordinatorMessage, tag="prepare"):
    """To the target of a migration: hold these subscriptions, catch up, answer `Prepared` or `PrepareFailed`."""

    migration: str
    state: SubscriberState
    deadline_s: float
    """Seconds from now after which the target cancels the preparation by itself."""


class HandOver(FromCoordinatorMessage, tag="hand_over"):
    """To the source of a migration: send the subscriber the target's address, and go on serving it."""

    migration: str
    subscriber: SubscriberId
    broker: BrokerId
    address: str
    token: str
    deadline_s: float


class Release(FromCoordinatorMessage, tag="release"):
    """Another broker serves the subscriber now: close its session as `moved`, release its subscriptions."""

    subscriber: SubscriberId
    migration: str | None = None


class Abandon(FromCoordinatorMessage, tag="abandon"):
    """To the target: the migration failed; cancel the preparation, unless the subscriber is connected already."""

    migration: str
    subscriber: SubscriberId


class Accepting(FromCoordinatorMessage, tag="accepting"):
    """Accept new sessions, or refuse them (draining, probation)."""

    accepting: bool
    draining: bool = False
    """A draining broker also answers 503 on `/readyz`, for a load balancer in front of it."""
    overload_bytes_per_s: float | None = None
    """The broker reports at once if announced results will raise its load above this limit. 0: no limit, as after
    `Registered`; None: the limit has not changed."""


class Beat(FromCoordinatorMessage, tag="beat"):
    """The coordinator is alive. A link without any message for three heartbeats is broken: the broker reconnects."""


FromCoordinator = (
    Registered
    | Stored
    | Adopt
    | Prepare
    | HandOver
    | Release
    | Abandon
    | Accepting
    | Beat
    | CoordinatePeers
    | topic_link.FromCoordinator
    | site_link.FromCoordinator
)


# -- vouchers, over HTTP -----------------------------------------------------------------------------------------------


class VoucherRequest(msgspec.Struct):
    users: list[SubscriberId]


class Voucher(msgspec.Struct):
    token: str
    """Signed for the data cluster; valid for a few minutes."""
    users: list[SubscriberId]
    """Those of the requested users that the broker serves. The token names only them."""


class ReplicaToken(msgspec.Struct):
    """For the connections of a home to its followers."""

    token: str
