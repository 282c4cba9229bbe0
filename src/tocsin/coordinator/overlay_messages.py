"""The messages between heads, and the events and effects of a head [ePEER §4.3.2].

Plain values. In the words of the thesis, an ADV is `Advertise`, a subscription request M_req is `SubscribeFlow`, and a
message on a federation F<H, B, t> is `Carry`. The thesis' ADV names the topic, the head that forwarded it (the bypass
broker) and the head of the publishers (the source broker). Ours carries all heads in between as well: the source is the
first of `path`, the bypass broker the last. A head in a path knows that this route leads through itself, so the overlay
can route around a lost neighbour without loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.types import PublisherId
from tocsin.policies.topics.types import TopicName


class Flow(NamedTuple):
    """All messages of one head's publishers on one topic. Routes and duplicates are tracked per flow."""

    topic: TopicName
    source: BrokerId


class Number(NamedTuple):
    """The number of a message within its source. A restarted head has a higher epoch, so its numbers never fall."""

    epoch: int
    serial: int


# Messages between heads. A link keeps their order and loses none while it is up.


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
class SubscribeFlow:
    flow: Flow


@dataclass(frozen=True, slots=True)
class UnsubscribeFlow:
    flow: Flow


@dataclass(frozen=True, slots=True)
class Carry:
    flow: Flow
    number: Number
    body: Any


HeadMessage = Advertise | Withdraw | SubscribeFlow | UnsubscribeFlow | Carry


# Events.


@dataclass(frozen=True, slots=True)
class NeighbourJoined:
    """A link to a neighbouring head is up. `link` is the epoch of the link: both ends know the same number, and a later
    epoch has a higher one. A new epoch while the old one seems to be up means that the old one is lost."""

    head: BrokerId
    link: int


@dataclass(frozen=True, slots=True)
class NeighbourReturned:
    """A new link to a neighbouring head replaces one that has just broken. Unlike after `NeighbourJoined`, its routes
    stay until `NeighbourAdvertised`."""

    head: BrokerId
    link: int


@dataclass(frozen=True, slots=True)
class NeighbourAdvertised:
    """The neighbour has sent all its advertisements over the new link."""

    head: BrokerId
    link: int


@dataclass(frozen=True, slots=True)
class NeighbourLost:
    head: BrokerId
    link: int


@dataclass(frozen=True, slots=True)
class HeadMessageReceived:
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
    """A subscriber joined or changed its edge: the later edge counts."""

    subscriber: SubscriberId
    topic: TopicName
    edge: BrokerId


@dataclass(frozen=True, slots=True)
class SubscriberLeft:
    subscriber: SubscriberId
    topic: TopicName


@dataclass(frozen=True, slots=True)
class EdgeLost:
    """The edge failed. Its subscribers are removed until they register again."""

    edge: BrokerId


@dataclass(frozen=True, slots=True)
class MessagePublished:
    publisher: PublisherId
    topic: TopicName
    body: Any


LinkEvent = NeighbourJoined | NeighbourReturned | NeighbourAdvertised | NeighbourLost | HeadMessageReceived
ClientEvent = PublisherJoined | PublisherLeft | SubscriberJoined | SubscriberLeft | EdgeLost | MessagePublished
Event = LinkEvent | ClientEvent


# Effects.


@dataclass(frozen=True, slots=True)
class SendToHead:
    """Send a message over the present link to a head. If that link is down, the message is lost."""

    head: BrokerId
    message: HeadMessage


@dataclass(frozen=True, slots=True)
class SendToEdge:
    """Send a message once per edge. The edge delivers the message to its own subscribers of the topic."""

    edge: BrokerId
    topic: TopicName
    number: Number
    body: Any


class OverlayCode(StrEnum):
    NOT_A_NEIGHBOUR = "not-a-neighbour"
    OLD_LINK = "old-link"
    BAD_PATH = "bad-path"
    BAD_TOPIC = "bad-topic"
    TOO_MANY = "too-many"
    """The neighbour offers more flows than this site accepts from one neighbour."""
    NOT_OFFERED = "not-offered"
    """A subscription of a flow that this head does not offer to that neighbour, or not any more."""
    UNKNOWN_PUBLISHER = "unknown-publisher"
    NOT_ASKED_FOR = "not-asked-for"
    """A message from a neighbour from which this head has not subscribed the flow: the route has just changed."""
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class OverlayRejection:
    """An event that changed nothing. The driver logs and counts it; the head does not notify the peer."""

    code: OverlayCode
    detail: str


Effect = SendToHead | SendToEdge | OverlayRejection
