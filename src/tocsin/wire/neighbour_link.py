"""The messages between coordinators of neighbouring sites, on a connection of their own [ePEER §4.3.2, decision 21].

The site with the smaller name opens the connection. `Hello` and `Welcome` agree on the epoch of the link; then each
side sends all that it advertises and subscribes. Messages of topics never use this connection.
"""

from __future__ import annotations

import msgspec

from tocsin.model.ids import TopicName

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


class Welcome(NeighbourMessage, frozen=True, tag="welcome"):
    """The answer to `Hello`."""

    site: str
    link: int
    run: int


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


FromNeighbour = Hello | Welcome | Advertise | Advertised | Withdraw | SubscribeFlow | UnsubscribeFlow | Ping | Pong
