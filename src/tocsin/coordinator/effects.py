"""The effects that the coordinator's logic asks its driver for, in the order in which the driver carries them out.

The driver sends nothing (`Send…`, `AnswerRequest`) before all earlier `Store…` and `Forget…` effects are on disk, so
that a crash never takes back an announced fact. A store effect is a complete row by key: writing it twice is harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, SubscriberId, SubscriptionId, TopicName
from tocsin.model.snapshot import Place
from tocsin.model.trace import TraceRow
from tocsin.wire.errors import Code
from tocsin.wire.link import FromCoordinator, Frontend, Webhook
from tocsin.wire.neighbour_link import FromNeighbour
from tocsin.wire.site_link import Client, Role


@dataclass(frozen=True, slots=True)
class SendToBroker:
    broker: BrokerId
    link: int
    message: FromCoordinator


@dataclass(frozen=True, slots=True)
class SendHandOver:
    """Send a `HandOver`. The driver signs its token: the logic holds no key."""

    broker: BrokerId
    link: int
    migration: str
    subscriber: SubscriberId
    target: BrokerId
    address: str
    deadline_s: float
    session_token: str | None = None
    """The token of the present session: the new session has its rights and its end."""


@dataclass(frozen=True, slots=True)
class CloseLink:
    broker: BrokerId
    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class SendToNeighbour:
    connection: int
    message: FromNeighbour


@dataclass(frozen=True, slots=True)
class SendHosting:
    """Send a `Hosting` to a neighbour. The driver signs the tokens: the logic holds no key."""

    connection: int
    number: int
    site: str
    """The site of the receivers."""
    topic: TopicName
    clients: tuple[Client, ...]
    address: str
    home: str
    token: str
    """The neighbour's own token: the tokens of the receivers end with it."""

    def __repr__(self) -> str:
        """Without the token: the text may get into a log."""
        return f"SendHosting(number={self.number}, site={self.site!r}, topic={self.topic!r})"


@dataclass(frozen=True, slots=True)
class CloseNeighbour:
    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class RequestRejection:
    """The answer to a request that the coordinator refuses."""

    code: Code
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    ask: int
    """The number of the request."""
    value: object
    """The value that the request's docstring names, or a `RequestRejection`."""


@dataclass(frozen=True, slots=True)
class Note:
    """Write a log line: every decision about a subscriber or a broker is logged with its reason."""

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    level: str = "info"


@dataclass(frozen=True, slots=True)
class RecordTrace:
    """Pass a trace row to the dashboard and the recording. Nothing else depends on it."""

    row: TraceRow


@dataclass(frozen=True, slots=True)
class ReleaseAtCluster:
    """Release every subscription that this broker holds at the data cluster, then post `BrokerReleased`."""

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class KeepAtCluster:
    """Cancel `ReleaseAtCluster`: the broker is back and may hold those subscriptions again."""

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
    role: Role = Role.PLAIN
    standby: bool = False


@dataclass(frozen=True, slots=True)
class ForgetBroker:
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class StoreCapacity:
    """The capacity for topics that an operator gave a broker. `ForgetBroker` removes it."""

    broker: BrokerId
    in_bytes_per_s: float | None
    out_bytes_per_s: float | None
    matched_per_s: float | None


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
    """Forget a subscriber, its subscriptions and its webhook."""

    subscriber: SubscriberId


@dataclass(frozen=True, slots=True)
class StoreSubscriptions:
    subscriber: SubscriberId
    held: tuple[Frontend, ...] = ()
    """Subscriptions that are new or have a new cursor."""
    removed: tuple[SubscriptionId, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreWebhook:
    subscriber: SubscriberId
    webhook: Webhook | None
    """None removes the webhook."""


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
    """Store a small named value: a chosen policy, the memory of the balancing policies."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class StoreRevocation:
    """Store that a token, or every earlier token of a user, is invalid."""

    kind: str
    """`token` or `user`."""
    name: str
    """The id (`jti`) of the token, or the name of the user."""
    at_s: float


@dataclass(frozen=True, slots=True)
class StoreTopic:
    topic: TopicName
    created: int
    within_s: float | None
    made_on_use: bool
    home: BrokerId | None
    incarnation: str
    """The run of the home broker that holds the topic."""
    epoch: int
    record_into: str | None = None
    """The dataset that gets every message."""
    recording: str | None = None
    """The name of the recording at the data cluster."""
    made_by: str | None = None
    """The user whose message created the topic."""
    delay_s: float | None = None
    protected_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class StoreTopicLog:
    """How a persistent topic is kept. `ForgetTopic` removes it."""

    topic: TopicName
    replicas: tuple[BrokerId, ...]
    quorum: int
    retain_bytes: int
    retain_s: float | None


@dataclass(frozen=True, slots=True)
class StoreTopicMove:
    """The target of a direct hand-over may open the topic in this epoch. `ForgetTopic` removes it too."""

    topic: TopicName
    target: BrokerId
    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ForgetTopicMove:
    topic: TopicName


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    topic: TopicName


@dataclass(frozen=True, slots=True)
class CheckStore:
    """Store nothing, but send nothing that follows unless this coordinator still owns the store: a lease is granted."""


StoreEffect = (
    StoreBroker
    | ForgetBroker
    | StoreCapacity
    | StoreSubscriber
    | ForgetSubscriber
    | StoreSubscriptions
    | StoreWebhook
    | StoreMigration
    | ForgetMigration
    | StoreFact
    | StoreRevocation
    | StoreTopic
    | StoreTopicLog
    | StoreTopicMove
    | ForgetTopicMove
    | ForgetTopic
    | CheckStore
)
SendEffect = SendToBroker | SendHandOver | CloseLink | SendToNeighbour | SendHosting | CloseNeighbour | AnswerRequest
Effect = StoreEffect | SendEffect | Note | RecordTrace | ReleaseAtCluster | KeepAtCluster


@dataclass(frozen=True, slots=True)
class StoredState:
    """All stored rows: a coordinator starts from them."""

    brokers: tuple[StoreBroker, ...] = ()
    subscribers: tuple[StoreSubscriber, ...] = ()
    subscriptions: tuple[StoreSubscriptions, ...] = ()
    webhooks: tuple[StoreWebhook, ...] = ()
    migrations: tuple[StoreMigration, ...] = ()
    facts: tuple[StoreFact, ...] = ()
    revocations: tuple[StoreRevocation, ...] = ()
    topics: tuple[StoreTopic, ...] = ()
    topic_logs: tuple[StoreTopicLog, ...] = ()
    topic_moves: tuple[StoreTopicMove, ...] = ()
    capacities: tuple[StoreCapacity, ...] = ()
