"""The coordinator's records of brokers, subscribers and migrations. `registry` keeps them consistent."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, SubscriberId, SubscriptionId
from tocsin.model.plan import Urgency
from tocsin.model.snapshot import Place
from tocsin.wire.coordinates import Peer
from tocsin.wire.link import Frontend, SubscriberState, Webhook
from tocsin.wire.site_link import Capacity, Role


class Health(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    """The broker is silent or its link is broken. It gets no new subscribers and keeps its present ones."""
    DEAD = "dead"
    """The broker counts as failed, and its subscribers get other brokers."""
    PROBATION = "probation"
    """The broker is back after a failure. It serves existing subscribers, but gets no new ones."""


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
    """True if it was restored from the store and has not registered yet. Its absence then is no failure."""
    failures: int = 0
    """How often the broker failed and came back. Old failures are forgiven."""
    trusted_at_s: float = 0.0
    """While on probation: the time at which probation ends."""
    announced_accepting: bool | None = None
    """The last `accepting` that was sent over its link; None after the link has broken."""
    announced_limit_bytes_per_s: float = 0.0
    """The load above which it reports at once, as it was last sent over its link."""
    sessions: int = 0
    frontend: int = 0
    backend: int = 0
    topics: bool = False
    """True if the broker can be the home of topics."""
    role: Role = Role.PLAIN
    """Its role in a site. It is stored: after a restart of the coordinator, no other broker becomes the home of a topic
    before the head has had time to register."""
    standby: bool = False
    """True for an edge that may be the home of topics while no head can."""
    limits: Capacity = field(default_factory=Capacity)
    """Its configured capacity for topics, as it registered."""
    ordered: Capacity | None = None
    """The capacity for topics that an operator gave it instead; None if no operator did."""
    measures: bool = False
    """True if the broker measures its network coordinate."""
    coordinate: Coordinate | None = None
    """Its network coordinate as it reported it; not stored, because the broker reports it again."""
    peers: tuple[Peer, ...] | None = None
    """The brokers that it measures, as they were sent to it; None if nothing was sent over its present link."""
    dismissed: bool = False
    """True if an administrator dismissed the broker, or it has been dead for long.

    The data cluster is releasing its backend subscriptions; then the coordinator forgets the broker.
    """

    @property
    def topic_capacity(self) -> Capacity:
        """The capacity that holds."""
        return self.limits if self.ordered is None else self.ordered

    @property
    def linked(self) -> bool:
        return self.link is not None

    @property
    def settled_coordinate(self) -> Coordinate | None:
        """Its coordinate, if decisions may use it."""
        return self.coordinate if self.coordinate is not None and self.coordinate.is_settled else None

    @property
    def trusted(self) -> bool:
        return self.health is Health.ALIVE and self.link is not None and not self.draining

    @property
    def state(self) -> str:
        """The broker's state in one word, for status pages and logs."""
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
    session_token: str | None = None
    """The token of that session; None if the broker did not send it."""
    subscriptions: dict[SubscriptionId, Frontend] = field(default_factory=dict)
    webhook: Webhook | None = None
    moved_at_s: float = float("-inf")
    rests_until_s: float = float("-inf")
    """A drain does not move the subscriber before this time. Set after a failed migration."""
    shunned: BrokerId | None = None
    """The target of the failed migration, which a drain avoids."""
    uncertain: bool = False
    """Home may have missed a change that another broker sent, or hold an old state: the coordinator sends it `Adopt`
    whenever it registers. It is never cleared: an unneeded `Adopt` is cheap, and a missing one would be an error."""
    deleted: bool = False
    """True if the coordinator forgets the subscriber as soon as its home broker has released it."""
    placed_at: Place | None = None
    """Its position when its broker was chosen; None if that is unknown, as after a restart of the coordinator."""

    @property
    def online(self) -> bool:
        """True if a broker delivers to the subscriber: over its session, or to its webhook."""
        return self.session_at is not None or self.webhook is not None

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
    """True if the target received `Adopt`, not only `Prepare`: `Release` undoes an adoption, `Abandon` does not."""
    renewed: set[SubscriptionId] = field(default_factory=set)
    """Subscriptions made at the target, perhaps again: a removal of these that the source reports is older."""
