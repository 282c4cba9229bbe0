"""The records of the topics core: topics, connections, and the state that its parts share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from tocsin.broker.message_encoding import Encoding
from tocsin.broker.topics.effects import CloseConnection, Effect, RecordRefusal, Send, SendToCoordinator
from tocsin.broker.topics.encoding import encoded
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.home_log import HomeLog
from tocsin.broker.topics.lease import Lease
from tocsin.broker.topics.limits import TopicLimits
from tocsin.broker.topics.publisher_shares import PublisherShares
from tocsin.broker.topics.receivers import Receivers
from tocsin.broker.topics.recorder import Recorder
from tocsin.coords.coordinate import Coordinate
from tocsin.model.flow import is_flow, is_mark
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import topic as wire
from tocsin.wire import topic_link
from tocsin.wire.errors import Code
from tocsin.wire.site_link import Client
from tocsin.wire.site_link import FromBroker as SiteReport


class Phase(IntEnum):
    PREPARED = 0
    """This broker is the target of a move: clients attach and wait, and no message is accepted."""
    OPEN = 1
    """This broker is the home. It accepts messages while its lease holds."""
    STOPPED = 2
    """This broker is the source of a move: it accepts nothing and sends what it has accepted."""
    RELAYED = 3
    """This broker is an edge: it passes the messages of the home on, with the home's positions."""


PIECE_BYTES = 128 << 10
"""The default of `TopicsState.piece_bytes`."""

PREPARED, OPEN, RELAYED = Phase.PREPARED, Phase.OPEN, Phase.RELAYED
"""For code that runs with every message: Python 3.11 looks a member up in its class twenty times slower."""

Waiting = wire.AttachSender | wire.AttachReceiver | wire.Publish


@dataclass(slots=True, eq=False)
class PlannedMove:
    """A direct hand-over that the source announced to its clients."""

    order: topic_link.StopTopic
    until_s: float
    """When the source hands over even if some clients are not ready."""
    awaited: set[ConnectionId]
    """Clients that are not ready."""


@dataclass(slots=True, eq=False)
class FlowReceiver:
    """A neighbouring site that receives some flows of a topic."""

    own: int
    """The flow of this site."""
    numbers: dict[int, int]
    """Flow → the last number that the neighbour has."""
    starts: dict[int, int] = field(default_factory=dict)
    """Flow → the sequence number behind which it continues."""
    pending: dict[int, bool] = field(default_factory=dict)
    """Flows of which messages may be missing in front of the next one; True if that does not depend on its number."""
    live: bool = False
    """The neighbour has got everything up to the last flush."""
    sent: int = 0
    """The last sequence number that was reported to the neighbour."""


