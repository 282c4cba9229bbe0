"""The control loop of topics: keeps their bounds and relieves overloaded homes [ePulsar §3.3, §3.4].

The policy is `policies/topics/partition`, the one that the simulator runs. Homes report every topic in constant size,
and brokers their network coordinates. Every `topic_balance_s` the loop plans with the latest reports and starts the
moves, at most `topic_moves` at a time; `topic_moves` carries them out. A move that finds no place is planned again.
"""

from __future__ import annotations

from tocsin.coordinator import topic_moves
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.rules import CoordinatorRules, TopicLoop
from tocsin.coordinator.topic_placing import may_host
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.coords.coordinate import Coordinate
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

_ORIGIN = Coordinate()


class TopicControl:
    def __init__(self) -> None:
        self._next_s: float | None = None

    def check(self, turn: Turn) -> None:
        """Called at every tick: plan if the next round is due."""
        rules = turn.rules
        if not rules.topic_balancing:
            self._next_s = None
            return
        if self._next_s is None:
            self._next_s = turn.now_s + rules.topic_balance_s  # homes and brokers report first
        if turn.now_s >= self._next_s:
            self._next_s = turn.now_s + rules.topic_balance_s
            balance(turn)


def balance(turn: Turn) -> None:
    """Make a plan and start its moves."""
    snapshot = make_snapshot(turn)
    made = plan(snapshot, params_of(turn.rules))
    topics = {topic.report.topic: topic for topic in snapshot.topics}
    records = turn.registry.topics.topics
    for topic in snapshot.topics:
        records[topic.report.topic].shortfall = None
    for unmet in made.unmet:
        records[unmet.topic].shortfall = _shortfall(unmet)
    for move in made.moves:
        record, target = records[move.topic], turn.registry.brokers.get(move.target)
        if len(turn.registry.topics.moving) >= turn.rules.topic_moves or target is None:
            break
        if record.move is None and record.home == move.source and may_host(turn, target):
            record.departures = departures_after(topics[move.topic], move, turn.now_s)
            topic_moves.start(turn, record, target, _reason(record, move, turn.rules))


def params_of(rules: CoordinatorRules) -> PartitionParams:
    """The paper's loop keeps no headroom, does not wait for a gain, and lets a topic return at once."""
    if rules.topic_loop is TopicLoop.PAPER:
        return PartitionParams(rate_limit_per_s=rules.topic_output_per_s, headroom=0.0, gain_s=0.0, rest_s=0.0)
    return PartitionParams(rate_limit_per_s=rules.topic_output_per_s)


def make_snapshot(turn: Turn) -> PartitionSnapshot:
    """The topics with a fresh report, and the brokers that can host topics.

    Bounds count only if brokers have coordinates; without any, the policy relieves overloaded brokers alone. A broker
    without a coordinate takes no part when others have one: its distance from clients is not known.
    """
    hosts = [broker for broker in turn.registry.brokers.values() if may_host(turn, broker)]
    located = [broker for broker in hosts if broker.settled_coordinate is not None]
    brokers = tuple(_broker(broker) for broker in located or hosts)
    topics = tuple(_topic(record, bool(located)) for record in _reported(turn))
    return PartitionSnapshot(turn.registry.generation, turn.now_s, topics, brokers)


def compile_policy() -> None:
    """Plan once with two topics and two brokers: compiling takes seconds and is done once."""
    near, far = Coordinate(), Coordinate((1.0,) + (0.0,) * 7)
    reports = [TopicReport(TopicName(name), BrokerId("a"), 1.0, 1.0, 1, 1, far, far, 0.0, 2.0) for name in "xy"]
    topics = tuple(Topic(report, 0.5) for report in reports)
    brokers = (TopicBroker(BrokerId("a"), near), TopicBroker(BrokerId("b"), far))
    plan(PartitionSnapshot(0, 0.0, topics, brokers), PartitionParams())


def _broker(broker: BrokerRecord) -> TopicBroker:
    return TopicBroker(broker.id, broker.settled_coordinate or _ORIGIN)


def _reported(turn: Turn) -> list[TopicRecord]:
    """The topics whose present home has reported them."""
    return [record for record in turn.registry.topics.topics.values() if record.reported is not None]


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


def _reason(record: TopicRecord, move: TopicMove, rules: CoordinatorRules) -> str:
    if move.reason is TopicMoveReason.OVERLOAD:
        return f"{move.source} sends more than {rules.topic_output_per_s:,.0f} messages/s"
    latency, within_s = record.latency, record.within_s
    assert latency is not None
    here, there, bound = (f"{1_000.0 * (s or 0.0):.0f} ms" for s in (latency.worst_s, move.expected_after_s, within_s))
    return f"{here} at {move.source}, {there} expected, bound {bound}"


_SHORTFALLS = {
    Shortfall.OUT_OF_REACH: "no broker is near enough to its clients",
    Shortfall.NO_ROOM: "the brokers that are near enough have no room",
    Shortfall.RESTING: "it has left the brokers that are near enough a short time ago",
}


def _shortfall(unmet: Unmet) -> str:
    best = f"{unmet.best_broker} could reach {1_000.0 * unmet.best_latency_s:.0f} ms"
    return f"{_SHORTFALLS[unmet.why]} ({best}, the bound is {1_000.0 * unmet.bound_s:.0f} ms)"
