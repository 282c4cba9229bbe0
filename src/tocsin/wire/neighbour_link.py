"""The messages between coordinators of neighbouring sites, on a connection of their own [ePEER §4.3.2, decision 21].

The site with the smaller name opens the connection. `Hello` and `Welcome` agree on the epoch of the link; then each
side sends all that it advertises and subscribes. Messages of topics never use this connection.
"""

from __future__ import annotations

import msgspec

from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire.site_link import Client, Role

PATH = "/v1/sites/{site}/link"


class NeighbourMessage(msgspec.Struct, frozen=True, tag_field="type"):
    pass


class Hello(NeighbourMessage, frozen=True, tag="hello"):
    """The first message of the site that has opened the connection."""

    site: str
    link: int
    """The epoch of the link. It grows with each connection, also across restarts of the coordinator."""
    run: int
    """How often the sender's coordinator has started: a higher number is a restart."""
    visits: bool = False
    """The sender knows the messages of `Exchange`. A release without them would end the connection at the first."""


class Welcome(NeighbourMessage, frozen=True, tag="welcome"):
    """The answer to `Hello`."""

    site: str
    link: int
    run: int
    visits: bool = False


class Kept(msgspec.Struct, frozen=True):
    """How the sender keeps a persistent topic (`model.topic_persistence`). A site that gets to know the topic by an
    advertisement keeps it in the same way, as far as it has brokers."""

    replicas: int
    quorum: int
    retain_bytes: int
    retain_s: float | None = None


class Advertise(NeighbourMessage, frozen=True, tag="advertise"):
    """The sender offers the flow of `path[0]`, the site of its publishers. The path leads to the sender."""

    topic: TopicName
    path: list[str]
    kept: Kept | None = None


class Advertised(NeighbourMessage, frozen=True, tag="advertised"):
    """After the greeting: the sender has sent everything that it advertises."""


class Withdraw(NeighbourMessage, frozen=True, tag="withdraw"):
    topic: TopicName
    source: str


class SubscribeFlow(NeighbourMessage, frozen=True, tag="subscribe_flow"):
    """The sender receives this flow from the receiver of this message: its home attaches to the home there."""

    topic: TopicName
    source: str


class UnsubscribeFlow(NeighbourMessage, frozen=True, tag="unsubscribe_flow"):
    topic: TopicName
    source: str


class Ping(NeighbourMessage, frozen=True, tag="ping"):
    """Both sides send it again and again: it measures the round trip, and a link without any message is lost."""

    number: int


class Pong(NeighbourMessage, frozen=True, tag="pong"):
    number: int


# -- offloading between sites ------------------------------------------------------------------------------------------


class BrokerState(msgspec.Struct, frozen=True, array_like=True):
    """A broker of the sender, as its own offloading sees it [ePEER §4.4.1.3]."""

    broker: BrokerId
    role: Role
    state: int
    """A `LoadState`."""
    load: tuple[float, float, float]
    """Bytes/s in, bytes/s out, messages/s matched: the averages."""
    capacity: tuple[float | None, float | None, float | None]
    """In the same units; None is unlimited."""
    topics: list[TopicName]
    """Shared topics with load or clients there."""


class SiteReport(NeighbourMessage, frozen=True, tag="site_report"):
    """Each second: the heads and edges of the sender."""

    brokers: list[BrokerState]


class HostReceivers(NeighbourMessage, frozen=True, tag="host_receivers"):
    """The sender's edges have no capacity left: may these receivers of a topic attach to an edge of the neighbour?"""

    number: int
    topic: TopicName
    broker: BrokerId
    clients: list[Client]
    load: tuple[float, float, float]
    """What they add to that edge."""
    token: str
    """The sender's token for this site: it must permit `receive:<topic>`."""

    def __repr__(self) -> str:
        """Without the token: the text may get into a log."""
        return f"HostReceivers(number={self.number}, topic={self.topic!r}, broker={self.broker!r})"


class Hosting(NeighbourMessage, frozen=True, tag="hosting"):
    """The answer: the edge expects the receivers."""

    number: int
    address: str
    home: str
    """The address of the topic's home."""
    tokens: dict[Client, str]
    """For each receiver: it permits to receive this topic, for a short time."""

    def __repr__(self) -> str:
        """Without the tokens: the text may get into a log."""
        return f"Hosting(number={self.number}, address={self.address!r})"


class NotHosting(NeighbourMessage, frozen=True, tag="not_hosting"):
    """The other answer."""

    number: int
    reason: str


class VisitorArrived(NeighbourMessage, frozen=True, tag="visitor_arrived"):
    """One of the receivers of a `HostReceivers` is attached and has caught up."""

    number: int
    client: Client


Exchange = SiteReport | HostReceivers | Hosting | NotHosting | VisitorArrived
"""The messages of offloading between sites."""
FromNeighbour = (
    Hello
    | Welcome
    | Advertise
    | Advertised
    | Withdraw
    | SubscribeFlow
    | UnsubscribeFlow
    | Ping
    | Pong
    | SiteReport
    | HostReceivers
    | Hosting
    | NotHosting
    | VisitorArrived
)
