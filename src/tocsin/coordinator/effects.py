"""What the coordinator's logic wants done. Whoever drives it does so in this order, and tells nobody anything (`Send…`,
`Answer`) before everything to be stored so far (`Store…`, `Forget…`) is on disk: what was said is never taken back.

Storing is by key, complete rows: doing it twice does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, SubscriberId, SubscriptionId
from tocsin.model.snapshot import Place
from tocsin.model.trace import TraceRow
from tocsin.wire.errors import Code
from tocsin.wire.link import FromCoordinator, Frontend, Webhook


@dataclass(frozen=True, slots=True)
class SendToBroker:
    broker: BrokerId
    link: int
    message: FromCoordinator


@dataclass(frozen=True, slots=True)
class SendHandOver:
    """A `HandOver` whose token the driver signs: the logic holds no key."""

    broker: BrokerId
    link: int
    migration: str
    subscriber: SubscriberId
    target: BrokerId
    address: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class CloseLink:
    broker: BrokerId
    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class RequestRejection:
    """Why something was not done, for whoever asked."""

    code: Code
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """To the request that carried this number."""

    ask: int
    value: object
    """What the event's documentation says, or a `Rejection`."""


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log: every decision about a subscriber or a broker leaves one, with its reason."""

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    level: str = "info"


@dataclass(frozen=True, slots=True)
class RecordTrace:
    """For whoever watches the network: what happened, as a row of the trace. Of no consequence to anything else."""

    row: TraceRow


@dataclass(frozen=True, slots=True)
class ReleaseAtCluster:
    """Let go of everything this broker holds at the data cluster, then say `BrokerReleased`."""

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class KeepAtCluster:
    """It is back: whatever is still being let go in its name stays, for it may be what it holds now."""

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class StoreBroker:
    broker: BrokerId
    address: str
    incarnation: str
    capacity: float
    place: Place | None
    draining: bool
    dead: bool
    failures: int
    dismissed: bool


@dataclass(frozen=True, slots=True)
class ForgetBroker:
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class StoreSubscriber:
    subscriber: SubscriberId
    place: Place | None
    coordinate: Coordinate | None
    home: BrokerId | None
    moved_at_s: float
    deleted: bool
    uncertain: bool = False


@dataclass(frozen=True, slots=True)
class ForgetSubscriber:
    """With its subscriptions and webhook."""

    subscriber: SubscriberId


@dataclass(frozen=True, slots=True)
class StoreSubscriptions:
    subscriber: SubscriberId
    held: tuple[Frontend, ...] = ()
    """New, or with a new cursor."""
    removed: tuple[SubscriptionId, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreWebhook:
    subscriber: SubscriberId
    webhook: Webhook | None
    """None removes it."""


@dataclass(frozen=True, slots=True)
class StoreMigration:
    migration: str
    subscriber: SubscriberId
    source: BrokerId
    target: BrokerId
    step: str
    urgency: str
    reason: str
    began_s: float
    claimed: bool
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class ForgetMigration:
    migration: str


@dataclass(frozen=True, slots=True)
class StoreFact:
    """Something small that outlives the process: a chosen policy, what policies remember."""

    name: str
    value: str


StoreEffect = (
    StoreBroker | ForgetBroker | StoreSubscriber | ForgetSubscriber | StoreSubscriptions | StoreWebhook
    | StoreMigration | ForgetMigration | StoreFact
)  # fmt: skip
Effect = (
    StoreEffect
    | SendToBroker
    | SendHandOver
    | CloseLink
    | AnswerRequest
    | Note
    | RecordTrace
    | ReleaseAtCluster
    | KeepAtCluster
)


@dataclass(frozen=True, slots=True)
class StoredState:
    """All that was stored, as a restarted coordinator gets it back."""

    brokers: tuple[StoreBroker, ...] = ()
    subscribers: tuple[StoreSubscriber, ...] = ()
    subscriptions: tuple[StoreSubscriptions, ...] = ()
    webhooks: tuple[StoreWebhook, ...] = ()
    migrations: tuple[StoreMigration, ...] = ()
    facts: tuple[StoreFact, ...] = ()
