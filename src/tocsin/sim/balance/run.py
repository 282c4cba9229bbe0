"""One run of a broker network: subscribers join and subscribe, channels execute, brokers report, plans are carried out.

Driven by the event kernel. The data cluster is reduced to its executions: per channel and period, results of random
size around the true rate. Brokers are the aggregated model. Policies see λ as the moving average that brokers measure
(`averages`), never the true rate; samples show the loads at the true rates, so a wrong λ shows as a worse balance. All
joins and subscriptions of one second are one event: a million subscribers would otherwise be ten million events.

A move is make-before-break: the old broker serves until the hand-over is done. The subscribers of a dead broker are
placed anew after `detect_s`. This module substitutes for the live coordinator's failure detection, arbiter and
migration state machine; `coordinator_run` runs the same world under the live coordinator itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from tocsin.model.ids import SubscriberId
from tocsin.model.plan import Plan, Urgency
from tocsin.model.rate import SURGE_SHARE, SURGING_SUBSCRIPTION, is_surge
from tocsin.model.snapshot import UNPLACED, Floats, Ints, Snapshot
from tocsin.model.trace import Kind
from tocsin.policies.balance.load import Longs, balance_of, capacities, known_rates
from tocsin.policies.balance.placement import BrokerChoice
from tocsin.sim.balance.averages import MovingAverages
from tocsin.sim.balance.brokers import AggregatedBrokers
from tocsin.sim.balance.policy_coordinator import ArrivingSubscribers, PolicyCoordinator
from tocsin.sim.balance.scenario import Failure
from tocsin.sim.balance.trace import RunRecorder, Trace
from tocsin.sim.balance.world import BalanceWorld
from tocsin.sim.kernel import EARLY, LATE, Kernel

TICK_S: Final = 1.0
SURGE_ANSWER_S: Final = 1.5
"""Time from the announcement of a surge to its plan: the brokers' report and the coordinator's pause."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The brokers' loads at one round, before its plan."""

    at_s: float
    loads: Floats
    """At the true rates of this moment."""
    subscribers: Longs
    mean: float
    cov: float
    maximum: float
    lower_bound: float
    """No assignment has a smaller maximum: all deliveries, and each BE subscription fetched once, spread evenly."""
    migrations: int
    """Migrations since the start of the run."""
    model_error: float
    """Median over the brokers of |load at the measured rates ÷ load at the true rates - 1|."""


