"""The coordinator's records of topics: homes, epochs, leases of brokers and moves in progress [decision 13].

The registry keeps the records and their index consistent; `topic_homes` and `topic_moves` decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.snapshot import Place
from tocsin.model.topic_persistence import Persistence
from tocsin.policies.topics.types import Departure
from tocsin.wire.topic_link import RecordPlan, TopicLatency, TopicState

Holder = tuple[BrokerId, str]
"""One run of a broker: its id and its incarnation. Leases belong to it."""


class TopicMoveStep(StrEnum):
    PREPARING = "preparing"
    """The target gets ready; the source is the home."""
    COPYING = "copying"
    """Persistent topics: the target's log catches up; the source is the home."""
    STOPPING = "stopping"
    """The source stops and reports its state; it is the home. Of a direct hand-over: the source may hand over at any
    time, and the target may have opened the topic."""
    CANCELLING = "cancelling"
    """A direct hand-over is given up, and the source has not confirmed yet that it keeps the topic."""
    OPENING = "opening"
    """The target is the home and has to confirm; then the source forgets the topic."""


@dataclass(slots=True)
class TopicMove:
    source: BrokerId
    source_epoch: int
    target: BrokerId
    epoch: int
    """The epoch in which the target opens the topic."""
    reason: str
    began_s: float
    deadline_s: float
    step: TopicMoveStep = TopicMoveStep.PREPARING
    replicas: tuple[BrokerId, ...] = ()
    """Persistent topics: the brokers that keep the log when the target is the home."""
    direct: bool = False
    """The source hands over to the target itself [decision 18]."""
    looked_up: bool = False
    """The source just closes the topic, as Pulsar does: no target is prepared, and clients look the home up. They find
    it when the target owns the topic."""
    target_run: str = ""
    """The run of the target's process that may open the topic."""

    @property
    def may_have_opened(self) -> bool:
        """True if the target may be accepting messages although the source is the stored home."""
        return self.direct and self.step in (TopicMoveStep.STOPPING, TopicMoveStep.CANCELLING)

    @property
    def hides_home(self) -> bool:
        return self.looked_up and self.step is TopicMoveStep.OPENING


@dataclass(slots=True)
class Election:
    """The choice of a home among the replicas of a persistent topic [decision 16]."""

    epoch: int
    began_s: float
    asked_s: float = float("-inf")
    answers: dict[BrokerId, tuple[int, int]] = field(default_factory=dict)
    """Replica → (last epoch, last sequence number) of its log."""


@dataclass(slots=True)
class TopicLog:
    """How a persistent topic is kept."""

    persistence: Persistence
    replicas: tuple[BrokerId, ...]
    election: Election | None = None
    least: int = 0
    """The sequence number that the home's log reaches, as far as the coordinator knows."""
    opened: bool = False
    """The present home has opened the topic."""
    in_sync: tuple[BrokerId, ...] = ()
    """Replicas whose logs are complete, as the home reported."""
    problem: str | None = None
    failed: BrokerId | None = None
    """The replica whose disk refused last: another one is preferred as home."""


@dataclass(slots=True)
class TopicRecord:
    name: TopicName
    created: int
    """Its first epoch."""
    within_s: float | None = None
    made_on_use: bool = False
    """A message created it, and no statement."""
    holder: Holder | None = None
    """The home; None while no broker can be it."""
    epoch: int = 0
    """The epoch of the present home, or of the last one; 0 before the first."""
    state: TopicState | None = None
    """What the home continues, until the home has confirmed that it has opened the topic."""
    move: TopicMove | None = None
    not_before_s: float = 0.0
    """Assign no home earlier: a former home may still hold its lease, or every broker has refused the topic."""
    place: Place | None = None
    """Where the clients are, as the creator said; not stored."""
    coordinate: Coordinate | None = None
    """The network coordinate of the clients, as the creator said; not stored."""
    first_receiver: Coordinate | None = None
    """The network coordinate of the first receiver, as its client said; not stored."""
    latency: TopicLatency | None = None
    """The last report of the present home about its clients' distances; not stored."""
    log: TopicLog | None = None
    """None for a volatile topic."""
    record: RecordPlan | None = None
    """The dataset that gets every message; None for none."""
    receive_at: tuple[BrokerId, str] | None = None
    """The edge at which new receivers attach, and its address; None: they attach to the home. Not stored."""
    departures: tuple[Departure, ...] = ()
    """The homes that it has left by the control loop; not stored."""
    made_by: str | None = None
    """The user whose message created it; None if its creator has no quota."""
    shortfall: str | None = None
    """Why the control loop cannot keep its bound; None if it can."""
    delay_s: float | None = None
    """The delay that receivers tolerate at most (DELAY)."""
    protected_per_s: float | None = None
    """The rate that publishers keep together in any congestion (PROTECTED)."""

    @property
    def home(self) -> BrokerId | None:
        return None if self.holder is None else self.holder[0]

    @property
    def tolerated_delay_s(self) -> float:
        """DELAY, else WITHIN: receivers of a topic with a bound tolerate no more than it."""
        bounds = [bound for bound in (self.delay_s, self.within_s) if bound is not None]
        return bounds[0] if bounds else float("inf")

    @property
    def reported(self) -> TopicLatency | None:
        """What the present home has reported; None without a home. A report of an earlier home does not count."""
        if self.latency is None or self.holder is None or self.latency.epoch != self.epoch:
            return None
        return self.latency


