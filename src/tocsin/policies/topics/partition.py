"""Topic partitioning: which topics move to which brokers, so that bounds hold and no broker is overloaded.

Algorithm 1 of [ePulsar §3.3] with the policies of §3.4. `plan` is the policy. `plan_with` is the algorithm with any
estimate of latency; the `all-pairs` baseline uses it too. Pure: the coordinator or the simulator makes the snapshot and
executes the plan.

Additions to algorithm 1, because the policy plans every few seconds:

- A topic moves only if it gains. W(t, b) is an upper bound of the latency at b and falls with every latency move, so
  repeated planning on an unchanged world reaches a fixed point.
- A topic does not return to a broker that it left within the last minute, unless W(t, b) has fallen there since: a
  topic may follow clients that return.
- Planned load counts at its target at once, and moves are listed in order of decision: no prefix of a plan overloads a
  broker that was not overloaded before.
- If no broker has room for the topics picked from an overloaded broker, the policy tries the next topics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numba
import numpy as np

from tocsin.coords.coordinate import Coordinate
from tocsin.coords.distances import Vectors, as_arrays, distances_s
from tocsin.policies.topics.load import Flags, HostLoads, Indices, is_overloaded
from tocsin.policies.topics.types import (
    PartitionParams,
    PartitionPlan,
    PartitionSnapshot,
    Shortfall,
    Topic,
    TopicBroker,
    TopicMove,
    TopicMoveReason,
    Unmet,
)

Estimate = Callable[[Sequence[Topic], Sequence[TopicBroker]], Vectors]
"""Expected worst-case latency of each topic (rows) at each broker (columns)."""

_FINE, _OUT_OF_REACH, _NO_ROOM, _RESTING = 0, 1, 2, 3
"""Shortfalls as `_place` returns them: compiled code has no enums."""
_SHORTFALLS = {_OUT_OF_REACH: Shortfall.OUT_OF_REACH, _NO_ROOM: Shortfall.NO_ROOM, _RESTING: Shortfall.RESTING}
_ORIGIN = Coordinate()


def plan(snapshot: PartitionSnapshot, params: PartitionParams) -> PartitionPlan:
    """ePulsar's policy: latencies from centroids and deviations [ePulsar §3.4.1]."""
    return plan_with(expected_from_centroids, snapshot, params)


def expected_from_centroids(topics: Sequence[Topic], brokers: Sequence[TopicBroker]) -> Vectors:
    """W(t, b) = d(NC_P(t), NC(b)) + d(NC_C(t), NC(b)) + W(t) [ePulsar §3.4.1], one way.

    The distance between two coordinates is a round trip, so d is half of it. A side without clients adds 0.
    """
    broker_points, broker_lifts = as_arrays([broker.coordinate for broker in brokers])
    expected_s = np.zeros((len(topics), len(brokers)))
    for centroids in (
        [topic.report.producer_centroid for topic in topics],
        [topic.report.consumer_centroid for topic in topics],
    ):
        has_clients = np.array([centroid is not None for centroid in centroids], dtype=bool)
        points, lifts = as_arrays([centroid or _ORIGIN for centroid in centroids])
        legs_s = distances_s(points, lifts, broker_points, broker_lifts)
        legs_s *= np.where(has_clients, 0.5, 0.0)[:, None]
        expected_s += legs_s
    expected_s += np.array([topic.report.deviation_s for topic in topics])[:, None]
    return expected_s


def plan_with(estimate: Estimate, snapshot: PartitionSnapshot, params: PartitionParams) -> PartitionPlan:
    """PerformRepartitioning [ePulsar §3.3, algorithm 1] with the given estimate of latency."""
    if not snapshot.brokers or not snapshot.topics:
        return PartitionPlan(snapshot.generation)
    partitioning = _Partitioning(estimate, snapshot, params)
    violated = partitioning.worst_s > partitioning.target_s  # lines 15–17
    tried = np.zeros(len(partitioning.topics), dtype=bool)
    picked = violated | partitioning.picked_from_overloaded(tried)  # lines 18–21
    while picked.any():
        tried |= picked
        moved = partitioning.place_topics(np.flatnonzero(picked), violated)  # line 22
        # Topics that moved have made room at their sources: try again the topics that had no room.
        picked = partitioning.picked_from_overloaded(tried) | (partitioning.without_room() if moved else False)
    return PartitionPlan(snapshot.generation, tuple(partitioning.moves), partitioning.unmet())