@dataclass(frozen=True, slots=True)
class PlanMade:
    at_s: float
    policy: str
    moves: int
    urgency: Urgency = Urgency.IMBALANCE


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
        self._averages = MovingAverages(q, world.scenario.average_s)
        self._surge_answer_due = False
        self._struck = [world.struck_by(surge) for surge in world.scenario.surges]
        self._moving = np.zeros(n, dtype=np.bool_)
        self._moved_at_s = np.full(n, -np.inf)
        self._back_s = np.full(n, np.inf)
        self._rise_s, self._fall_s, self._factor = np.full(q, np.inf), np.full(q, -np.inf), np.ones(q)
        self._join_order, self._subscribe_order = np.argsort(world.join_s), np.argsort(world.subscribe_s)
        self._join_s = world.join_s[self._join_order]
        self._subscribe_s = world.subscribe_s[self._subscribe_order]
        self._joined, self._subscribed = 0, 0
        """Counts: subscribers that have joined, subscriptions made."""
        self._resubscribe_s = np.full(len(world.wants), np.inf)
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
        if now_s >= self.world.scenario.churn.from_s:
            self._churn(now_s)
            self._change_subscriptions(now_s)
        self.log.unserved_subscriber_s += TICK_S * (self._joined - self.brokers.serving)

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
        """Log subscribers in and out. A subscriber keeps its broker while it is offline, as under the coordinator."""
        churn = self.world.scenario.churn
        if not churn.leave_per_s:
            return
        returning = np.flatnonzero(self._back_s <= now_s)
        if returning.size:
            self._back_s[returning] = np.inf
            self.brokers.log_in(returning)
            self._arrive(returning[self.brokers.served_by[returning] < 0], Kind.JOIN)
        rng = self.kernel.stream("churn")
        here = np.flatnonzero((self.brokers.served_by >= 0) & self.brokers.online & ~self._moving)
        leaving = here[rng.random(len(here)) < churn.leave_per_s * TICK_S]
        if leaving.size:
            self.brokers.log_out(leaving)
            self._back_s[leaving] = now_s + rng.exponential(churn.away_s, len(leaving))

    def _change_subscriptions(self, now_s: float) -> None:
        """Remove random subscriptions, and make those again whose time has come."""
        churn = self.world.scenario.churn
        if not churn.unsubscribe_per_s:
            return
        again = np.flatnonzero(self._resubscribe_s <= now_s)
        rng = self.kernel.stream("unsubscribe")
        made = np.flatnonzero(self.brokers.subscribed)
        removed = made[rng.random(len(made)) < churn.unsubscribe_per_s * TICK_S]
        self._resubscribe_s[again] = np.inf
        self._resubscribe_s[removed] = now_s + rng.exponential(churn.away_s, len(removed))
        self.brokers.subscribe(again)
        self.brokers.unsubscribe(removed)
        if again.size or removed.size:
            self._rows = None
            self._generation += 1

    # The data cluster

    def _execute(self, channel: int) -> None:
        """Deliver the results of one execution and update the measured λ."""
        period_s, now_s = self.world.scenario.channels.periods_s[channel], self.kernel.now_s
        subscriptions = self._subscriptions_of[channel]
        held_subscriptions = subscriptions[self.brokers.counts[:, subscriptions].any(axis=0)]
        rate = self._true_rates(now_s)[held_subscriptions]
        noise = self.kernel.stream("results").normal(1.0, self.world.scenario.channels.jitter, len(subscriptions))
        size_bytes = period_s * np.maximum(0.0, rate * noise[np.searchsorted(subscriptions, held_subscriptions)])
        self._measure(channel, held_subscriptions, size_bytes)
        self.brokers.deliver(held_subscriptions, size_bytes)

    def _true_rates(self, now_s: float) -> Floats:
        """The true λ of this moment, with bursts and surges."""
        risen = (self._rise_s <= now_s) & (now_s < self._fall_s)
        rate = self.world.rate * np.where(risen, self._factor, 1.0)
        for surge, struck in zip(self.world.scenario.surges, self._struck, strict=True):
            if surge.at_s <= now_s < surge.at_s + surge.lasts_s:
                rate = np.where(struck, rate * surge.factor, rate)
        return rate

    @property
    def rate_seen(self) -> Floats:
        """λ as the brokers have measured it; NaN where they have not."""
        return self._averages.estimates(self.kernel.now_s)

    def _measure(self, channel: int, subscriptions: Longs, size_bytes: Floats) -> None:
        """Count the results of one execution into the averages. The announcement of a surge makes them start again."""
        now_s, period_s = self.kernel.now_s, self.world.scenario.channels.periods_s[channel]
        first = subscriptions[np.isinf(self._averages.began_s[subscriptions])]
        # The execution covers the records of its whole period, so that is how long they have been measured.
        self._averages.begin(first, now_s - period_s)
        self._notice_surge(subscriptions, size_bytes / period_s, period_s)
        if self._surge_answer_due:
            usual = self._averages.usuals(subscriptions, period_s, now_s)
            risen = size_bytes / period_s > SURGING_SUBSCRIPTION * usual
            self._averages.restart(subscriptions[risen], size_bytes[risen] / period_s, now_s)
            subscriptions, size_bytes = subscriptions[~risen], size_bytes[~risen]
        self._averages.add(subscriptions, size_bytes, now_s)

    def _notice_surge(self, subscriptions: Longs, rate: Floats, period_s: float) -> None:
        """Compare each broker's traffic of a channel with what the averages promise; plan soon if it surges at any."""
        seen = self.rate_seen
        measured = self._averages.shares(self.kernel.now_s)[subscriptions] >= SURGE_SHARE
        usual, burst = self._averages.usuals(subscriptions, period_s, self.kernel.now_s), rate[measured]
        of_brokers = (
            self.brokers.traffic(subscriptions[measured], burst).tolist(),
            self.brokers.traffic(subscriptions[measured], usual[measured]).tolist(),
            self.brokers.loads(known_rates(seen)).tolist(),
        )
        surges = any(map(is_surge, *of_brokers))
        if surges and self._answers_surges and not self._surge_answer_due:
            self._surge_answer_due = True
            self.kernel.call_after(SURGE_ANSWER_S, self._answer_surge, priority=LATE)

    @property
    def _answers_surges(self) -> bool:
        return self._coordinator is not None and self._coordinator.answers_surges

    def _answer_surge(self) -> None:
        assert self._coordinator is not None
        self._carry_out(self._coordinator.plan(replace(self.snapshot(), surge=True)))
        self._surge_answer_due = False

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
            rate=self.rate_seen,
            movable=~self._moving & (self.brokers.served_by >= 0) & self.brokers.online,
            moved_at_s=self._moved_at_s.copy(),
            online=self.brokers.online.copy(),
            places_deg=world.places_deg,
            broker_places_deg=np.array([(place.lat, place.lon) for place in world.broker_places]),
        )

    def _report(self) -> None:
        assert self._coordinator is not None
        self._carry_out(self._coordinator.plan(self._sample()))

    def _sample(self) -> Snapshot:
        snapshot = self.snapshot()
        accepting, per_capacity = capacities(snapshot)
        rate = self._true_rates(snapshot.at_s)
        loads, modelled = self.brokers.loads(rate), self.brokers.loads(known_rates(snapshot.rate))
        receiving, held = self.brokers.receiving.sum(axis=0), self.brokers.counts.any(axis=0)
        bound = float((receiving + held) @ rate) / max(1, int(np.count_nonzero(accepting)))
        error = float(np.median(np.abs(modelled[loads > 0] / loads[loads > 0] - 1.0))) if loads.any() else 0.0
        balance = balance_of(loads * per_capacity, accepting)
        counts = self.brokers.subscribers()
        self.log.samples.append(
            LoadSample(
                snapshot.at_s,
                loads,
                counts,
                balance.mean,
                balance.cov,
                balance.maximum,
                bound,
                self.log.migrations,
                error,
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
        self.log.plans.append(PlanMade(now_s, plan.policy, len(movers), plan.urgency))
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