@dataclass(slots=True, eq=False)
class HostedTopic:
    name: TopicName
    at: int
    """Its number in messages to clients."""
    epoch: int
    phase: Phase
    sequence: int = 0
    """The last sequence number that was used."""
    since: int = 0
    """The sequence has continued without a gap since this epoch."""
    publishers: dict[int, int] = field(default_factory=dict)
    """Publisher → its last accepted number, latest attach last."""
    shares: PublisherShares = field(default_factory=PublisherShares)
    """The same publishers by user."""
    recent: deque[wire.Entry] = field(default_factory=deque)
    """The last accepted messages, without holes, up to `sequence`."""
    unsent: list[wire.Entry] = field(default_factory=list)
    """Accepted since the last flush: the end of `recent`, or more if that was trimmed. Persistent topics: not committed
    yet."""
    senders: dict[ConnectionId, None] = field(default_factory=dict)
    live: Receivers = field(default_factory=Receivers)
    """Receivers that have got everything up to the last flush."""
    lagging: dict[ConnectionId, int] = field(default_factory=dict)
    """Receivers whose connection is full → the last sequence number that was sent to them."""
    relays: set[ConnectionId] = field(default_factory=set)
    """Those of the receivers that relay the topic to the receivers of an edge. They stay at the home."""
    flows: dict[ConnectionId, FlowReceiver] = field(default_factory=dict)
    """Neighbouring sites that receive flows. While their connection is full, they are in `lagging` too."""
    marked: bool = False
    """The topic has marks in its sequence (`model.flow`): clients get gaps instead."""
    waiting: list[tuple[ConnectionId, Waiting]] = field(default_factory=list)
    """Attaches, and messages of senders among them, that arrived before the topic was opened."""
    waiting_bytes: int = 0
    """Of the messages among them."""
    base: int = 0
    """The last sequence number of the former home; 0 in a new sequence."""
    planned: PlannedMove | None = None
    """The source of a direct hand-over: since the clients know of it."""
    handed_over: bool = False
    """STOPPED: the target has been sent the state. This broker never accepts again in this epoch."""
    moved_to: tuple[BrokerId, str] | None = None
    """STOPPED: broker and address of the target."""
    reported: topic_link.TopicLatency | None = None
    """The last report about its clients and its rate."""
    counted: tuple[float, int, float | None] | None = None
    """(time, sequence number, messages per second before) at the last look. Since the topic was opened without a
    rate; None before that."""
    log: HomeLog | None = None
    """Of a persistent topic, while this broker is its home or becomes it."""
    recorder: Recorder | None = None
    """Records the messages into a dataset, if the topic has one."""

    @property
    def sent(self) -> int:
        """The last sequence number that live receivers have got."""
        return self.sequence - len(self.unsent)

    @property
    def clients(self) -> dict[ConnectionId, None]:
        """Every connection that sends or receives."""
        return dict.fromkeys((*self.senders, *self.live, *self.lagging, *self.flows))

    def epoch_at(self, sequence: int) -> tuple[int, int]:
        """The epoch of a recent message, and the last sequence number that belongs to the same epoch."""
        return self.epoch, self.sequence

    def start_behind(self, after: tuple[int, int] | None) -> tuple[int, tuple[int, int] | None]:
        """The sequence number to start behind, and from where on messages of an earlier epoch are lost."""
        if after is None:
            return self.sent, None
        epoch, sequence = after
        if epoch >= self.since:
            return min(max(sequence, 0), self.sent), None
        if epoch == 0:
            return 0, None  # from the oldest message that the home keeps
        return 0, (epoch, sequence + 1)

    def open(self, epoch: int, state: topic_link.TopicState | None) -> None:
        """Begin an epoch: with the sequence that the source handed over, or with a new one."""
        self.phase, self.epoch, self.moved_to = Phase.OPEN, epoch, None
        if state is None:
            self.sequence, self.since = 0, epoch
            self.set_publishers([])
        else:
            self.sequence, self.since = state.sequence, state.since
            self.set_publishers(state.publishers, state.owners)
        self.base = self.sequence

    def set_publishers(
        self, publishers: Iterable[tuple[int, int]], owners: Iterable[tuple[int, list[int]]] = ()
    ) -> None:
        """Continue with the publishers of an earlier epoch; `owners` as in `TopicState`."""
        self.publishers, self.shares = dict(publishers), PublisherShares()
        known = {publisher: owner for owner, owned in owners for publisher in owned}
        self.marked = any(map(is_mark, self.publishers))
        for publisher in self.publishers:
            if not is_flow(publisher):  # the numbers of flows are never forgotten
                self.shares.add(publisher, known.get(publisher, 0))

    def handed_state(self) -> topic_link.TopicState:
        """What the target of a move continues."""
        return topic_link.TopicState(self.sequence, self.since, list(self.publishers.items()), self.shares.owners())


@dataclass(slots=True, eq=False)
class ReceiverRatings:
    """What a receiver thinks of the publishers of one topic."""

    tolerates_s: float | None = None
    """The delay after which a message is of no use to it; None: any delay is tolerated."""
    utilities: dict[int, float] = field(default_factory=dict)
    """Publisher → the mean of its ratings, the latest of which weigh most."""


@dataclass(slots=True, eq=False)
class Connection:
    id: ConnectionId
    user: str
    encoding: Encoding
    scopes: frozenset[str]
    expires_s: float | None
    allowance: float
    """Messages that the connection may publish now."""
    allowed_at_s: float
    heard_s: float = 0.0
    """When the last frame was sent to it; frames with messages of a topic do not count."""
    blocked: bool = False
    senders: dict[TopicName, int] = field(default_factory=dict)
    """Topic → its publisher there."""
    unhurried: set[int] = field(default_factory=set)
    """Numbers of the topics whose messages are acknowledged at the next tick."""
    receiving: dict[TopicName, HostedTopic] = field(default_factory=dict)
    ratings: dict[int, ReceiverRatings] = field(default_factory=dict)
    """By the number of the topic: only of topics whose messages the receiver may skip if it is slow."""
    run: int = 0
    """The client's own number for this run of its program; 0 if it has none."""
    nonce: int | None = None
    """The number of a probe that the client has not returned yet."""
    probed_s: float = float("-inf")
    """When that number was sent."""
    round_trips: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=8))
    """(time, seconds) of the last round trips to the client, as this broker measured them."""
    coordinate: Coordinate | None = None
    """The client's coordinate: reported and checked, or corrected."""

    @property
    def client(self) -> Client:
        """Its name in the plans of a site."""
        return f"{self.user}/{self.run}"

    @property
    def rtt_s(self) -> float | None:
        """The lowest of the last round trips: a busy machine adds to most of them. None before the first."""
        return min(rtt_s for _, rtt_s in self.round_trips) if self.round_trips else None