class _Partitioning:
    """The snapshot as arrays, and the decisions so far. Used for one call of `plan_with`."""

    def __init__(self, estimate: Estimate, snapshot: PartitionSnapshot, params: PartitionParams) -> None:
        self.estimate, self.now_s, self.params = estimate, snapshot.now_s, params
        self.brokers = brokers = sorted(snapshot.brokers, key=lambda broker: broker.broker)
        self.topics = topics = sorted(snapshot.topics, key=lambda topic: topic.report.topic)
        self.index = {broker.broker: number for number, broker in enumerate(brokers)}
        # Home -1: the broker has left. Failover moves such a topic, this policy does not.
        self.home: Indices = np.array([self.index.get(topic.report.broker, -1) for topic in topics], dtype=np.int64)
        self.rates = np.array([topic.report.rate_per_s for topic in topics], dtype=np.float64)
        self.outputs = np.array([topic.report.out_rate_per_s for topic in topics], dtype=np.float64)
        self.bound_s = np.array([np.inf if topic.bound_s is None else topic.bound_s for topic in topics])
        self.bound_s[self.home < 0] = np.inf
        self.target_s = self.bound_s * (1.0 - params.headroom)
        self.worst_s = np.array([topic.report.worst_latency_s for topic in topics])
        self.loads = HostLoads.of(brokers, self.home, self.rates, self.outputs, params)
        self.moves: list[TopicMove] = []
        self._unmet: dict[int, Unmet] = {}

    def unmet(self) -> tuple[Unmet, ...]:
        return tuple(self._unmet[row] for row in sorted(self._unmet))

    def without_room(self) -> Flags:
        """Topics above their bound for which the feasible brokers are full."""
        flags = np.zeros(len(self.topics), dtype=bool)
        flags[[row for row, unmet in self._unmet.items() if unmet.why is Shortfall.NO_ROOM]] = True
        return flags

    def picked_from_overloaded(self, tried: Flags) -> Flags:
        """Topics to move from each overloaded broker, by decreasing rate [ePulsar §3.4.3], without those tried."""
        picked = np.zeros(len(self.topics), dtype=bool)
        for broker in np.flatnonzero(self.loads.overloaded()):
            excess_per_s, excess_output_per_s = self.loads.excess_per_s(int(broker))
            here = np.flatnonzero((self.home == broker) & ~tried & (self.rates > 0.0))
            for topic in here[np.argsort(-self.rates[here], kind="stable")]:
                if excess_per_s <= 0.0 and excess_output_per_s <= 0.0:
                    break
                picked[topic] = True
                excess_per_s -= self.rates[topic]
                excess_output_per_s -= self.outputs[topic]
        return picked

    def place_topics(self, rows: Indices, violated: Flags) -> bool:
        """PlaceTopics [ePulsar §3.3, algorithm 1]: the topics with the fewest feasible brokers choose first.

        Returns True if any of them moved.
        """
        chosen = [self.topics[row] for row in rows]
        expected_s = np.ascontiguousarray(self.estimate(chosen, self.brokers))
        feasible = expected_s <= self.target_s[rows, None]
        counts = feasible.sum(axis=1)
        # If no broker is feasible, all are candidates [§3.4.1], so such topics are placed last. Ties: by name.
        order = np.argsort(np.where(counts == 0, len(self.brokers), counts), kind="stable")
        candidates, reachable = feasible | (counts == 0)[:, None], counts > 0
        resting = self._resting(chosen, expected_s)
        topics = (self.home[rows], self.rates[rows], self.outputs[rows], violated[rows])
        targets, shortfalls = _place(
            order, topics, expected_s, candidates, reachable, resting, self.params.gain_s, self.loads
        )
        positions = np.arange(len(rows))
        before_s = expected_s[positions, self.home[rows]]
        after_s = expected_s[positions, targets]
        for at in order.tolist():
            row, target, shortfall = int(rows[at]), int(targets[at]), int(shortfalls[at])
            if target >= 0:
                self._move(row, target, float(before_s[at]), float(after_s[at]), bool(violated[row]))
            self._unmet.pop(row, None)
            old_s = float(self.worst_s[row])
            new_s = float(after_s[at]) if target >= 0 else old_s
            if shortfall in _SHORTFALLS and min(old_s, new_s) > self.bound_s[row]:
                self._unmet[row] = self._unmet_topic(row, expected_s[at], _SHORTFALLS[shortfall])
        return bool((targets >= 0).any())

    def _move(self, row: int, target: int, before_s: float, after_s: float, violated: bool) -> None:
        report = self.topics[row].report
        reason = TopicMoveReason.LATENCY if violated and after_s < before_s else TopicMoveReason.OVERLOAD
        self.home[row] = target
        self.moves.append(
            TopicMove(report.topic, report.broker, self.brokers[target].broker, reason, before_s, after_s)
        )

    def _unmet_topic(self, row: int, expected_s: Vectors, why: Shortfall) -> Unmet:
        report = self.topics[row].report
        best, best_s = self.brokers[int(np.argmin(expected_s))].broker, float(expected_s.min())
        if report.worst_latency_s < best_s:  # W is an upper bound: E(t) at the present home may be lower still
            best, best_s = report.broker, report.worst_latency_s
        return Unmet(report.topic, float(self.bound_s[row]), best, best_s, why)

    def _resting(self, topics: Sequence[Topic], expected_s: Vectors) -> Flags:
        """Pairs (topic, broker) that are excluded: the topic left the broker recently, and W has not fallen there."""
        resting = np.zeros(expected_s.shape, dtype=bool)
        for row, topic in enumerate(topics):
            for departure in topic.departures:
                column = self.index.get(departure.broker)
                if column is None or self.now_s - departure.at_s >= self.params.rest_s:
                    continue
                for_latency = departure.reason is TopicMoveReason.LATENCY
                better_s = departure.expected_s * (1.0 - self.params.return_gain)
                resting[row, column] = not for_latency or expected_s[row, column] >= better_s
        return resting


