"""The messages about sites on the link between a broker and the coordinator (`wire.link`).

Decision 20 describes sites: heads, edges, capacities, offloading and congestion control. A broker with the role `plain`
sends and receives none of these messages except `SetCapacity` and `SiteLoad`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire.topic import VisitorAccess


class Role(StrEnum):
    PLAIN = "plain"
    """No site: senders and receivers attach to homes."""
    HEAD = "head"
    """Home of the site's topics."""
    EDGE = "edge"
    """Relays topics to receivers."""


class Capacity(msgspec.Struct, frozen=True):
    """C_i, C_o and C_m of a broker [ePEER table 4-2]; None is unlimited."""

    in_bytes_per_s: float | None = None
    out_bytes_per_s: float | None = None
    matched_per_s: float | None = None


Client = str
"""A client of topics in plans and reports: `<user>/<run>`."""


VISITOR_MARK = ":"


def visitor_user(site: str, user: str) -> str:
    """The name of another site's user at a host. The host gives no token with a colon in its subject to others."""
    return f"{site}{VISITOR_MARK}{user}"


class TopicLoad(msgspec.Struct, frozen=True, array_like=True):
    """The load of one topic at one broker, per second: λ, μ and σ of [ePEER table 4-2]. As offered, not as shaped."""

    topic: TopicName
    in_bytes_per_s: float
    out_bytes_per_s: float
    matched_per_s: float
    receivers: int
    senders: int


# -- from the broker ---------------------------------------------------------------------------------------------------


class FromBrokerMessage(msgspec.Struct, tag_field="type"):
    pass


class SiteLoad(FromBrokerMessage, tag="site_load"):
    """Each second: the load of the second that ended."""

    topics: list[TopicLoad]
    """Topics with load or with clients."""
    waiting_bytes: int = 0
    """Bytes that wait in the egress shaper."""
    waiting_messages: int = 0
    """Messages that wait for matching."""
    sent_bytes_per_s: float = 0.0
    """Bytes that left the shaper."""


class SiteProfile(FromBrokerMessage, tag="site_profile"):
    """The answer to `ReportProfile`: the receivers of each relayed topic at an edge, the senders at a head."""

    number: int
    topics: dict[TopicName, list[tuple[Client, float]]]
    """(client, bytes per second)."""


class ReceiverArrived(FromBrokerMessage, tag="receiver_arrived"):
    """From the target: a receiver that `ExpectReceivers` named is attached and has caught up."""

    topic: TopicName
    client: Client


class ReceiverLeft(FromBrokerMessage, tag="receiver_left"):
    """From the source: a receiver that `RedirectReceivers` named has detached or is gone."""

    topic: TopicName
    client: Client
    gone: bool = False
    """True if its connection was lost instead: the client may be gone for good."""


class Ratings(FromBrokerMessage, tag="ratings"):
    """Each second with feedback: how this broker's receivers rate publishers [ePEER equation 2]."""

    topics: dict[TopicName, list[tuple[int, float, int]]]
    """(publisher, sum of the weighted averages, number of receivers)."""


class PublisherRate(msgspec.Struct, frozen=True, array_like=True):
    publisher: int
    """Or a flow of another site (`model.flow`), which cannot be limited."""
    offered_per_s: float
    """Messages, also those that its client or the home discarded because of a limit."""
    size_bytes: float
    """Their mean size."""
    age_s: float
    """Since its first message; a day if that is not known."""


class PublisherRates(FromBrokerMessage, tag="publisher_rates"):
    """The answer of a home to `ReportPublishers`: the last second, or the present one if the home has just begun to
    count."""

    number: int
    topics: dict[TopicName, list[PublisherRate]]


class TopicDemand(msgspec.Struct, frozen=True, array_like=True):
    """Of one topic at its home: does this site send and receive it? Neighbouring sites do not count."""

    topic: TopicName
    epoch: int
    published: bool
    """Clients of this site have published to it."""
    received: bool
    """Clients of this site receive it."""


