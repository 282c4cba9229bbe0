"""The control loop of topics: keeps their bounds and relieves overloaded homes [ePulsar §3.3, §3.4].

The policy is `policies/topics/partition`, the one that the simulator runs. Homes report every topic in constant size,
and brokers their network coordinates. There are two loops with a period of `topic_balance_s`:

    tocsin   ask all homes for their reports; plan a moment later, when they have arrived; start the moves at once
    paper    homes report at times of their own; plan; start the moves of the latest plan half a period later
             [ePulsar §4: three periods that do not know of each other]

At most `topic_moves` topics move at a time; `topic_moves` carries the moves out. A move that finds no place is planned
again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.coordinator import topic_moves
from tocsin.coordinator.rules import CoordinatorRules, TopicLoop, TopicWorkflow
from tocsin.coordinator.topic_placing import may_host
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.coords.coordinate import ABSURD_S, Coordinate
from tocsin.model.ids import BrokerId, TopicName
from tocsin.policies.topics.partition import plan
from tocsin.policies.topics.types import (
    PartitionParams,
    PartitionSnapshot,
    Shortfall,
    Topic,
    TopicBroker,
    TopicMove,
    TopicMoveReason,
    TopicReport,
    Unmet,
    departures_after,
)
from tocsin.wire.topic_link import ReportTopics

_ORIGIN = Coordinate()
_FAR_AWAY = Coordinate(height_s=ABSURD_S)
_ARRIVE_S = 0.25
"""The time that reports have to arrive before the plan, as in the simulator (`sim.topics.control`)."""
_CARRIED_PERIODS = 3.0
"""For so many periods after a move by this loop, the former home's rates count until the new home has reported."""


class TopicControl:
    def __init__(self) -> None:
        self._next_s: float | None = None
        self._plan_s: float | None = None
        """tocsin: when to plan, after the request to the homes."""
        self._start_s: float | None = None
        """paper: when to start the moves of the latest plan."""
        self._planned: list[tuple[Topic, TopicMove]] = []

    def check(self, turn: Turn) -> None:
        """Called at every tick: ask, plan or start moves if it is time."""
        rules = turn.rules
        if not rules.topic_balancing:
            self._next_s = self._plan_s = self._start_s = None
            return
        if self._next_s is None:
            self._next_s = turn.now_s + rules.topic_balance_s  # homes and brokers report first
        if self._start_s is not None and turn.now_s >= self._start_s:
            self._start_s = None
            start_moves(turn, self._planned)
        if turn.now_s >= self._next_s:
            # Not a running sum from `now_s`: ticks are late, and the period would grow.
            late_s = (turn.now_s - self._next_s) % rules.topic_balance_s
            self._next_s = turn.now_s - late_s + rules.topic_balance_s
            if rules.topic_loop is TopicLoop.PAPER:
                self._planned, self._start_s = make_plan(turn), turn.now_s + rules.topic_balance_s / 2
            else:
                self._plan_s = turn.now_s + _ARRIVE_S
                ask_homes(turn)
        if self._plan_s is not None and turn.now_s >= self._plan_s:
            self._plan_s = None
            start_moves(turn, make_plan(turn))


def ask_homes(turn: Turn) -> None:
    """Request a report of all topics that have changed, from every broker that hosts any."""
    for broker in turn.registry.brokers.values():
        if broker.topics and broker.linked and turn.registry.topics.homed_at(broker.id):
            turn.send(broker.id, ReportTopics())


def make_plan(turn: Turn) -> list[tuple[Topic, TopicMove]]:
    """Plan with the latest reports, and note for each topic why its bound cannot be kept, if so."""
    snapshot = make_snapshot(turn)
    made = plan(snapshot, params_of(turn.rules))
    records = turn.registry.topics.topics
    for topic in snapshot.topics:
        records[topic.report.topic].shortfall = None
    for unmet in made.unmet:
        records[unmet.topic].shortfall = _shortfall(unmet)
    topics = {topic.report.topic: topic for topic in snapshot.topics}
    return [(topics[move.topic], move) for move in made.moves]


def start_moves(turn: Turn, planned: Sequence[tuple[Topic, TopicMove]]) -> None:
    """Start as many moves as `topic_moves` allows. A move that has become impossible is left out."""
    topics = turn.registry.topics
    most = 1 if turn.rules.topic_workflow is TopicWorkflow.PULSAR else turn.rules.topic_moves
    for topic, move in planned:
        if len(topics.moving) >= most:
            return
        record, target = topics.topics.get(move.topic), turn.registry.brokers.get(move.target)
        if record is None or target is None or record.move is not None or record.name in topics.queued:
            continue
        if record.home == move.source and may_host(turn, target):
            record.departures = departures_after(topic, move, turn.now_s)
            topic_moves.start(turn, record, target, _reason(topic, move, turn.rules))


