"""Topic partitioning: which topics move to which brokers, so that bounds hold and no broker overloads.

Algorithm 1 of [ePulsar §3.3] with the policies of §3.4.
`plan` is the policy. `plan_with` is the algorithm around any estimate of latency, which is how the `all-pairs` baseline
shares it. Pure: the coordinator and the simulator give it the same snapshots; executing a plan is theirs.

What it adds to algorithm 1, because a plan must be safe to repeat every few seconds:

- A topic moves only if it gains. W(t, b) bounds the latency at b from above and falls with every latency move, so that
  planning an unchanged world again and again comes to rest.
- A topic does not go back to a broker that it left within the last minute, unless the latency to expect there has
  fallen since: clients that come back may be followed, a topic that merely regrets may not.
- Load counts as moved at once and moves are listed in the order they were decided: no prefix of a plan overloads a
  broker that was not overloaded before.
- When the topics picked from an overloaded broker find no room, the next ones in line are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tocsin.coords.coordinate import Coordinate, Vectors, as_arrays, distances_s
from tocsin.policies.topics.place import NO_ROOM, OUT_OF_REACH, RESTING, Loads, overloaded, place
from tocsin.policies.topics.types import (
    Broker,
    Move,
    PartitionParams,
    PartitionPlan,
    PartitionSnapshot,
    Reason,
    Shortfall,
    Topic,
    Unmet,
)

Estimate = Callable[[Sequence[Topic], Sequence[Broker]], Vectors]
"""Expected worst-case latency of each topic (rows) at each broker (columns)."""
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_SHORTFALLS = {OUT_OF_REACH: Shortfall.OUT_OF_REACH, NO_ROOM: Shortfall.NO_ROOM, RESTING: Shortfall.RESTING}


def plan(snapshot: PartitionSnapshot, params: PartitionParams) -> PartitionPlan:
    """ePulsar's policy: latencies from centroids and deviations [ePulsar §3.4.1]."""
    return plan_with(expected_from_centroids, snapshot, params)


def expected_from_centroids(topics: Sequence[Topic], brokers: Sequence[Broker]) -> Vectors:
    """W(t, b) = d(NC_P(t), NC(b)) + d(NC_C(t), NC(b)) + W(t) [ePulsar §3.4.1], one way.

    A distance between coordinates is a round trip, so d is half of it; a side without clients adds nothing.
    """
    broker_points, broker_lifts = as_arrays([broker.coordinate for broker in brokers])
    expected_s = np.zeros((len(topics), len(brokers)))
    for side in (
        [topic.report.producer_centroid for topic in topics],
        [topic.report.consumer_centroid for topic in topics],
    ):
        there = np.array([middle is not None for middle in side], dtype=bool)
        points, lifts = as_arrays([middle or _NOWHERE for middle in side])
        legs_s = distances_s(points, lifts, broker_points, broker_lifts)
        legs_s *= np.where(there, 0.5, 0.0)[:, None]
        expected_s += legs_s
    expected_s += np.array([topic.report.deviation_s for topic in topics])[:, None]
    return expected_s


_NOWHERE = Coordinate()


def plan_with(estimate: Estimate, snapshot: PartitionSnapshot, params: PartitionParams) -> PartitionPlan:
    """PerformRepartitioning [ePulsar §3.3, algorithm 1] with the given estimate of latency."""
    if not snapshot.brokers or not snapshot.topics:
        return PartitionPlan(snapshot.generation)
    brokers = sorted(snapshot.brokers, key=lambda broker: broker.broker)
    topics = sorted(snapshot.topics, key=lambda topic: topic.report.topic)
    world = _World(estimate, topics, brokers, snapshot.now_s, params)
    violated = world.worst_s > world.target_s  # lines 15–17
    tried = np.zeros(len(topics), dtype=bool)
    picked = violated | world.picked_from_overloaded(tried)  # lines 18–21
    while picked.any():
        tried |= picked
        moved = world.place_topics(np.flatnonzero(picked), violated)  # line 22
        # What left a broker has made room there: whoever found none may look again.
        picked = world.picked_from_overloaded(tried) | (world.without_room() if moved else False)
    return PartitionPlan(snapshot.generation, tuple(world.moves), world.unmet())