@dataclass(slots=True)
class TopicsState:
    broker: BrokerId
    limits: TopicLimits
    lease: Lease = field(default_factory=Lease)
    now_s: float = 0.0
    topics: dict[TopicName, HostedTopic] = field(default_factory=dict)
    by_number: dict[int, HostedTopic] = field(default_factory=dict)
    connections: dict[ConnectionId, Connection] = field(default_factory=dict)
    recent_order: deque[HostedTopic] = field(default_factory=deque)
    """The topic of every kept message, oldest first."""
    recent_bytes: int = 0
    piece_bytes: int = PIECE_BYTES
    """Bytes of recent messages in one frame to a receiver that lags. While the output is limited, they are fewer, and
    those of every frame with messages."""
    dirty: dict[TopicName, HostedTopic] = field(default_factory=dict)
    """Topics with unsent messages."""
    unlogged: dict[TopicName, HostedTopic] = field(default_factory=dict)
    """Persistent topics with messages that were not handed to the log yet."""
    acknowledge: dict[tuple[ConnectionId, int], int] = field(default_factory=dict)
    """(connection, topic) → number to acknowledge at the next flush."""
    acknowledge_later: dict[tuple[ConnectionId, int], int] = field(default_factory=dict)
    """The same for senders that do not wait: at the next tick."""
    effects: list[Effect] = field(default_factory=list)
    site: str = ""
    """The name of this site among its neighbours; empty if it has none."""
    topic_numbers: int = 0
    accepted: int = 0
    """Messages accepted since the start of the process."""
    delivered: int = 0
    """Messages handed to connections since the start of the process."""
    missed: int = 0
    """Messages that a gap reported to some receiver instead."""

    def add_topic(self, name: TopicName, epoch: int, phase: Phase) -> HostedTopic:
        topic = self.topics[name] = HostedTopic(name, self.next_topic_number(), epoch, phase)
        self.by_number[topic.at] = topic
        return topic

    def next_topic_number(self) -> int:
        self.topic_numbers += 1
        return self.topic_numbers

    def send(self, connection: Connection, message: wire.ToClient) -> None:
        connection.heard_s = self.now_s
        self.effects.append(Send((connection.id,), message, encoded(message, connection.encoding)))

    def send_to_all(self, connections: Iterable[ConnectionId], message: wire.ToClient) -> None:
        """Send one message to many connections: one frame per encoding."""
        receivers = Receivers()
        for identity in connections:
            connection = self.connections[identity]
            connection.heard_s = self.now_s
            receivers[identity] = connection.encoding
        self.fan_out(receivers, message)

    def fan_out(self, receivers: Receivers, message: wire.ToClient) -> None:
        for encoding, group in receivers.groups().items():
            self.effects.append(Send(group, message, encoded(message, encoding)))

    def refuse(
        self, connection: Connection, request: int, code: Code, message: str, retry_after_s: float | None = None
    ) -> None:
        self.send(connection, wire.Refused(request, str(code), message, retry_after_s))

    def forbid(self, connection: Connection, request: int, action: str, topic: TopicName) -> None:
        """Refuse an attach because the token does not permit it."""
        self.refuse(connection, request, Code.FORBIDDEN, f"this token has no scope {action} for {topic}")
        self.effects.append(RecordRefusal(connection.user, action, topic))

    def forget_recent(self, topic: HostedTopic) -> None:
        """Keep none of the topic's messages any more."""
        self.recent_bytes -= sum(len(entry[2]) for entry in topic.recent)
        if topic.recent:
            topic.recent.clear()
            kept = [other for other in self.recent_order if other is not topic]
            self.recent_order.clear()
            self.recent_order.extend(kept)

    def report(self, message: topic_link.FromBroker | SiteReport) -> None:
        self.effects.append(SendToCoordinator(message))

    def close(self, connection: Connection, reason: str, text: str, reconnect: bool) -> None:
        self.send(connection, wire.Closing(reason, text, reconnect))
        self.effects.append(CloseConnection(connection.id, reason))