def params_of(rules: CoordinatorRules) -> PartitionParams:
    """The paper's loop keeps no headroom, does not wait for a gain, and lets a topic return at once."""
    if rules.topic_loop is TopicLoop.PAPER:
        return PartitionParams(rate_limit_per_s=rules.topic_output_per_s, headroom=0.0, gain_s=0.0, rest_s=0.0)
    return PartitionParams(rate_limit_per_s=rules.topic_output_per_s)


def make_snapshot(turn: Turn) -> PartitionSnapshot:
    """The topics with a fresh report, and the brokers that can host topics.

    Bounds count only if brokers have coordinates; without any, the policy relieves overloaded brokers alone. A broker
    without a coordinate counts as far away when others have one: it meets no bound, and can still relieve a broker.
    """
    hosts = [broker for broker in turn.registry.brokers.values() if may_host(turn, broker)]
    located = {broker.id for broker in hosts if broker.settled_coordinate is not None}
    unknown = _FAR_AWAY if located else _ORIGIN
    brokers = tuple(TopicBroker(broker.id, broker.settled_coordinate or unknown) for broker in hosts)
    topics = [_topic(record, record.home in located) for record in _reported(turn)] + _just_moved(turn)
    return PartitionSnapshot(turn.registry.generation, turn.now_s, tuple(topics), brokers)


def compile_policy() -> None:
    """Plan once with two topics and two brokers: compiling takes seconds and is done once."""
    near, far = Coordinate(), Coordinate((1.0,) + (0.0,) * 7)
    reports = [TopicReport(TopicName(name), BrokerId("a"), 1.0, 1.0, 1, 1, far, far, 0.0, 2.0) for name in "xy"]
    topics = tuple(Topic(report, 0.5) for report in reports)
    brokers = (TopicBroker(BrokerId("a"), near), TopicBroker(BrokerId("b"), far))
    plan(PartitionSnapshot(0, 0.0, topics, brokers), PartitionParams())


def _reported(turn: Turn) -> list[TopicRecord]:
    """The topics whose present home has reported them."""
    return [record for record in turn.registry.topics.topics.values() if record.reported is not None]


def _just_moved(turn: Turn) -> list[Topic]:
    """Topics whose new home has not reported yet: they count at it with their former rates, and are not moved by a
    bound. Without them a broker that has just been filled would look empty."""
    since_s = turn.now_s - _CARRIED_PERIODS * turn.rules.topic_balance_s
    moved = []
    for record in turn.registry.topics.topics.values():
        if record.latency is None or record.reported is not None or record.home is None or not record.departures:
            continue
        if record.departures[-1].at_s >= since_s:
            rates = record.latency.in_per_s, record.latency.out_per_s
            moved.append(Topic(TopicReport(record.name, record.home, *rates), None, record.departures))
    return moved


def _topic(record: TopicRecord, located: bool) -> Topic:
    """A topic as the policy sees it. One that moves already counts at its target, and has no bound to be moved by."""
    latency, move = record.reported, record.move
    assert latency is not None and record.home is not None
    report = TopicReport(
        record.name,
        record.home if move is None else move.target,
        latency.in_per_s,
        latency.out_per_s,
        latency.senders,
        latency.receivers,
        latency.sender_centroid,
        latency.receiver_centroid,
        latency.deviation_s,
        latency.worst_s or 0.0,
    )
    return Topic(report, record.within_s if located and move is None else None, record.departures)


def _reason(topic: Topic, move: TopicMove, rules: CoordinatorRules) -> str:
    if move.reason is TopicMoveReason.OVERLOAD:
        return f"{move.source} sends more than {rules.topic_output_per_s:,.0f} messages/s"
    times_s = (topic.report.worst_latency_s, move.expected_after_s, topic.bound_s)
    here, there, bound = (_milliseconds(time_s or 0.0) for time_s in times_s)
    return f"{here} at {move.source}, {there} expected, bound {bound}"


_SHORTFALLS = {
    Shortfall.OUT_OF_REACH: "no broker is near enough to its clients",
    Shortfall.NO_ROOM: "the brokers that are near enough have no room",
    Shortfall.RESTING: "it has left the brokers that are near enough a short time ago",
}


def _shortfall(unmet: Unmet) -> str:
    best = f"{unmet.best_broker} could reach {_milliseconds(unmet.best_latency_s)}"
    return f"{_SHORTFALLS[unmet.why]} ({best}, the bound is {_milliseconds(unmet.bound_s)})"


def _milliseconds(time_s: float) -> str:
    """Two digits at least: bounds below a millisecond would be 0 ms."""
    time_ms = 1_000.0 * time_s
    return f"{time_ms:.0f} ms" if time_ms >= 10.0 else f"{time_ms:.2g} ms"
