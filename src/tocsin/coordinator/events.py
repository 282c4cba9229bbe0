"""The events that a driver hands to the coordinator. Each request has a number (`ask`) and gets one `AnswerRequest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, SubscriberId, TopicName
from tocsin.model.snapshot import Place
from tocsin.model.topic import TopicDefinition
from tocsin.policies.balance.settings import PlacementPolicy
from tocsin.wire.link import FromBroker
from tocsin.wire.neighbour_link import FromNeighbour
from tocsin.wire.site_link import Capacity

# -- time and links ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passes: the driver sends this a few times a second."""

    may_plan: bool = True
    """False while balancing must wait: the first compilation of the policies takes seconds."""


@dataclass(frozen=True, slots=True)
class LinkMessageReceived:
    """A broker sent a message over a link. The driver numbers links and never uses a number twice."""

    broker: BrokerId
    link: int
    message: FromBroker


@dataclass(frozen=True, slots=True)
class LinkClosed:
    broker: BrokerId
    link: int


@dataclass(frozen=True, slots=True)
class BrokerReleased:
    """The data cluster holds no subscription of this broker any more, or the driver has no data cluster to clean up."""

    broker: BrokerId


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UserRegistered:
    """registeruser [BAD §6.1.1]. Answer: True if the user is new."""

    ask: int
    user: SubscriberId
    place: Place | None = None
    coordinate: Coordinate | None = None


@dataclass(frozen=True, slots=True)
class BrokerRequested:
    """requestbroker [BAD §3.1]. Answer: `Placed`."""

    ask: int
    user: SubscriberId
    place: Place | None = None
    coordinate: Coordinate | None = None
    avoid: frozenset[BrokerId] = frozenset()
    """Brokers that the user could not reach."""


@dataclass(frozen=True, slots=True)
class Placed:
    broker: BrokerId
    address: str


@dataclass(frozen=True, slots=True)
class UserDeleted:
    """Answer: True."""

    ask: int
    user: SubscriberId


@dataclass(frozen=True, slots=True)
class TokensRevoked:
    """Revoke tokens by id, and all present tokens of users. Answer: True."""

    ask: int
    tokens: tuple[str, ...] = ()
    users: tuple[SubscriberId, ...] = ()


@dataclass(frozen=True, slots=True)
class DrainOrdered:
    """Drain a broker, or stop draining it. Answer: how many subscribers the broker still has."""

    ask: int
    broker: BrokerId
    on: bool


@dataclass(frozen=True, slots=True)
class BrokerDismissed:
    """Forget a dead or drained broker. Answer: True; the broker disappears once the data cluster has released it."""

    ask: int
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class CapacityOrdered:
    """Give a broker another capacity for topics than the configured one. Answer: True."""

    ask: int
    broker: BrokerId
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class RequestedMove:
    subscriber: SubscriberId
    target: BrokerId
    reason: str = "asked for"


@dataclass(frozen=True, slots=True)
class PlanProposed:
    """A plan by the name of a policy, or as moves. Answer: `arbiter.Decision`."""

    ask: int
    policy: str | None = None
    moves: tuple[RequestedMove, ...] | None = None
    dry_run: bool = True
    generation: int | None = None
    """Generation of the snapshot on which the moves are based; None for the present snapshot."""


@dataclass(frozen=True, slots=True)
class PlacementChosen:
    """Answer: True."""

    ask: int
    placement: PlacementPolicy | None = None
    replacement: PlacementPolicy | None = None


@dataclass(frozen=True, slots=True)
class BalanceChosen:
    """New balancing settings; a setting that is not named keeps its value. Answer: True."""

    ask: int
    on: bool | None = None
    period_s: float | None = None
    changes: Mapping[str, object] = field(default_factory=dict)
    """Fields of `BalanceSettings`."""


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """Answer: `topic_records.TopicRecord`."""

    ask: int
    definition: TopicDefinition
    place: Place | None = None
    coordinate: Coordinate | None = None
    """The network coordinate of the topic's clients."""
    recording: str = ""
    """A new random name for the recording, if the definition has a dataset to record into."""
    replace: bool = False
    """Change the topic in place if it exists."""


@dataclass(frozen=True, slots=True)
class TopicsUsed:
    """A client is about to publish to these topics. Answer: topic → `RequestRejection` of those that it cannot use."""

    ask: int
    topics: tuple[TopicName, ...]
    place: Place | None = None
    coordinate: Coordinate | None = None
    """The network coordinate of the client."""
    user: str | None = None
    """The user that creates them; None for a caller without a quota."""
    users: Mapping[TopicName, str] = field(default_factory=dict)
    """The same for single topics, if a broker asks for its clients."""

    def creator(self, topic: TopicName) -> str | None:
        return self.users.get(topic, self.user)


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """Answer: True."""

    ask: int
    topic: TopicName


@dataclass(frozen=True, slots=True)
class TopicMoveOrdered:
    """Answer: True if a move has begun, False if the target is the home already."""

    ask: int
    topic: TopicName
    target: BrokerId
    reason: str = "asked for"


@dataclass(frozen=True, slots=True)
class ReceiversRedirected:
    """Send receivers of a topic from one edge to another. Answer: True when the edges have been told."""

    ask: int
    topic: TopicName
    source: BrokerId
    target: BrokerId
    clients: tuple[str, ...] = ()
    """As in `wire.site_link`; none for all."""


@dataclass(frozen=True, slots=True)
class ReceiverLocated:
    """A receiver of these topics has this network coordinate. Answer: True."""

    ask: int
    topics: tuple[TopicName, ...]
    coordinate: Coordinate


@dataclass(frozen=True, slots=True)
class NeighbourOpened:
    """This coordinator has opened a connection to the coordinator of a neighbouring site."""

    site: str
    connection: int


@dataclass(frozen=True, slots=True)
class NeighbourMessageReceived:
    """`site` has proved its name by its token, or is the site to which this coordinator has opened the connection."""

    site: str
    connection: int
    message: FromNeighbour


@dataclass(frozen=True, slots=True)
class NeighbourClosed:
    site: str
    connection: int
    silent: bool = False
    """The neighbour sent nothing for longer than a connection that breaks takes to return."""


@dataclass(frozen=True, slots=True)
class NeighbourMeasured:
    """The median of the last round trips on the control connection, once a second."""

    site: str
    round_trip_s: float


NeighbourEvent = NeighbourOpened | NeighbourMessageReceived | NeighbourClosed | NeighbourMeasured
Request = (
    UserRegistered
    | BrokerRequested
    | UserDeleted
    | TokensRevoked
    | DrainOrdered
    | BrokerDismissed
    | CapacityOrdered
    | PlanProposed
    | PlacementChosen
    | BalanceChosen
    | TopicCreated
    | TopicsUsed
    | TopicDeleted
    | TopicMoveOrdered
    | ReceiversRedirected
    | ReceiverLocated
)
Event = Ticked | LinkMessageReceived | LinkClosed | BrokerReleased | NeighbourEvent | Request
