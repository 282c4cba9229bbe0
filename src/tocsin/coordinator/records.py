"""What the coordinator knows of brokers, subscribers and migrations: plain records that `registry` keeps consistent."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, SubscriberId, SubscriptionId
from tocsin.model.plan import Urgency
from tocsin.model.snapshot import Place
from tocsin.wire.link import Frontend, SubscriberState, Webhook


class Health(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    """Silent, or its link is broken: nobody new is sent there, nobody is taken away yet."""
    DEAD = "dead"
    """Its subscribers are being re-placed."""
    PROBATION = "probation"
    """Back, and keeps whom it serves, but is not trusted with newcomers yet."""


@dataclass(slots=True)
class BrokerRecord:
    id: BrokerId
    address: str = ""
    incarnation: str = ""
    capacity: float = 1.0
    place: Place | None = None
    health: Health = Health.ALIVE
    draining: bool = False
    link: int | None = None
    """The connection it speaks over; None while there is none."""
    heard_s: float = 0.0
    spoke_s: float = 0.0
    """When it was last sent something."""
    since_s: float = 0.0
    """When its health last changed."""
    dead_at_s: float = 0.0
    """While suspect: when it counts as dead."""
    awaited: bool = False
    """Known from before this coordinator's start and not back yet: its absence says nothing about it."""
    failures: int = 0
    """Times it failed and came back, until forgiven."""
    trusted_at_s: float = 0.0
    """While on probation: when that ends."""
    told_accepting: bool | None = None
    """What it was last told about taking newcomers."""
    sessions: int = 0
    frontend: int = 0
    backend: int = 0
    dismissed: bool = False
    """An administrator wants it forgotten, or it has been dead for long: its backend subscriptions are being let go."""

    @property
    def linked(self) -> bool:
        return self.link is not None

    @property
    def trusted(self) -> bool:
        return self.health is Health.ALIVE and self.link is not None and not self.draining

    @property
    def state(self) -> str:
        """In one word, for people."""
        return "draining" if self.draining and self.health is Health.ALIVE else str(self.health)


@dataclass(slots=True)
class SubscriberRecord:
    id: SubscriberId
    place: Place | None = None
    coordinate: Coordinate | None = None
    home: BrokerId | None = None
    """The one broker that holds its subscriptions by our word; None before the first placement."""
    session_at: BrokerId | None = None
    """Where it is connected, as far as brokers told."""
    subscriptions: dict[SubscriptionId, Frontend] = field(default_factory=dict)
    webhook: Webhook | None = None
    moved_at_s: float = float("-inf")
    rests_until_s: float = float("-inf")
    """After a failed migration."""
    shunned: BrokerId | None = None
    """The target of that migration."""
    uncertain: bool = False
    """Home may have missed what others handed in for it, or hold an old state of it, and is told whenever it registers.
    Never taken back: that costs a message now and then, and is one thing less to get wrong."""
    deleted: bool = False
    """To be forgotten as soon as its broker has let go."""

    def state(self) -> SubscriberState:
        return SubscriberState(self.id, list(self.subscriptions.values()), self.webhook)


class MigrationStep(StrEnum):
    PREPARING = "preparing"
    """The target is to hold the subscriptions and catch up."""
    HANDING_OVER = "handing_over"
    """The target is ready; the subscriber, at the source, is told where to go."""
    CONFIRMING = "confirming"
    """It has left the source; the target is to say that it arrived."""
    RELEASING = "releasing"
    """Its home is the target; the source is to let go."""


@dataclass(slots=True)
class MigrationRecord:
    id: str
    subscriber: SubscriberId
    source: BrokerId
    target: BrokerId
    urgency: Urgency
    reason: str
    step: MigrationStep
    began_s: float
    deadline_s: float
    """Of this step."""
    releases: int = 0
    claimed: bool = False
    """The subscriber went there by itself: nobody prepared, the target asked what it holds."""
    adopted: bool = False
    """The target was told to serve it, not only to be ready: `Release` takes that back, `Abandon` would not."""
    renewed: set[SubscriptionId] = field(default_factory=set)
    """What it subscribed to at the target, perhaps again: what the source still says of those is older."""