class FlowDemand(FromBrokerMessage, tag="flow_demand"):
    """From a home in a site with neighbours: topics that have changed. After `Federate`, all its topics."""

    topics: list[TopicDemand]


class FlowCount(msgspec.Struct, frozen=True, array_like=True):
    """Messages of a flow that have crossed a link, since the start of the broker's process."""

    neighbour: str
    source: str
    topic: TopicName
    received: int
    repeated: int
    """Those of them that this site had already."""


class FlowCounts(FromBrokerMessage, tag="flow_counts"):
    """Each second: the flows whose counts have changed. After `Federate`, all."""

    flows: list[FlowCount]


FromBroker = (
    SiteLoad | SiteProfile | ReceiverArrived | ReceiverLeft | Ratings | PublisherRates | FlowDemand | FlowCounts
)


# -- from the coordinator ----------------------------------------------------------------------------------------------


class FromCoordinatorMessage(msgspec.Struct, tag_field="type"):
    pass


class SetCapacity(FromCoordinatorMessage, tag="set_capacity"):
    """The broker's capacity from now on: sent after `Registered` if an operator has changed it, and at each change."""

    capacity: Capacity


class ReportProfile(FromCoordinatorMessage, tag="report_profile"):
    number: int


class ExpectReceivers(FromCoordinatorMessage, tag="expect_receivers"):
    """To the target of an offloading: relay the topic, and report each of these receivers when it is attached."""

    topic: TopicName
    clients: list[Client]


class RedirectReceivers(FromCoordinatorMessage, tag="redirect_receivers"):
    """To the source of an offloading: send `redirect` to these receivers of a topic."""

    topic: TopicName
    clients: list[Client]
    broker: BrokerId
    address: str
    visitors: dict[Client, VisitorAccess] = {}
    """If the target belongs to a neighbouring site: how each of the receivers attaches there."""


class ReleaseVisitors(FromCoordinatorMessage, tag="release_visitors"):
    """To an edge: end the attachments of visitors. They return to their own site."""

    site: str | None = None
    """The site of the visitors; None for all visitors."""


class ReportPublishers(FromCoordinatorMessage, tag="report_publishers"):
    """To a home: count the messages of each publisher from now on, and report."""

    number: int


class LimitPublishers(FromCoordinatorMessage, tag="limit_publishers"):
    """To a home: the limits of all its publishers. A publisher that is not named has none. The limits end if the
    coordinator does not repeat them for `LIMITS_S`."""

    limits: dict[TopicName, list[tuple[int, float]]]
    """(publisher, messages per second)."""


LIMITS_S = 5.0


class NeighbourAccess(msgspec.Struct, frozen=True):
    """How brokers reach the topics of a neighbouring site."""

    site: str
    coordinator: str
    token: str
    ca: str | None = None
    """The certificate of the authority that signed the neighbour's, as PEM text; None if every system knows it. Not a
    file: brokers on other machines need it too."""

    def __repr__(self) -> str:
        """Without the token: the text may get into a log."""
        return f"NeighbourAccess(site={self.site!r}, coordinator={self.coordinator!r})"


class ImportFlows(FromCoordinatorMessage, tag="import_flows"):
    """To the home of a topic: receive these flows of it from neighbouring sites, and no others."""

    topic: TopicName
    created: int
    """The topic's first epoch."""
    flows: dict[str, list[str]]
    """Neighbour → the sites whose flows come from it."""


class Federate(FromCoordinatorMessage, tag="federate"):
    """After `Registered`, and when the neighbours change: the name of this site, its neighbours, and all imports of the
    broker's topics."""

    site: str
    neighbours: list[NeighbourAccess] = []
    imports: list[ImportFlows] = []
    complete: bool = True
    """False from a coordinator that has just started: imports that it does not name go on until it knows more."""


FromCoordinator = (
    SetCapacity
    | ReportProfile
    | ExpectReceivers
    | RedirectReceivers
    | ReleaseVisitors
    | ReportPublishers
    | LimitPublishers
    | Federate
    | ImportFlows
)