class _World:
    """The snapshot as arrays, and what has been decided so far. Lives for one call of `plan_with`."""

    def __init__(
        self,
        estimate: Estimate,
        topics: Sequence[Topic],
        brokers: Sequence[Broker],
        now_s: float,
        params: PartitionParams,
    ) -> None:
        self.estimate, self.topics, self.brokers, self.now_s, self.params = estimate, topics, brokers, now_s, params
        self.index = {broker.broker: number for number, broker in enumerate(brokers)}
        # A topic whose broker is gone is failover's to place, not ours: it keeps -1 and is left alone.
        self.home: Indices = np.array([self.index.get(topic.report.broker, -1) for topic in topics], dtype=np.int64)
        self.rates = np.array([topic.report.rate_per_s for topic in topics])
        homeless = self.home < 0
        self.bound_s = np.array([np.inf if topic.bound_s is None else topic.bound_s for topic in topics])
        self.bound_s[homeless] = np.inf
        self.target_s = self.bound_s * (1.0 - params.headroom)
        self.worst_s = np.array([topic.report.worst_latency_s for topic in topics])
        self.loads = Loads.of(brokers, self.home, self.rates, params)
        self.moves: list[Move] = []
        self._unmet: dict[int, Unmet] = {}

    def unmet(self) -> tuple[Unmet, ...]:
        return tuple(self._unmet[row] for row in sorted(self._unmet))

    def without_room(self) -> Flags:
        """Topics above their bound that would fit somewhere if others left."""
        flags = np.zeros(len(self.topics), dtype=bool)
        flags[[row for row, unmet in self._unmet.items() if unmet.why is Shortfall.NO_ROOM]] = True
        return flags

    def picked_from_overloaded(self, tried: Flags) -> Flags:
        """Topics to take off each overloaded broker, by decreasing rate [ePulsar §3.4.3], among those not tried yet."""
        picked = np.zeros(len(self.topics), dtype=bool)
        for broker in np.flatnonzero(overloaded(self.loads)):
            excess_per_s = self.loads.excess_per_s(int(broker))
            here = np.flatnonzero((self.home == broker) & ~tried & (self.rates > 0.0))
            for topic in here[np.argsort(-self.rates[here], kind="stable")]:
                if excess_per_s <= 0.0:
                    break
                picked[topic] = True
                excess_per_s -= self.rates[topic]
        return picked

    def place_topics(self, rows: Indices, violated: Flags) -> bool:
        """PlaceTopics [ePulsar §3.3, algorithm 1]: the topics with the fewest feasible brokers choose first.

        True if any of them moved.
        """
        chosen = [self.topics[row] for row in rows]
        expected_s = np.ascontiguousarray(self.estimate(chosen, self.brokers))
        feasible = expected_s <= self.target_s[rows, None]
        counts = feasible.sum(axis=1)
        # Nothing feasible means that the whole list is [§3.4.1], so such topics come last. Equals go by name.
        order = np.argsort(np.where(counts == 0, len(self.brokers), counts), kind="stable")
        targets, shortfalls = place(
            order,
            self.home[rows],
            self.rates[rows],
            expected_s,
            feasible | (counts == 0)[:, None],
            counts > 0,
            self._resting(chosen, expected_s),
            violated[rows],
            self.params.gain_s,
            *self.loads.arrays(),
        )
        everyone = np.arange(len(rows))
        before_s = expected_s[everyone, self.home[rows]]
        after_s = expected_s[everyone, targets]
        for at in order.tolist():
            row, target, shortfall = int(rows[at]), int(targets[at]), int(shortfalls[at])
            if target >= 0:
                self._move(row, target, float(before_s[at]), float(after_s[at]), bool(violated[row]))
            self._unmet.pop(row, None)
            was_s = float(self.worst_s[row])
            will_be_s = float(after_s[at]) if target >= 0 else was_s
            if shortfall in _SHORTFALLS and min(was_s, will_be_s) > self.bound_s[row]:
                self._unmet[row] = self._fell_short(row, expected_s[at], _SHORTFALLS[shortfall])
        return bool((targets >= 0).any())

    def _move(self, row: int, target: int, before_s: float, after_s: float, violated: bool) -> None:
        report = self.topics[row].report
        reason = Reason.LATENCY if violated and after_s < before_s else Reason.OVERLOAD
        self.home[row] = target
        self.moves.append(Move(report.topic, report.broker, self.brokers[target].broker, reason, before_s, after_s))

    def _fell_short(self, row: int, expected_s: Vectors, why: Shortfall) -> Unmet:
        report = self.topics[row].report
        best, best_s = self.brokers[int(np.argmin(expected_s))].broker, float(expected_s.min())
        if report.worst_latency_s < best_s:  # W is an upper bound: what is measured here may be better still
            best, best_s = report.broker, report.worst_latency_s
        return Unmet(report.topic, float(self.bound_s[row]), best, best_s, why)

    def _resting(self, topics: Sequence[Topic], expected_s: Vectors) -> Flags:
        """Which topics keep away from which brokers, because they left them lately and nothing there got better."""
        resting = np.zeros(expected_s.shape, dtype=bool)
        for row, topic in enumerate(topics):
            for left in topic.departures:
                column = self.index.get(left.broker)
                if column is None or self.now_s - left.at_s >= self.params.rest_s:
                    continue
                better_s = left.expected_s * (1.0 - self.params.return_gain)
                resting[row, column] = left.reason is not Reason.LATENCY or expected_s[row, column] >= better_s
        return resting
