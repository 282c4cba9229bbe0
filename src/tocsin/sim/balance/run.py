"""One run of a broker network: subscribers join and subscribe, channels execute, brokers report, plans are carried out.

Driven by the event kernel. The data cluster is reduced to its executions: per channel and period, results of random
size around the true rate. Brokers are the aggregated model. Policies see λ as the moving average of execution results,
never the true rate. All joins and subscriptions of one second are one event: a million subscribers would otherwise be
ten million events.

A move is make-before-break: the old broker serves until the hand-over is done. The subscribers of a dead broker are
placed anew after `detect_s`. This module substitutes for the live coordinator's failure detection, arbiter and
migration state machine; `coordinator_run` runs the same world under the live coordinator itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from tocsin.model.ids import SubscriberId
from tocsin.model.plan import Plan
from tocsin.model.snapshot import UNPLACED, Floats, Ints, Snapshot
from tocsin.model.trace import Kind
from tocsin.policies.balance.load import Longs, balance_of, capacities, known_rates
from tocsin.policies.balance.placement import BrokerChoice
from tocsin.sim.balance.brokers import AggregatedBrokers
from tocsin.sim.balance.policy_coordinator import ArrivingSubscribers, PolicyCoordinator
from tocsin.sim.balance.scenario import Failure
from tocsin.sim.balance.trace import RunRecorder, Trace
from tocsin.sim.balance.world import BalanceWorld
from tocsin.sim.kernel import EARLY, LATE, Kernel

TICK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The brokers' reports of one round, before its plan."""

    at_s: float
    loads: Floats
    subscribers: Longs
    mean: float
    cov: float
    maximum: float
    lower_bound: float
    """No assignment has a smaller maximum: all deliveries, and each BE subscription fetched once, spread evenly."""
    migrations: int
    """Migrations since the start of the run."""


@dataclass(frozen=True, slots=True)
class PlanMade:
    at_s: float
    policy: str
    moves: int


@dataclass(slots=True)
class BalanceLog:
    samples: list[LoadSample] = field(default_factory=list)
    plans: list[PlanMade] = field(default_factory=list)
    migrations: int = 0
    failed_over: int = 0
    unserved_subscriber_s: float = 0.0
    """Time that subscribers which joined and are not away spend without a broker, because theirs died."""


