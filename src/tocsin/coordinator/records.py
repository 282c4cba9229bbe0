"""The coordinator's records of brokers, subscribers and migrations. `registry` keeps them consistent."""

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
    """Silent, or its link is broken: it gets no new subscribers and keeps those it has."""
    DEAD = "dead"
    """Its subscribers are being re-placed."""
    PROBATION = "probation"
    """Back after a failure: it serves existing subscribers, but gets no new ones."""


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
    """The number of its connection; None while it has none."""
    heard_s: float = 0.0
    """Time of its last message."""
    sent_s: float = 0.0
    """Time of the last message to it."""
    since_s: float = 0.0
    """Time of the last change of its health."""
    dead_at_s: float = 0.0
    """While suspect: the time from which it counts as dead."""
    awaited: bool = False
    """Restored from the store and not registered yet: its absence does not count as a failure."""
    failures: int = 0
    """How often it failed and came back, until forgiven."""
    trusted_at_s: float = 0.0
    """While on probation: the time at which probation ends."""
    announced_accepting: bool | None = None
    """The last `accepting` that was sent over its link; None when the link has broken."""
    sessions: int = 0
    frontend: int = 0
    backend: int = 0
    dismissed: bool = False
    """It is being forgotten: an administrator dismissed it, or it has been dead for long. The data cluster is releasing
    its backend subscriptions."""

    @property
    def linked(self) -> bool:
        return self.link is not None

    @property
    def trusted(self) -> bool:
        return self.health is Health.ALIVE and self.link is not None and not self.draining

    @property
    def state(self) -> str:
        """One word for status pages and logs."""
        return "draining" if self.draining and self.health is Health.ALIVE else str(self.health)


@dataclass(slots=True)
class SubscriberRecord:
    id: SubscriberId
    place: Place | None = None
    coordinate: Coordinate | None = None
    home: BrokerId | None = None
    """The one broker assigned to hold its subscriptions; None before the first placement."""
    session_at: BrokerId | None = None
    """The broker it is connected to, as brokers report it."""
    subscriptions: dict[SubscriptionId, Frontend] = field(default_factory=dict)
    webhook: Webhook | None = None
    moved_at_s: float = float("-inf")
    rests_until_s: float = float("-inf")
    """Set after a failed migration."""
    shunned: BrokerId | None = None
    """The target of that migration."""
    uncertain: bool = False
    """Home may have missed a change that another broker sent, or hold an old state: the coordinator sends it `Adopt`
    whenever it registers. Never cleared: that costs a message now and then and removes a source of errors."""
    deleted: bool = False
    """To be forgotten as soon as its home broker has released it."""

    def state(self) -> SubscriberState:
        return SubscriberState(self.id, list(self.subscriptions.values()), self.webhook)


class MigrationStep(StrEnum):
    PREPARING = "preparing"
    """The target acquires the subscriptions and catches up."""
    HANDING_OVER = "handing_over"
    """The target is ready; the source sends the subscriber to it."""
    CONFIRMING = "confirming"
    """The subscriber has left the source; the target has to report its session."""
    RELEASING = "releasing"
    """Home is the target; the source has to release the subscriber."""


@dataclass(slots=True)
class MigrationRecord:
    id: str
    subscriber: SubscriberId
    source: BrokerId
    target: BrokerId
    urgency: Urgency
    reason: str
    began_s: float
    deadline_s: float
    """The time at which this step times out."""
    step: MigrationStep = MigrationStep.PREPARING
    releases: int = 0
    """How often `Release` was sent to the source."""
    claimed: bool = False
    """The subscriber logged in at the target by itself: there was no `Prepare`, the target asked for its state."""
    adopted: bool = False
    """The target received `Adopt`, not only `Prepare`: `Release` takes that back, `Abandon` would not."""
    renewed: set[SubscriptionId] = field(default_factory=set)
    """Subscriptions made at the target, perhaps again: a removal of these that the source reports is older."""
