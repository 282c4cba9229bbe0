"""What a broker and the coordinator say to each other, over one WebSocket that the broker opens and keeps open.

JSON, one message a text frame. The broker speaks first (`Register`), again after every reconnect. What must not be
forgotten (subscriptions, acknowledged cursors, webhooks) is numbered, repeated until `Stored` confirms it, and harmless
when repeated. Neither side needs the other to go on: a broker without its coordinator keeps delivering, a coordinator
that comes back learns from `Register` what it missed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.wire.session import CursorText


class Frontend(msgspec.Struct, frozen=True):
    """A frontend subscription as it travels: what is wanted, and from where on."""

    subscription: SubscriptionId
    channel: ChannelName
    parameters: dict[str, Any]
    cursor: CursorText
    """What its subscriber has acknowledged, or where it began."""


class Webhook(msgspec.Struct, frozen=True):
    """A subscriber that is called instead of connecting (Standard Webhooks)."""

    url: str
    secrets: list[str]
    """`whsec_…`, newest first; more than one while a secret is being replaced."""


class SubscriberState(msgspec.Struct, frozen=True):
    """All a broker needs to serve a subscriber it has never seen."""

    subscriber: SubscriberId
    subscriptions: list[Frontend]
    webhook: Webhook | None = None


# -- from the broker ---------------------------------------------------------------------------------------------------


class FromBrokerMessage(msgspec.Struct, tag_field="type"):
    pass


class Register(FromBrokerMessage, tag="register"):
    """registerbroker: also after every reconnect, with what this process holds now."""

    broker: BrokerId
    incarnation: str
    """New with every start of the process: a coordinator tells a reconnect from a restart by it."""
    address: str
    """Where subscribers connect, such as `ws://127.0.0.1:8600`."""
    capacity: float = 1.0
    lat: float | None = None
    lon: float | None = None
    online: list[SubscriberId] = []
    """Sessions open at this moment."""
    hosting: list[SubscriberId] = []
    """Subscribers it serves, online or not. Empty after a restart: the coordinator tells it whom to serve."""


class Heartbeat(FromBrokerMessage, tag="heartbeat"):
    sessions: int
    frontend: int
    backend: int


class LoadReport(FromBrokerMessage, tag="load"):
    """Moving averages of what passed through [BAD §3.2, eq. 1–5]."""

    in_bytes_per_s: float
    """I_j: fetched from the data cluster."""
    out_bytes_per_s: float
    """O_j: delivered to subscribers."""
    rates: dict[SubscriptionId, float]
    """λ_k in bytes/s of the backend subscriptions whose rate changed by more than 5 % since last told; 0 when gone."""
    notifications_per_s: float = 0.0
    delivery_s_p50: float | None = None
    """From the end of the execution to the write to the socket."""
    delivery_s_p95: float | None = None


class SessionOpened(FromBrokerMessage, tag="session_opened"):
    subscriber: SubscriberId
    migration: str | None = None
    """The hand-over that brought it."""


class SessionClosed(FromBrokerMessage, tag="session_closed"):
    subscriber: SubscriberId
    reason: str


class Changed(FromBrokerMessage, tag="changed"):
    """Durable changes of one subscriber. Numbered without holes per incarnation; answered with `Stored`."""

    number: int
    subscriber: SubscriberId
    added: list[Frontend] = []
    removed: list[SubscriptionId] = []
    acked: dict[SubscriptionId, CursorText] = {}
    webhook: Webhook | None = None
    webhook_removed: bool = False


class Wanted(FromBrokerMessage, tag="wanted"):
    """A subscriber logged in here whom this broker does not know: what does it hold? Answered with `Adopt`."""

    subscriber: SubscriberId


class Prepared(FromBrokerMessage, tag="prepared"):
    """Target: the subscriptions are held and caught up; the subscriber may come."""

    migration: str


class PrepareFailed(FromBrokerMessage, tag="prepare_failed"):
    migration: str
    code: str
    message: str


class HandOverFailed(FromBrokerMessage, tag="hand_over_failed"):
    """Source: the subscriber could not be told (it has gone offline, or its session ended)."""

    migration: str
    code: str
    message: str


class Released(FromBrokerMessage, tag="released"):
    """Source: nothing of this subscriber is left here."""

    subscriber: SubscriberId
    migration: str | None = None


FromBroker = (
    Register | Heartbeat | LoadReport | SessionOpened | SessionClosed | Changed | Wanted | Prepared | PrepareFailed
    | HandOverFailed | Released
)  # fmt: skip


# -- from the coordinator ----------------------------------------------------------------------------------------------


class FromCoordinatorMessage(msgspec.Struct, tag_field="type"):
    pass


class Registered(FromCoordinatorMessage, tag="registered"):
    heartbeat_s: float
    """How often to send `Heartbeat`; also how often this link carries something the other way."""
    report_s: float
    accepting: bool
    """False while draining or not yet trusted: refuse new sessions, unless a hand-over brings them."""


class Stored(FromCoordinatorMessage, tag="stored"):
    upto: int
    """Every `Changed` up to this number is on disk."""


class Adopt(FromCoordinatorMessage, tag="adopt"):
    """Serve these, whether they are connected or not: after a restart, a failure elsewhere, or on `Wanted`."""

    subscribers: list[SubscriberState]


class Prepare(FromCoordinatorMessage, tag="prepare"):
    """Target of a migration: hold these subscriptions, catch up, answer `Prepared` or `PrepareFailed`."""

    migration: str
    state: SubscriberState
    deadline_s: float
    """Seconds from now after which the preparation is given up by itself."""


class HandOver(FromCoordinatorMessage, tag="hand_over"):
    """Source of a migration: tell the subscriber where to go; go on serving it."""

    migration: str
    subscriber: SubscriberId
    broker: BrokerId
    address: str
    token: str
    deadline_s: float


class Release(FromCoordinatorMessage, tag="release"):
    """It is served elsewhere now: close its session as `moved` if there is one, let go of what nobody else wants."""

    subscriber: SubscriberId
    migration: str | None = None


class Abandon(FromCoordinatorMessage, tag="abandon"):
    """Target: the migration has failed; forget the preparation, unless the subscriber is here already."""

    migration: str
    subscriber: SubscriberId


class Accepting(FromCoordinatorMessage, tag="accepting"):
    """Take new sessions or refuse them (draining, probation)."""

    accepting: bool
    draining: bool = False
    """While draining the broker also says 503 on `/readyz`, for the load balancer before it."""


class Beat(FromCoordinatorMessage, tag="beat"):
    """Alive. A link that carries nothing for three heartbeats is broken: reconnect."""


FromCoordinator = Registered | Stored | Adopt | Prepare | HandOver | Release | Abandon | Accepting | Beat