class BalanceRun:
    def __init__(
        self,
        kernel: Kernel,
        world: BalanceWorld,
        coordinator: PolicyCoordinator | None = None,
        trace: Trace | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings` are for the trace, if there is no `coordinator`: `CoordinatorRun` has its own."""
        self.kernel, self.world = kernel, world
        described = coordinator.described() if coordinator is not None else dict(settings or {})
        self._recorder = RunRecorder(world, trace, described)
        self.log = BalanceLog()
        self._coordinator = coordinator
        n, m, q = len(world.subscribers), len(world.brokers), len(world.rate)
        self.brokers = AggregatedBrokers(world)
        self.assigned: Ints = np.full(n, UNPLACED, dtype=np.int32)
        """The broker of each subscriber as the coordinator sees it: moves in progress count as made."""
        self.alive = np.ones(m, dtype=np.bool_)
        self.rate_seen = np.full(q, np.nan)
        self._moving = np.zeros(n, dtype=np.bool_)
        self._moved_at_s = np.full(n, -np.inf)
        self._back_s = np.full(n, np.inf)
        self._rise_s, self._fall_s, self._factor = np.full(q, np.inf), np.full(q, -np.inf), np.ones(q)
        self._join_order, self._subscribe_order = np.argsort(world.join_s), np.argsort(world.subscribe_s)
        self._join_s = world.join_s[self._join_order]
        self._subscribe_s = world.subscribe_s[self._subscribe_order]
        self._joined, self._subscribed, self._away = 0, 0, 0
        """Counts: subscribers that have joined, subscriptions made, subscribers that are offline."""
        self._generation = 0
        self._rows: tuple[Ints, Ints] | None = None
        self._subscriptions_of = [
            np.flatnonzero(world.channel_of == c) for c in range(len(world.scenario.channels.periods_s))
        ]

    def run(self) -> BalanceLog:
        kernel, scenario = self.kernel, self.world.scenario
        self._recorder.brokers(kernel.now_s, self.alive)
        kernel.every(TICK_S, self._tick, first_s=0.0, priority=EARLY)
        for channel, period_s in enumerate(scenario.channels.periods_s):
            kernel.every(period_s, self._execute, channel)
        if scenario.bursts.share:
            kernel.every(scenario.bursts.every_s, self._burst)
        for failure in scenario.failures:
            kernel.call_at(failure.at_s, self._fail, failure)
        kernel.every(scenario.report_s, self._report, priority=LATE)
        kernel.run(scenario.length_s)
        return self.log

    @cached_property
    def _number_of(self) -> dict[SubscriberId, int]:
        """The number of each subscriber, by id. A run without moves never needs it."""
        return {name: i for i, name in enumerate(self.world.subscribers)}

    # Subscribers

    def _tick(self) -> None:
        """Carry out the joins, subscriptions, departures and returns of the last second."""
        now_s = self.kernel.now_s
        joined, subscribed = (
            int(np.searchsorted(due_s, now_s, side="right")) for due_s in (self._join_s, self._subscribe_s)
        )
        if joined > self._joined:
            self._arrive(self._join_order[self._joined : joined], Kind.JOIN)
            self._joined = joined
        if subscribed > self._subscribed:
            self.brokers.subscribe(self._subscribe_order[self._subscribed : subscribed])
            self._subscribed, self._rows = subscribed, None
        self._churn(now_s)
        self.log.unserved_subscriber_s += TICK_S * (self._joined - self.brokers.serving - self._away)

    def _arrive(self, subscribers: Longs, kind: Kind) -> None:
        chosen = self._placed(subscribers)
        self.assigned[subscribers] = chosen
        self.brokers.connect(subscribers[chosen >= 0], chosen[chosen >= 0])
        self._generation += 1
        self._recorder.arrived(self.kernel.now_s, kind, subscribers, chosen)

    def _placed(self, subscribers: Longs) -> Ints:
        world, load = self.world, self.log.samples[-1].loads if self.log.samples else np.zeros(len(self.alive))
        choices = tuple(
            BrokerChoice(name, bool(up), at, None, float(carried), float(capacity))
            for name, up, at, carried, capacity in zip(
                world.brokers, self.alive, world.broker_places, load, world.capacity, strict=True
            )
        )
        served = max(1, int(np.count_nonzero(self.brokers.served_by >= 0)))
        draws = self.kernel.stream("placement").random(len(subscribers))
        arrivals = ArrivingSubscribers(world.places_deg[subscribers], draws)
        assert self._coordinator is not None
        return self._coordinator.place(arrivals, choices, float(load.sum()) / served)

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
            self._recorder.left(now_s, leaving, self.brokers.served_by[leaving])
            self.brokers.disconnect(leaving)
            self.assigned[leaving] = UNPLACED
            self._away += len(leaving)
            self._back_s[leaving] = now_s + rng.exponential(churn.away_s, len(leaving))
            self._generation += 1

    # The data cluster

    def _execute(self, channel: int) -> None:
        """Deliver the results of one execution and update the measured λ."""
        period_s, now_s = self.world.scenario.channels.periods_s[channel], self.kernel.now_s
        subscriptions = self._subscriptions_of[channel]
        held_subscriptions = subscriptions[self.brokers.counts[:, subscriptions].any(axis=0)]
        risen = (self._rise_s[held_subscriptions] <= now_s) & (now_s < self._fall_s[held_subscriptions])
        rate = self.world.rate[held_subscriptions] * np.where(risen, self._factor[held_subscriptions], 1.0)
        noise = self.kernel.stream("results").normal(1.0, self.world.scenario.channels.jitter, len(subscriptions))
        size_bytes = period_s * np.maximum(0.0, rate * noise[np.searchsorted(subscriptions, held_subscriptions)])
        self.brokers.deliver(held_subscriptions, size_bytes)
        weight = 1.0 - np.exp(-period_s / self.world.scenario.average_s)
        before, measured = self.rate_seen[held_subscriptions], size_bytes / period_s
        self.rate_seen[held_subscriptions] = np.where(np.isnan(before), measured, before + weight * (measured - before))

    def _burst(self) -> None:
        """Let random rates rise and fall within the next minutes, except those already due to rise."""
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
            subscribed = self.brokers.subscribed
            upto = np.concatenate([[0], np.cumsum(subscribed)])
            self._rows = upto[world.start].astype(np.int32), world.wants[subscribed]
        start, wants = self._rows
        return Snapshot(
            generation=self._generation,
            at_s=self.kernel.now_s,
            brokers=world.brokers,
            capacity=world.capacity,
            accepting=self.alive.copy(),
            subscribers=world.subscribers,
            broker_of=self.assigned.copy(),
            wants_start=start,
            wants=wants,
            rate=self.rate_seen.copy(),
            movable=~self._moving & (self.brokers.served_by >= 0),
            moved_at_s=self._moved_at_s.copy(),
        )

    def _report(self) -> None:
        assert self._coordinator is not None
        self._carry_out(self._coordinator.plan(self._sample()))

    def _sample(self) -> Snapshot:
        snapshot = self.snapshot()
        accepting, per_capacity = capacities(snapshot)
        rate = known_rates(self.rate_seen)
        loads, frontends = self.brokers.loads(rate), self.brokers.counts.sum(axis=0)
        bound = float((frontends + (frontends > 0)) @ rate) / max(1, int(np.count_nonzero(accepting)))
        balance = balance_of(loads * per_capacity, accepting)
        counts = self.brokers.subscribers()
        self.log.samples.append(
            LoadSample(
                snapshot.at_s, loads, counts, balance.mean, balance.cov, balance.maximum, bound, self.log.migrations
            )
        )
        moving = int(np.count_nonzero(self._moving))
        self._recorder.sampled(snapshot.at_s, self.brokers, rate, balance, self.log.migrations, moving)
        return snapshot

    def _carry_out(self, plan: Plan) -> None:
        if plan.generation != self._generation:
            raise RuntimeError(f"plan of generation {plan.generation}, world of generation {self._generation}")
        if not plan.moves or plan.before is None or plan.after is None:
            return
        now_s, index = self.kernel.now_s, {name: j for j, name in enumerate(self.world.brokers)}
        movers = np.array([self._number_of[move.subscriber] for move in plan.moves])
        target = np.array([index[move.target] for move in plan.moves], dtype=np.int32)
        source = self.assigned[movers]
        self._recorder.planned(now_s, plan, plan.before, plan.after)
        self._recorder.moving(now_s, movers, source, target, [move.reason for move in plan.moves])
        self.assigned[movers], self._moving[movers], self._moved_at_s[movers] = target, True, now_s
        self._generation += 1
        self.log.migrations += len(movers)
        self.log.plans.append(PlanMade(now_s, plan.policy, len(movers)))
        self.kernel.call_after(self.world.scenario.handover_s, self._handed_over, movers, target)

    def _handed_over(self, movers: Longs, target: Ints) -> None:
        """Complete the moves. A subscriber whose target has died in the meantime stays where it is."""
        valid = (self.assigned[movers] == target) & self.alive[target] & (self.brokers.served_by[movers] >= 0)
        now_s, source = self.kernel.now_s, self.brokers.served_by[movers]
        self._recorder.moved(now_s, movers[valid], source[valid], target[valid])
        self._recorder.not_moved(now_s, movers[~valid], source[~valid], target[~valid])
        self.brokers.move(movers[valid], target[valid])
        self._moving[movers] = False
        self._generation += 1

    # Failures

    def _fail(self, failure: Failure) -> None:
        j = failure.broker
        lost = np.flatnonzero(self.brokers.served_by == j)
        self.alive[j] = False
        self.brokers.disconnect(lost)
        self._generation += 1
        self._recorder.broker_changed(self.kernel.now_s, Kind.BROKER_FAILED, j, self.alive)
        self._detect_failure(j, lost)
        self.kernel.call_at(failure.back_s, self._back, j)

    def _detect_failure(self, j: int, lost: Longs) -> None:
        self.kernel.call_after(self.world.scenario.detect_s, self._fail_over, j)

    def _fail_over(self, j: int) -> None:
        bound = np.flatnonzero(self.assigned == j)
        elsewhere = self.brokers.served_by[bound] >= 0  # their move to j was in progress when it died
        self.assigned[bound[elsewhere]] = self.brokers.served_by[bound[elsewhere]]
        stranded = bound[~elsewhere]
        self.log.failed_over += len(stranded)
        self._moving[bound] = False
        # Subscribers whose move from j to another broker was in progress connect to that broker.
        cut_off = np.flatnonzero((self.brokers.served_by == UNPLACED) & (self.assigned >= 0) & (self.assigned != j))
        self.brokers.connect(cut_off, self.assigned[cut_off])
        self._moving[cut_off] = False
        self._recorder.arrived(self.kernel.now_s, Kind.FAILOVER, cut_off, self.assigned[cut_off])
        self._arrive(stranded, Kind.FAILOVER)

    def _back(self, j: int) -> None:
        self.alive[j] = True
        self._generation += 1
        self._recorder.broker_changed(self.kernel.now_s, Kind.BROKER_BACK, j, self.alive)
