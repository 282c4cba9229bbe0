"""The records of a persistent topic at its home: followers, what is stored and committed, what to acknowledge."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tocsin.broker.topics.events import ConnectionId
from tocsin.model.ids import BrokerId
from tocsin.wire.topic_link import StopTopic
from tocsin.wire.topic_log import LogPlan, Replica


@dataclass(slots=True)
class CommitFigures:
    """For metrics."""

    count: int = 0
    seconds: float = 0.0
    """From handing a piece to the log until it was committed, summed over all pieces."""


@dataclass(slots=True, eq=False)
class Follower:
    replica: Replica
    begun: bool = False
    """The follower has answered `Begin` on the present connection."""
    asked: bool = False
    """`Begin` was sent and has no answer yet."""
    sent: int = 0
    """The last sequence number that was sent to it."""
    marked: bool = False
    """It was sent the begin of the present epoch."""
    stored: int = -1
    """The last sequence number on its disk; -1 until the present epoch has begun in its log."""
    reading: bool = False
    """A part of the log is being read for it."""
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    """(last sequence number, bytes) of pieces that were sent and not stored yet."""
    in_flight_bytes: int = 0
    retry_s: float = 0.0
    """Send `Begin` no earlier."""
    problem: str | None = "not connected yet"

    def lost(self, problem: str, retry_s: float) -> None:
        self.begun = self.asked = self.marked = self.reading = False
        self.stored, self.retry_s, self.problem = -1, retry_s, problem
        self.in_flight.clear()
        self.in_flight_bytes = 0

    def confirm(self, end: int) -> None:
        while self.in_flight and self.in_flight[0][0] <= end:
            self.in_flight_bytes -= self.in_flight.popleft()[1]


@dataclass(slots=True, eq=False)
class HomeLog:
    plan: LogPlan
    base: int = -1
    """The last sequence number of earlier epochs; -1 until the log is open."""
    stored: int = -1
    """The last sequence number on this broker's disk; -1 until the present epoch has begun in the log."""
    handed: int = 0
    """The last sequence number that was handed to the log and to the followers."""
    followers: dict[BrokerId, Follower] = field(default_factory=dict)
    learner: Replica | None = None
    """The target of a move. It gets the log; whether it is one of the plan's replicas does not matter."""
    copied: bool = False
    """`TopicCopied` was sent for the learner."""
    numbers: dict[int, int] = field(default_factory=dict)
    """Publisher → its last committed number."""
    acknowledge: deque[tuple[int, ConnectionId, int]] = field(default_factory=deque)
    """(sequence number that must be committed, connection, number to acknowledge)."""
    uncommitted_bytes: int = 0
    handed_s: deque[tuple[int, float]] = field(default_factory=deque)
    """(sequence number, time) of what was handed to the log and is not committed yet."""
    reading: set[ConnectionId] = field(default_factory=set)
    """Receivers for which a part of the log is being read."""
    stopping: StopTopic | None = None
    """The move that waits for the logs of the next replicas."""
    reported: tuple[list[BrokerId], str | None] | None = None
    """The last report of the replicas to the coordinator."""
    trimmed_s: float = 0.0

    def stored_at(self, broker: BrokerId, home: BrokerId) -> int:
        if broker == home:
            return self.stored
        follower = self.followers.get(broker)
        return -1 if follower is None else follower.stored

    def committed(self, home: BrokerId) -> int:
        """The last sequence number that a quorum of the replicas has on disk; -1 if the epoch has not begun there."""
        ends = sorted((self.stored_at(replica.broker, home) for replica in self.plan.replicas), reverse=True)
        return ends[self.plan.quorum - 1]
