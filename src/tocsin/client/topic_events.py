"""Events and effects of a topic session, and the items that an application receives."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.model.ids import TopicName
from tocsin.model.topic import Position
from tocsin.wire import topic as wire
from tocsin.wire.topic_directory import WatchAnswer
from tocsin.wire.topic_envelope import MessageProperties

# -- for the application -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicMessage:
    topic: TopicName
    data: bytes
    position: Position
    publisher: int
    """One run of one publishing program."""
    number: int
    """The publisher's number of the message; numbers of a publisher grow."""
    properties: MessageProperties | None = None
    """What an MQTT client sent with the message: content type, response topic, user properties; None without any."""


@dataclass(frozen=True, slots=True)
class TopicGap:
    """Messages that are missing."""

    topic: TopicName
    epoch: int
    first: int
    """The first missing sequence number."""
    last: int | None
    """The last one; None if that is not known, because the topic's home failed."""


@dataclass(frozen=True, slots=True)
class TopicFailure:
    """The subscription cannot continue with this topic."""

    topic: TopicName
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class TopicFrame:
    """For relays: what a home sent, with its positions. Applications never get it."""

    topic: TopicName
    message: wire.ReceiverAttached | wire.Messages | wire.Gap


Item = TopicMessage | TopicGap | TopicFailure | TopicFrame

# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishRequested:
    ticket: int
    topic: TopicName
    data: bytes


@dataclass(frozen=True, slots=True)
class FlushDue:
    """The turn of the event loop is over: send what was published in it."""


@dataclass(frozen=True, slots=True)
class SubscribeRequested:
    subscription: int
    pattern: str
    after: Position | None = None
    """Begin behind this position; None begins with the next message of each topic."""


@dataclass(frozen=True, slots=True)
class UnsubscribeRequested:
    subscription: int


@dataclass(frozen=True, slots=True)
class DirectoryReceived:
    answer: WatchAnswer
    receive: tuple[str, ...]
    """The patterns that the request named."""


@dataclass(frozen=True, slots=True)
class LandmarksReceived:
    """Connect to these brokers for a while, to measure them."""

    token: str
    addresses: list[str]


@dataclass(frozen=True, slots=True)
class GatewayChanged:
    """The client has moved: the broker at this address is near it now. None: the client stays where it is."""

    address: str | None


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    connection: int


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class MessageReceived:
    connection: int
    message: wire.ToClient


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; the driver reports it several times a second."""

    reads: bool = True
    """False while the driver does not read its connections, because the application has not taken earlier items."""


Event = (
    PublishRequested
    | FlushDue
    | SubscribeRequested
    | UnsubscribeRequested
    | DirectoryReceived
    | LandmarksReceived
    | GatewayChanged
    | ConnectionOpened
    | ConnectionLost
    | MessageReceived
    | Ticked
)

# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    connection: int
    address: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    connection: int


@dataclass(frozen=True, slots=True)
class Send:
    connection: int
    message: wire.FromClient


@dataclass(frozen=True, slots=True)
class Watch:
    """Ask the coordinator for these topics from now on."""

    send: tuple[TopicName, ...]
    receive: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestFlush:
    """Report `FlushDue` at the end of this turn of the event loop."""


@dataclass(frozen=True, slots=True)
class Deliver:
    subscription: int
    items: list[Item]


@dataclass(frozen=True, slots=True)
class MarkReady:
    """The subscription receives every topic that existed when it began."""

    subscription: int


@dataclass(frozen=True, slots=True)
class Settle:
    """A published message is acknowledged, or refused for good."""

    ticket: int
    code: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """The home limits this client's messages to a topic; None: no longer."""

    topic: TopicName
    per_s: float | None


Effect = Connect | Disconnect | Send | Watch | RequestFlush | Deliver | MarkReady | Settle | LimitChanged