# The inner loop, compiled: here 10,000 topics meet 500 brokers.


@numba.njit(cache=True)
def _place(
    order: Indices,
    topics: tuple[Indices, Vectors, Vectors, Flags],
    expected_s: Vectors,
    candidates: Flags,
    reachable: Flags,
    resting: Flags,
    gain_s: float,
    loads: HostLoads,
) -> tuple[Indices, Indices]:
    """For each topic in `order`: the candidate of least expected latency that can host it, or -1; and its shortfall.

    `topics` holds the home, the rate, the output rate and whether the bound is violated. The first broker of a ranked
    list that can host a topic is the best of those that can, so no list is sorted.
    """
    home, topic_rates, topic_outputs, violated = topics
    targets = np.full(len(home), -1, dtype=np.int64)
    shortfalls = np.zeros(len(home), dtype=np.int64)
    for topic in order:
        source, rate, output = home[topic], topic_rates[topic], topic_outputs[topic]
        if source < 0:
            continue
        relieved = not is_overloaded(source, 0.0, 0.0, loads)
        if relieved and not violated[topic]:
            continue  # it was picked to relieve a broker that is no longer overloaded
        # A topic above its bound may stay, unless its broker must be relieved as well.
        limit_s = np.inf
        if relieved:
            limit_s = expected_s[topic, source]
            if not reachable[topic]:
                limit_s -= gain_s
        best, has_full, has_resting = -1, False, False
        for broker in range(expected_s.shape[1]):
            if broker == source or not candidates[topic, broker] or expected_s[topic, broker] >= limit_s:
                continue
            if resting[topic, broker]:
                has_resting = True
            elif is_overloaded(broker, rate, output, loads):
                has_full = True
            else:
                best, limit_s = broker, expected_s[topic, broker]
        if not reachable[topic]:
            shortfalls[topic] = _OUT_OF_REACH
        elif best < 0:
            shortfalls[topic] = _NO_ROOM if has_full else _RESTING if has_resting else _FINE
        if best >= 0:
            targets[topic] = best
            for broker, sign in ((source, -1.0), (best, 1.0)):
                for resource in range(loads.used.shape[1]):
                    loads.used[broker, resource] += sign * loads.costs[broker, resource] * rate
                loads.outputs[broker] += sign * output
    return targets, shortfalls
