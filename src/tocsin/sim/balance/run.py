"""One run of a broker network: subscribers join and subscribe, channels execute, brokers report, plans are carried out.

Driven by the event kernel. The data cluster is its executions: per channel and period, results of random size around
the true rate. Brokers are the aggregated model. λ as policies see it is the moving average of what executions produced,
never the true rate. What joins and subscriptions do within one second is handed over as one event: a million
subscribers would otherwise be ten million events that touch nothing in common.

A move is made before it breaks: until the handover is done the old broker serves. Whoever's broker dies is placed anew
after `detect_s`. Failure detection, arbiter and migration state machine of the live coordinator are stood in for here;
`balance_core` runs the same world under the live coordinator's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tocsin.model.plan import Plan
from tocsin.model.snapshot import UNPLACED, Floats, Ints, Snapshot
from tocsin.model.trace import Kind
from tocsin.policies.balance.load import Longs, balance_of, capacities, known_rates
from tocsin.policies.balance.placement import BrokerChoice
from tocsin.sim.balance.brokers import AggregatedBrokers
from tocsin.sim.balance.policy_coordinator import ArrivingSubscribers, BrokersSeen, Coordinator
from tocsin.sim.balance.scenario import Failure
from tocsin.sim.balance.telling import Telling
from tocsin.sim.balance.trace import Trace
from tocsin.sim.balance.world import BalanceWorld
from tocsin.sim.kernel import EARLY, LATE, Kernel

TICK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class LoadSample:
    """What the brokers reported, before the plan of that round."""

    at_s: float
    loads: Floats
    subscribers: Longs
    mean: float
    cov: float
    maximum: float
    lower_bound: float
    """No assignment has a smaller maximum: everything delivered as it must be and fetched once, spread evenly."""
    migrations: int
    """So far."""


@dataclass(frozen=True, slots=True)
class PlanMade:
    at_s: float
    policy: str
    moves: int
    cov_before: float
    cov_after: float
    maximum_after: float


@dataclass(slots=True)
class BalanceLog:
    samples: list[LoadSample] = field(default_factory=list)
    plans: list[PlanMade] = field(default_factory=list)
    migrations: int = 0
    failed_over: int = 0
    unserved_subscriber_s: float = 0.0
    """Joined, not away, and without a broker: only ever because a broker died."""
    bytes_in: Floats = field(default_factory=lambda: np.zeros(0))
    bytes_out: Floats = field(default_factory=lambda: np.zeros(0))


class BalanceRun:
    def __init__(
        self,
        kernel: Kernel,
        world: BalanceWorld,
        coordinator: Coordinator | None = None,
        trace: Trace | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Without a `coordinator` nobody places or plans: `balance_core` has its own, and says how it is set."""
        self.kernel, self.world = kernel, world
        described = coordinator.described() if coordinator is not None else dict(settings or {})
        self._telling = Telling(world, trace, described)
        self.log = BalanceLog()
        self._coordinator = coordinator
        n, m, q = len(world.subscribers), len(world.brokers), len(world.rate)
        self.brokers = AggregatedBrokers(world)
        self.assigned: Ints = np.full(n, UNPLACED, dtype=np.int32)
        """The coordinator's view: moves under way count as made."""
        self.alive = np.ones(m, dtype=np.bool_)
        self.rate_seen = np.full(q, np.nan)
        self._moving = np.zeros(n, dtype=np.bool_)
        self._moved_at_s = np.full(n, -np.inf)
        self._back_s = np.full(n, np.inf)
        self._rise_s, self._fall_s, self._factor = np.full(q, np.inf), np.full(q, -np.inf), np.ones(q)
        self._join_order, self._wish_order = np.argsort(world.join_s), np.argsort(world.subscribe_s)
        self._join_s, self._wish_s = world.join_s[self._join_order], world.subscribe_s[self._wish_order]
        self._joined, self._wished, self._away = 0, 0, 0
        self._generation = 0
        self._numbers: dict[str, int] = {}  # of subscribers; a run without moves never needs it
        self._rows: tuple[Ints, Ints] | None = None
        self._members = [np.flatnonzero(world.channel_of == c) for c in range(len(world.scenario.channels.periods_s))]

    def run(self) -> BalanceLog:
        kernel, scenario = self.kernel, self.world.scenario
        self._telling.brokers(kernel.now_s, self.alive)
        kernel.every(TICK_S, self._tick, first_s=0.0, priority=EARLY)
        for channel, period_s in enumerate(scenario.channels.periods_s):
            kernel.every(period_s, self._execute, channel)
        if scenario.bursts.share:
            kernel.every(scenario.bursts.every_s, self._burst)
        for failure in scenario.failures:
            kernel.call_at(failure.at_s, self._fail, failure)
        kernel.every(scenario.report_s, self._report, priority=LATE)
        kernel.run(scenario.length_s)
        self.log.bytes_in, self.log.bytes_out = self.brokers.bytes_in, self.brokers.bytes_out
        return self.log

    # People

    def _tick(self) -> None:
        """Joins, subscriptions, departures and returns of the second that ends now."""
        now_s = self.kernel.now_s
        joined, wished = (int(np.searchsorted(due_s, now_s, side="right")) for due_s in (self._join_s, self._wish_s))
        if joined > self._joined:
            self._arrive(self._join_order[self._joined : joined], Kind.JOIN)
            self._joined = joined
        if wished > self._wished:
            self.brokers.subscribe(self._wish_order[self._wished : wished])
            self._wished, self._rows = wished, None
        self._churn(now_s)
        self.log.unserved_subscriber_s += TICK_S * (self._joined - self.brokers.serving - self._away)

    def _arrive(self, who: Longs, kind: Kind) -> None:
        chosen = self._placed(who)
        self.assigned[who] = chosen
        self.brokers.connect(who[chosen >= 0], chosen[chosen >= 0])
        self._generation += 1
        self._telling.arrived(self.kernel.now_s, kind, who, chosen)

    def _placed(self, who: Longs) -> Ints:
        world, load = self.world, self.log.samples[-1].loads if self.log.samples else np.zeros(len(self.alive))
        choices = tuple(
            BrokerChoice(name, bool(up), at, None, float(carried), float(capacity))
            for name, up, at, carried, capacity in zip(
                world.brokers, self.alive, world.broker_places, load, world.capacity, strict=True
            )
        )
        served = max(1, int(np.count_nonzero(self.brokers.served_by >= 0)))
        seen = BrokersSeen(choices, float(load.sum()) / served)
        draws = self.kernel.stream("placement").random(len(who))
        assert self._coordinator is not None
        return self._coordinator.place(ArrivingSubscribers(world.places_deg[who], draws), seen)

    def _churn(self, now_s: float) -> None:
        churn = self.world.scenario.churn
        if not churn.leave_per_s or now_s < churn.from_s:
            return
        returning = np.flatnonzero(self._back_s <= now_s)
        if returning.size:
            self._back_s[returning] = np.inf
            self._away -= len(returning)
            self._arrive(returning, Kind.JOIN)
        rng = self.kernel.stream("churn")
        here = np.flatnonzero((self.brokers.served_by >= 0) & ~self._moving)
        leaving = here[rng.random(len(here)) < churn.leave_per_s * TICK_S]
        if leaving.size:
            self._telling.left(now_s, leaving, self.brokers.served_by[leaving])
            self.brokers.disconnect(leaving)
            self.assigned[leaving] = UNPLACED
            self._away += len(leaving)
            self._back_s[leaving] = now_s + rng.exponential(churn.away_s, len(leaving))
            self._generation += 1

    # The data cluster

    def _execute(self, channel: int) -> None:
        """Results of one execution, and with them what is known of λ."""
        period_s, now_s = self.world.scenario.channels.periods_s[channel], self.kernel.now_s
        mine = self._members[channel]
        held = mine[self.brokers.counts[:, mine].any(axis=0)]
        risen = (self._rise_s[held] <= now_s) & (now_s < self._fall_s[held])
        rate = self.world.rate[held] * np.where(risen, self._factor[held], 1.0)
        noise = self.kernel.stream("results").normal(1.0, self.world.scenario.channels.jitter, len(mine))
        size_bytes = period_s * np.maximum(0.0, rate * noise[np.searchsorted(mine, held)])
        self.brokers.deliver(held, size_bytes)
        weight = 1.0 - np.exp(-period_s / self.world.scenario.average_s)
        before, measured = self.rate_seen[held], size_bytes / period_s
        self.rate_seen[held] = np.where(np.isnan(before), measured, before + weight * (measured - before))

    def _burst(self) -> None:
        """Some rise within the next minutes and fall some minutes later; who is already due to rise is left alone."""
        bursts, rng, now_s = self.world.scenario.bursts, self.kernel.stream("bursts"), self.kernel.now_s
        q = len(self.world.rate)
        drawn = rng.permutation(q)[: round(bursts.share * q)]
        wait_s, lasts_s = rng.uniform(0.0, bursts.within_s, len(drawn)), rng.uniform(*bursts.lasts_s, len(drawn))
        factor = rng.uniform(*bursts.factor, len(drawn))
        free = self._fall_s[drawn] <= now_s
        chosen = drawn[free]
        self._rise_s[chosen] = now_s + wait_s[free]
        self._fall_s[chosen] = self._rise_s[chosen] + lasts_s[free]
        self._factor[chosen] = factor[free]

    # Reports, plans, moves

    def snapshot(self) -> Snapshot:
        world = self.world
        if self._rows is None:
            made = self.brokers.made
            upto = np.concatenate([[0], np.cumsum(made)])
            self._rows = upto[world.start].astype(np.int32), world.wants[made]
        start, wants = self._rows
        return Snapshot(
            generation=self._generation, at_s=self.kernel.now_s, brokers=world.brokers, capacity=world.capacity,
            accepting=self.alive.copy(), subscribers=world.subscribers, broker_of=self.assigned.copy(),
            wants_start=start, wants=wants, rate=self.rate_seen.copy(),
            movable=~self._moving & (self.brokers.served_by >= 0), moved_at_s=self._moved_at_s.copy(),
        )  # fmt: skip

    def _report(self) -> None:
        assert self._coordinator is not None
        self._carry_out(self._coordinator.plan(self._sample()))

    def _sample(self) -> Snapshot:
        snapshot = self.snapshot()
        accepting, per_capacity = capacities(snapshot)
        rate = known_rates(self.rate_seen)
        loads, wanted = self.brokers.loads(rate), self.brokers.counts.sum(axis=0)
        bound = float((wanted + (wanted > 0)) @ rate) / max(1, int(np.count_nonzero(accepting)))
        seen = balance_of(loads * per_capacity, accepting)
        count = self.brokers.subscribers()
        self.log.samples.append(
            LoadSample(snapshot.at_s, loads, count, seen.mean, seen.cov, seen.maximum, bound, self.log.migrations)
        )
        under_way = int(np.count_nonzero(self._moving))
        self._telling.measured(snapshot.at_s, self.brokers, rate, seen, self.log.migrations, under_way)
        return snapshot

    def _carry_out(self, plan: Plan) -> None:
        if plan.generation != self._generation:
            raise RuntimeError(f"a plan of generation {plan.generation} for a world of {self._generation}")
        if not plan.moves or plan.before is None or plan.after is None:
            return
        now_s, index = self.kernel.now_s, {name: j for j, name in enumerate(self.world.brokers)}
        if not self._numbers:
            self._numbers = {name: i for i, name in enumerate(self.world.subscribers)}
        who = np.array([self._numbers[move.subscriber] for move in plan.moves])
        target = np.array([index[move.target] for move in plan.moves], dtype=np.int32)
        source = self.assigned[who]
        self._telling.planned(now_s, plan, plan.before, plan.after)
        self._telling.moves(now_s, who, source, target, [move.reason for move in plan.moves])
        self.assigned[who], self._moving[who], self._moved_at_s[who] = target, True, now_s
        self._generation += 1
        self.log.migrations += len(who)
        self.log.plans.append(
            PlanMade(now_s, plan.policy, len(who), plan.before.cov, plan.after.cov, plan.after.maximum)
        )
        self.kernel.call_after(self.world.scenario.handover_s, self._handed_over, who, target)

    def _handed_over(self, who: Longs, target: Ints) -> None:
        """Those whose target has died meanwhile stay where they are."""
        still = (self.assigned[who] == target) & self.alive[target] & (self.brokers.served_by[who] >= 0)
        now_s, source = self.kernel.now_s, self.brokers.served_by[who]
        self._telling.moved(now_s, who[still], source[still], target[still])
        self._telling.not_moved(now_s, who[~still], source[~still], target[~still])
        self.brokers.move(who[still], target[still])
        self._moving[who] = False
        self._generation += 1

    # Failures

    def _fail(self, failure: Failure) -> None:
        j = failure.broker
        self.alive[j] = False
        lost = np.flatnonzero(self.brokers.served_by == j)
        self.brokers.disconnect(lost)
        self._generation += 1
        self._telling.failed(self.kernel.now_s, j, self.alive)
        self.kernel.call_after(self.world.scenario.detect_s, self._fail_over, j)
        self.kernel.call_at(failure.back_s, self._back, j)

    def _fail_over(self, j: int) -> None:
        bound = np.flatnonzero(self.assigned == j)
        elsewhere = self.brokers.served_by[bound] >= 0  # on their way there when it died
        self.assigned[bound[elsewhere]] = self.brokers.served_by[bound[elsewhere]]
        stranded = bound[~elsewhere]
        self.log.failed_over += len(stranded)
        self._moving[bound] = False
        # Those that had left j for another broker and were cut off before they got there go on to it.
        cut_off = np.flatnonzero((self.brokers.served_by == UNPLACED) & (self.assigned >= 0) & (self.assigned != j))
        self.brokers.connect(cut_off, self.assigned[cut_off])
        self._moving[cut_off] = False
        self._telling.arrived(self.kernel.now_s, Kind.FAILOVER, cut_off, self.assigned[cut_off])
        self._arrive(stranded, Kind.FAILOVER)

    def _back(self, j: int) -> None:
        self.alive[j] = True
        self._generation += 1
        self._telling.back(self.kernel.now_s, j, self.alive)
