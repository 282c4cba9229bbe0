"""The protocol between a client and the home broker of its topics: a WebSocket of its own, beside the session.

JSON text frames, or MessagePack binary frames in the subprotocol `tocsin.msgpack`. JSON carries the bytes of a message
as base64. A request with an `id` gets one answer with that id. One `publish` and one `messages` carry many messages:
both sides collect what is ready and send it as one frame.

`at` is the number of a topic at this broker, which the answer to an attach names. All connections to the broker use the
same number, so that one encoded frame serves every receiver.

A publisher numbers its messages to a topic without holes. The home accepts them in this order: it acknowledges a number
that it has accepted before, and ignores numbers beyond the one it expects. `not_accepted` with a code that allows a
retry leaves the expected number as it is, so the publisher sends from there again; with any other code the message is
dropped and the next number is expected.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, TopicName

PATH = "/v1/topics"

Number = int
"""A publisher's number of a message, from 1."""


# -- from the client ---------------------------------------------------------------------------------------------------


class FromClientMessage(msgspec.Struct, tag_field="op", forbid_unknown_fields=True):
    pass


class Login(FromClientMessage, tag="login"):
    """The first request on a connection."""

    id: int
    token: str | None = None
    """Needed if the handshake had none."""
    run: int = 0
    """The client's own number for this run of the program, the same on all its connections; 0 if it has none."""


class AttachSender(FromClientMessage, tag="attach_sender"):
    id: int
    topic: TopicName
    run: int
    """The client's own number for this run of the program, drawn at random."""
    number: Number = 1
    """The first number that was not acknowledged yet."""
    prompt: bool = True
    """False if the sender does not wait for acknowledgements: the home then sends one several times a second instead of
    one for every turn of its event loop."""


class AttachReceiver(FromClientMessage, tag="attach_receiver"):
    id: int
    topic: TopicName
    after: tuple[int, int] | None = None
    """The last received position (epoch, sequence); None starts with the next message."""
    early: bool = False
    """True after `moving`: the receiver gets the source's messages from the source, and those of this home from the
    first one on."""
    flows: dict[str, int] | None = None
    """From a neighbouring site: the sites whose flows it receives, and the last number that it has of each; 0 for none.
    With `after`, these are the flows of its last attach here, and it has everything of them up to that position."""
    at_home: bool = False
    """From an edge that relays the topic: only its home may answer. Another edge would relay to a relay."""


class FindPosition(FromClientMessage, tag="find_position"):
    """From a receiver that changes sites, to a home: the position behind which it has to attach at an edge of the site.
    Answered with `position_found`."""

    id: int
    topic: TopicName
    flows: dict[int, int] | None = None
    """Flow (`model.flow`) → the last number that the receiver has of it. None asks for the numbers of all flows."""
    after: tuple[int, int] | None = None
    """Without `flows`: the receiver's last position (epoch, sequence) here. The home answers with the numbers there, or
    with those of the present position if it does not keep the messages in between."""


class Publish(FromClientMessage, tag="publish"):
    """Messages with consecutive numbers, the first of which is `number`."""

    at: int
    number: Number
    messages: list[bytes]


class Detach(FromClientMessage, tag="detach"):
    """Stop receiving a topic. Senders need no detach."""

    id: int
    at: int


class Ready(FromClientMessage, tag="ready"):
    """The answer to `moving`: the client's attaches wait at the target."""

    at: int


class Ping(FromClientMessage, tag="ping"):
    id: int


class Probe(FromClientMessage, tag="probe"):
    """Measure the round trip to a broker whose `logged_in` has `probes`. Answered with `probed`."""

    id: int


class Locate(FromClientMessage, tag="locate"):
    """The answer to `probed`, sent at once: the broker measures its own round trip to the client by it."""

    nonce: int
    coordinate: Coordinate | None = None
    """The client's network coordinate; None if it has too few measurements."""
    moved: bool = False
    """The client has changed its gateway since its last `locate`: earlier round trips do not count any more."""


class Feedback(FromClientMessage, tag="feedback"):
    """From a receiver, once a second at most: its average rating of each publisher of a topic, in [0, 1]."""

    at: int
    ratings: dict[int, float]
    may_skip: bool = False
    """If this receiver is slow, skip the messages that it rates lowest; a gap reports them. False for a persistent
    topic."""
    tolerates_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Messages that are older than this are skipped first; None: only by their ratings."""


class Offered(FromClientMessage, tag="offered"):
    """From a limited sender, once a second: the messages that its application wanted to publish, per second."""

    at: int
    per_s: float


FromClient = (
    Login
    | AttachSender
    | AttachReceiver
    | FindPosition
    | Publish
    | Detach
    | Ready
    | Ping
    | Probe
    | Locate
    | Feedback
    | Offered
)


# -- to the client: answers --------------------------------------------------------------------------------------------


class ToClientMessage(msgspec.Struct, tag_field="type"):
    pass


class LoggedIn(ToClientMessage, tag="logged_in"):
    id: int
    broker: BrokerId
    beat_s: float
    """Longest pause between two messages on a healthy connection."""
    message_bytes: int
    """Largest message."""
    frame_bytes: int
    """Largest frame."""
    probes: bool = False
    """True if this broker answers `probe`."""


class SenderAttached(ToClientMessage, tag="sender_attached"):
    id: int
    at: int
    number: Number
    """The number that the home expects next. It has accepted all earlier ones."""


class ReceiverAttached(ToClientMessage, tag="receiver_attached"):
    """Messages after this position follow; a `gap` reports the part that the home does not have any more."""

    id: int
    at: int
    epoch: int
    sequence: int
    missed: tuple[int, int] | None = None
    """(epoch, first sequence): messages of an earlier epoch from there on may be lost. How many is not known."""
    since: int = 0
    """The sequence has continued without a gap since this epoch; 0 if that is not said."""


class PositionFound(ToClientMessage, tag="position_found"):
    id: int
    own: int
    """The flow of this home's site: the messages of its own clients."""
    epoch: int
    sequence: int
    """The receiver has every message up to here. It may have later ones too."""
    since: int
    """The sequence has continued without a gap since this epoch."""
    own_sequence: int
    """The receiver has every message of this site's clients up to here."""
    flows: dict[int, int]
    """The last number of each flow of another site at this position, if the request asks for that."""
    missed: bool = False
    """Messages of this site's clients behind the receiver's number may be lost."""


