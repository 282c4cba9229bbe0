"""What heads say to each other, what happens to a head and what it asks its driver to do [ePEER §4.3.2].

Plain values. The words of the thesis: an ADV is `Advertise`, a subscription request M_req is `Subscribe`, a message on
a federation F<H, B, t> is `Carry`. A thesis' ADV names the topic, the head it was passed on by (the bypass broker) and
the head it comes from (the source broker). Ours carries all heads in between as well: the source is the first of
`path`, the bypass broker the last. A head that finds itself in a path knows that the way leads through itself, which
is what lets a lost neighbour be routed around without ever going in circles.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.offload_types import PublisherId
from tocsin.policies.topics.types import TopicName


class Flow(NamedTuple):
    """All that one head's publishers say on one topic. Duplicates and routes are kept per flow."""

    topic: TopicName
    source: BrokerId


class Number(NamedTuple):
    """Of a message, within its source. A head that restarts has a higher life, so its numbers never fall."""

    life: int
    serial: int


# Between heads. Links between heads keep the order of messages and lose none while they last.


@dataclass(frozen=True, slots=True)
class Advertise:
    topic: TopicName
    path: tuple[BrokerId, ...]

    @property
    def flow(self) -> Flow:
        return Flow(self.topic, self.path[0])


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The sender no longer offers this flow to the receiver."""

    flow: Flow


@dataclass(frozen=True, slots=True)
class Subscribe:
    flow: Flow


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    flow: Flow


@dataclass(frozen=True, slots=True)
class Carry:
    flow: Flow
    number: Number
    body: Any


HeadMessage = Advertise | Withdraw | Subscribe | Unsubscribe | Carry


# Events: what happened to a head.


@dataclass(frozen=True, slots=True)
class NeighbourJoined:
    """A link to a neighbouring head is up. `link` numbers its lives: both ends know the same number, and a later life
    has a higher one. Joining with a new number while the old one seems alive means that the old one is lost."""

    head: BrokerId
    link: int


@dataclass(frozen=True, slots=True)
class NeighbourLost:
    head: BrokerId
    link: int


@dataclass(frozen=True, slots=True)
class MessageReceived:
    head: BrokerId
    link: int
    message: HeadMessage


@dataclass(frozen=True, slots=True)
class PublisherJoined:
    publisher: PublisherId
    topic: TopicName


@dataclass(frozen=True, slots=True)
class PublisherLeft:
    publisher: PublisherId
    topic: TopicName


@dataclass(frozen=True, slots=True)
class SubscriberJoined:
    """Also when a subscriber changes its edge: the later edge counts."""

    subscriber: SubscriberId
    topic: TopicName
    edge: BrokerId


@dataclass(frozen=True, slots=True)
class SubscriberLeft:
    subscriber: SubscriberId
    topic: TopicName


@dataclass(frozen=True, slots=True)
class EdgeLost:
    """All its subscribers are gone until they register again."""

    edge: BrokerId


@dataclass(frozen=True, slots=True)
class Published:
    publisher: PublisherId
    topic: TopicName
    body: Any


Event = (
    NeighbourJoined
    | NeighbourLost
    | MessageReceived
    | PublisherJoined
    | PublisherLeft
    | SubscriberJoined
    | SubscriberLeft
    | EdgeLost
    | Published
)


# Effects: what the driver is asked to do.


@dataclass(frozen=True, slots=True)
class SendToHead:
    """On the present link; if that is gone, the message is gone with it."""

    head: BrokerId
    message: HeadMessage


@dataclass(frozen=True, slots=True)
class SendToEdge:
    """Once per edge: the edge fans it out to its own subscribers of the topic."""

    edge: BrokerId
    topic: TopicName
    number: Number
    body: Any


class Code(StrEnum):
    NOT_A_NEIGHBOUR = "not-a-neighbour"
    OLD_LINK = "old-link"
    BAD_PATH = "bad-path"
    UNKNOWN_PUBLISHER = "unknown-publisher"
    NOT_ASKED_FOR = "not-asked-for"
    """A message from a neighbour that this head does not listen to for that flow: the route has just changed."""
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class Reject:
    """Nothing changed. For a log and a counter; the peer need not be told."""

    code: Code
    detail: str


Effect = SendToHead | SendToEdge | Reject