@dataclass(slots=True)
class TopicRegistry:
    topics: dict[TopicName, TopicRecord] = field(default_factory=dict)
    held: dict[Holder, dict[TopicName, None]] = field(default_factory=dict)
    unassigned: dict[TopicName, None] = field(default_factory=dict)
    """Topics without a home."""
    without_edge: dict[TopicName, None] = field(default_factory=dict)
    """New topics, for which no edge was chosen yet."""
    logged: dict[TopicName, None] = field(default_factory=dict)
    """Persistent topics."""
    moving: dict[TopicName, TopicMove] = field(default_factory=dict)
    queued: dict[TopicName, tuple[BrokerId, str]] = field(default_factory=dict)
    """Moves that wait for others to end → target and reason."""
    leases: dict[Holder, float] = field(default_factory=dict)
    """The time until which this run of a broker may accept messages, as the coordinator counts it."""
    retired: dict[TopicName, tuple[Holder | None, float]] = field(default_factory=dict)
    """Deleted topics: their last home, and until when it may accept messages if it did not hear of the deletion.
    Without a home: until when the source or the target of a move may."""
    epoch: int = 0
    """The last epoch that was given out."""
    settled_s: float = float("-inf")
    """No home of a topic that an earlier process deleted can hold its lease from this time on."""
    stored_lease_s: float = 0.0
    """The longest lease that a broker may hold, as stored: a restart with a shorter setting waits for it too."""
    checked_s: float = 0.0
    patient_until_s: float = 0.0
    """No failover before this time: this process itself was away, and renewals may wait to be read."""
    revision: int = 0
    """Grows with every change that clients see."""
    unannounced: dict[TopicName, None] = field(default_factory=dict)
    """Topics, also deleted ones, whose entry for clients has changed since the driver last woke their watches."""
    made_by: dict[str, int] = field(default_factory=dict)
    """User → number of topics that its messages have created."""
    changed: dict[TopicName, None] = field(default_factory=dict)
    """Topics, also deleted ones, that look different on the dashboard since its last row about them."""

    def add(self, record: TopicRecord) -> None:
        self.topics[record.name] = record
        self.without_edge[record.name] = None
        if record.made_by is not None:
            self.made_by[record.made_by] = self.made_by.get(record.made_by, 0) + 1
        if record.log is not None:
            self.logged[record.name] = None
        self.set_holder(record, record.holder)

    def remove(self, record: TopicRecord) -> None:
        self._leave(record)
        self.unassigned.pop(record.name, None)
        self.without_edge.pop(record.name, None)
        self.moving.pop(record.name, None)
        self.queued.pop(record.name, None)
        self.logged.pop(record.name, None)
        del self.topics[record.name]
        if record.made_by is not None:
            self.made_by[record.made_by] -= 1
            if not self.made_by[record.made_by]:
                del self.made_by[record.made_by]
        self.note_change(record.name)

    def set_holder(self, record: TopicRecord, holder: Holder | None) -> None:
        self._leave(record)
        record.holder = holder
        if holder is None:
            self.unassigned[record.name] = None
        else:
            self.unassigned.pop(record.name, None)
            self.held.setdefault(holder, {})[record.name] = None
        self.note_change(record.name)

    def note_change(self, name: TopicName) -> None:
        """Clients see another entry of this topic from now on."""
        self.revision += 1
        self.unannounced[name] = self.changed[name] = None

    def _leave(self, record: TopicRecord) -> None:
        if record.holder is not None and record.holder in self.held:
            names = self.held[record.holder]
            names.pop(record.name, None)
            if not names:
                del self.held[record.holder]

    def set_move(self, record: TopicRecord, move: TopicMove | None) -> None:
        if record.move is not None and record.move.hides_home:
            self.note_change(record.name)
        record.move = move
        if move is None:
            self.moving.pop(record.name, None)
        else:
            self.moving[record.name] = move
        self.changed[record.name] = None

    def homed_at(self, broker: BrokerId) -> int:
        """The number of topics whose home is this broker, moves in progress included."""
        held = sum(len(names) for holder, names in self.held.items() if holder[0] == broker)
        arriving = sum(1 for move in self.moving.values() if move.target == broker)
        return held + arriving

    def logs_of(self, broker: BrokerId) -> list[tuple[TopicName, int]]:
        """(topic, created) of every log that this broker keeps, or will keep when a move has succeeded."""
        return [
            (record.name, record.created)
            for record in (self.topics[name] for name in self.logged)
            if record.log is not None
            and (broker in record.log.replicas or (record.move is not None and record.move.target == broker))
        ]

    def records_of(self, holder: Holder) -> Iterable[TopicRecord]:
        return [self.topics[name] for name in self.held.get(holder, ())]