class Waiting(ToClientMessage, tag="waiting"):
    """The target of a move has not opened the topic yet. The answer to the attach follows when it has.

    A sender may publish already: the target keeps the messages until it opens the topic.
    """

    id: int
    at: int


class Detached(ToClientMessage, tag="detached"):
    id: int


class Pong(ToClientMessage, tag="pong"):
    id: int


class Probed(ToClientMessage, tag="probed"):
    id: int
    nonce: int
    """An unpredictable number: a client cannot send `locate` before it has received this."""
    coordinate: Coordinate | None = None
    """The broker's network coordinate; None if it is not settled."""


class Refused(ToClientMessage, tag="refused"):
    id: int
    code: str
    """A `wire.errors.Code`. `not_home`: look the home up and attach there."""
    message: str
    retry_after_s: float | None = None


# -- to the client: pushed ---------------------------------------------------------------------------------------------

Entry = tuple[int, int, bytes]
"""(publisher, number, data). The pair (publisher, number) is the same at every home: clients remove repeats by it."""


class Messages(ToClientMessage, tag="messages"):
    """Messages with consecutive sequence numbers, the first of which is `sequence`."""

    at: int
    epoch: int
    sequence: int
    messages: list[Entry]


class Gap(ToClientMessage, tag="gap"):
    """Messages that the home does not keep any more and has not sent on this connection."""

    at: int
    epoch: int
    first: int
    last: int


class Acknowledged(ToClientMessage, tag="acknowledged"):
    """The home has accepted this sender's messages up to this number."""

    at: int
    number: Number


class NotAccepted(ToClientMessage, tag="not_accepted"):
    at: int
    number: Number
    code: str
    message: str
    retry_after_s: float | None = None


class Moving(ToClientMessage, tag="moving"):
    """Another broker will be the topic's home: attach there with `early`, and answer `ready`. This home continues to
    accept and to send until `moved`."""

    at: int
    topic: TopicName
    broker: BrokerId
    address: str


class VisitorAccess(msgspec.Struct, frozen=True):
    """How a receiver attaches to an edge of a neighbouring site, its host."""

    site: str
    home: str
    """The address of the topic's home there: it answers `find_position`."""
    token: str
    """It permits to receive this topic, for a short time."""

    def __repr__(self) -> str:
        """Without the token: the text may get into a log."""
        return f"VisitorAccess(site={self.site!r}, home={self.home!r})"


class Redirect(ToClientMessage, tag="redirect"):
    """To a receiver at an edge: receive this topic from another edge. Attach there after the last position, and detach
    here once that is answered. This broker continues to send until then."""

    at: int
    topic: TopicName
    broker: BrokerId
    address: str
    visitor: VisitorAccess | None = None
    """If the other edge belongs to a neighbouring site. Positions of this site mean nothing there."""


class Limit(ToClientMessage, tag="limit"):
    """To a sender: publish no more than this to the topic. The home drops the excess with `not_accepted`, `limited`."""

    at: int
    per_s: float | None
    """Messages per second; None ends the limit."""


class Moved(ToClientMessage, tag="moved"):
    """Another broker is the topic's home: attach there. No message of this home follows on this connection."""

    at: int
    topic: TopicName
    broker: BrokerId
    address: str


class Ended(ToClientMessage, tag="ended"):
    """This broker does not serve the topic any more: look its home up. `unknown_topic`: the topic was deleted."""

    at: int
    topic: TopicName
    code: str
    message: str


class Beat(ToClientMessage, tag="beat"):
    """The connection is alive."""


class Closing(ToClientMessage, tag="closing"):
    """The last message before the connection is closed; the codes are those of `wire.session.CLOSE_CODES`."""

    code: str
    message: str
    reconnect: bool


Answers = LoggedIn | SenderAttached | ReceiverAttached | PositionFound | Waiting | Detached | Pong | Probed | Refused
Pushes = Messages | Gap | Acknowledged | NotAccepted | Moving | Redirect | Limit | Moved | Ended | Beat | Closing
ToClient = Answers | Pushes
