"""A run under the live coordinator: placement, rounds, arbiter, migrations and failover as they run live.

World and aggregated brokers are those of `run`. The decisions come from `coordinator.core`. It receives over links the
messages that real brokers would send (`wire.link`), and this module answers it as they would. So the live limits hold
too: the number of migrations at a time, consecutive hits, the silence after which a broker counts as dead.

For worlds of up to some ten thousand subscribers: the core keeps an object for each. Larger worlds use
`PolicyCoordinator`, which decides the same on the same snapshot; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import count

import numpy as np

from tocsin.coordinator import effects, events
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.plan import Plan
from tocsin.model.rate import REPORT_SHARE, SURGING_SUBSCRIPTION
from tocsin.model.snapshot import Floats, Place
from tocsin.model.trace import Kind
from tocsin.policies.balance.load import Longs, known_rates
from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy
from tocsin.sim.balance.averages import MovingAverages
from tocsin.sim.balance.run import TICK_S, BalanceRun, PlanMade
from tocsin.sim.balance.scenario import Scenario
from tocsin.sim.balance.trace import Trace
from tocsin.sim.balance.world import BalanceWorld
from tocsin.sim.kernel import LATE, Kernel
from tocsin.wire import link

_RETRY_S = 1.0


def rules_for(scenario: Scenario, placement: PlacementPolicy, settings: BalanceSettings) -> CoordinatorRules:
    """The defaults of the live coordinator, with the placement, settings and period given here."""
    period_s = scenario.report_s
    return CoordinatorRules(
        placement=placement, balancing=True, balance=settings, balance_s=period_s, report_s=period_s
    )


class CoordinatorRun(BalanceRun):
    def __init__(
        self, kernel: Kernel, world: BalanceWorld, rules: CoordinatorRules, trace: Trace | None = None
    ) -> None:
        settings = {"placement": str(rules.placement), **asdict(rules.balance)}
        super().__init__(kernel, world, trace=trace, settings=settings)
        m = len(world.brokers)
        self.core = Coordinator(rules, "simulated", now_s=kernel.now_s)
        self._requests, self._link_numbers, self._changes = count(1), count(1), count(1)
        self._links = [0] * m
        self._incarnation = [0] * m
        self._index: dict[BrokerId, int] = {name: j for j, name in enumerate(world.brokers)}
        self._frontend = [
            link.Frontend(SubscriptionId(f"s{k}"), ChannelName(f"c{world.channel_of[k]}"), {}, str(Cursor(1, 0)))
            for k in range(len(world.rate))
        ]
        shape = (m, len(world.rate))
        self._measured = MovingAverages(shape, world.scenario.average_s)
        """The averages of each broker, from the moment at which it holds a BE subscription."""
        self._reported, self._reported_share = np.full(shape, np.nan), np.zeros(shape)
        """Per broker and BE subscription: value and share in its latest report; NaN if it has reported none."""
        self._step_s = world.scenario.handover_s / 2.0
        self._last_plan: Plan | None = None
        for j in range(m):
            self._register(j)
        kernel.every(rules.heartbeat_s, self._send_heartbeats)
        kernel.every(rules.report_s, self._report_loads, priority=LATE)
        kernel.every(TICK_S, self._tick_core, priority=LATE)

    # The coordinator core and its effects

    def _coordinate(self, event: events.Event) -> object:
        """Pass the event to the core and carry out its effects; returns the answer, or None without one."""
        answer: object = None
        for effect in self.core.handle(event, self.kernel.now_s):
            match effect:
                case effects.AnswerRequest(_, value):
                    answer = value
                case effects.SendToBroker(broker, _, message):
                    self._receive(self._index[broker], message)
                case effects.SendHandOver():
                    self.kernel.call_after(
                        self._step_s, self._follow, effect.subscriber, self._index[effect.target], effect.migration
                    )
                case effects.ReleaseAtCluster(broker):
                    self.kernel.call_after(self._step_s, self._coordinate, events.BrokerReleased(broker))
        return answer

    def _receive(self, j: int, message: link.FromCoordinator) -> None:
        """Broker j receives a message of the coordinator."""
        match message:
            case link.Prepare(migration, state, _):
                self._begin_move(j, migration, state.subscriber)
                self.kernel.call_after(self._step_s, self._send, j, link.Prepared(migration))
            case link.Release(subscriber, migration):
                self._moving[self._number_of[subscriber]] = False
                self.kernel.call_after(self._step_s, self._send, j, link.Released(subscriber, migration))
            case link.Abandon(_, subscriber):
                i = self._number_of[subscriber]
                movers, target = np.array([i]), np.array([j], dtype=np.int32)
                self._recorder.not_moved(self.kernel.now_s, movers, self.brokers.served_by[movers], target)
                self._moving[i] = False
                self.assigned[i] = self.brokers.served_by[i]

    def _send(self, j: int, message: link.FromBroker) -> None:
        """Broker j sends a message to the coordinator, unless it is dead."""
        if self.alive[j]:
            self._coordinate(events.LinkMessageReceived(self.world.brokers[j], self._links[j], message))

    def _tick_core(self) -> None:
        self._coordinate(events.Ticked())
        last = self.core.last_round
        if last is None or last.plan is self._last_plan:
            return
        self._last_plan = last.plan
        moves = tuple(verdict.move for verdict in last.verdicts if verdict.taken)
        if moves:
            now_s = self.kernel.now_s
            self.log.plans.append(PlanMade(now_s, last.plan.policy, len(moves), last.plan.urgency))
            self._recorder.planned(now_s, replace(last.plan, moves=moves), last.before, last.after)

    # Messages of the brokers

    def _register(self, j: int) -> None:
        self._links[j] = next(self._link_numbers)
        self._incarnation[j] += 1
        self._reported[j] = np.nan
        self._measured.end((j,))
        name, place, capacity = self.world.brokers[j], self.world.broker_places[j], float(self.world.capacity[j])
        incarnation = f"i{self._incarnation[j]}"
        self._send(j, link.Register(name, incarnation, f"ws://{name}", capacity, place.lat, place.lon))

    def _send_heartbeats(self) -> None:
        sessions = self.brokers.subscribers()
        for j, counts in enumerate(self.brokers.counts):
            self._send(j, link.Heartbeat(int(sessions[j]), int(counts.sum()), int(np.count_nonzero(counts))))

    def _measure(self, channel: int, subscriptions: Longs, size_bytes: Floats) -> None:
        """Every holder measures for itself, so that the coordinator has to merge what they report, as it does live."""
        now_s, period_s = self.kernel.now_s, self.world.scenario.channels.periods_s[channel]
        held = np.zeros(self.brokers.counts.shape, np.bool_)
        held[:, subscriptions] = self.brokers.counts[:, subscriptions] > 0
        first = held & np.isinf(self._measured.began_s)
        self._measured.begin(first, now_s - period_s)
        super()._measure(channel, subscriptions, size_bytes)
        sizes = np.zeros(len(self.world.rate))
        sizes[subscriptions] = size_bytes
        amounts = np.broadcast_to(sizes, held.shape)[held]
        if self._surge_answer_due:
            usual = self._measured.usuals(held, period_s, now_s)
            risen = np.zeros(held.shape, np.bool_)
            risen[held] = amounts / period_s > SURGING_SUBSCRIPTION * usual
            self._measured.restart(risen, np.broadcast_to(sizes, held.shape)[risen] / period_s, now_s)
            held &= ~risen
            amounts = np.broadcast_to(sizes, held.shape)[held]
        self._measured.add(held, amounts, now_s)

    @property
    def _answers_surges(self) -> bool:
        return self.core.rules.balance.surges

    def _answer_surge(self) -> None:
        """The brokers report the surge; the core answers it with a round of its own."""
        self._report_loads(surge=True)
        self._surge_answer_due = False

    def _report_loads(self, *, surge: bool = False) -> None:
        now_s = self.kernel.now_s
        held = self.brokers.counts > 0
        self._measured.end(~held)
        values, shares = self._measured.values(now_s), self._measured.shares(now_s)
        rate = known_rates(self.rate_seen)
        for j in range(len(held)):
            known = ~np.isnan(self._reported[j])
            measured = held[j] & ~np.isinf(self._measured.began_s[j])
            changed = measured & (
                ~known
                | (np.abs(values[j] - self._reported[j]) > REPORT_SHARE * self._reported[j])
                | (shares[j] - self._reported_share[j] > REPORT_SHARE)
            )
            released = np.flatnonzero(known & ~held[j])
            self._reported[j, changed], self._reported_share[j, changed] = values[j, changed], shares[j, changed]
            self._reported[j, released] = np.nan
            name = [self._frontend[k].subscription for k in np.flatnonzero(changed)]
            report = link.LoadReport(
                float(held[j] @ rate),
                float(self.brokers.receiving[j] @ rate),
                dict(zip(name, values[j, changed].tolist(), strict=True)),
                shares=dict(zip(name, shares[j, changed].tolist(), strict=True)),
                released=[self._frontend[k].subscription for k in released],
                in_bytes=int(self.brokers.bytes_in[j]),
                out_bytes=int(self.brokers.bytes_out[j]),
                surge=surge,
            )
            self._send(j, report)

    # Subscribers

    def _tick(self) -> None:
        before = self._subscribed
        super()._tick()
        made = self._subscribe_order[before : self._subscribed]
        owners = np.searchsorted(self.world.start, made, side="right") - 1
        for i in np.unique(owners):
            j = int(self.brokers.served_by[i])
            if j >= 0:  # a subscriber without a broker subscribes when it gets one
                self._subscribe(j, i, self.world.wants[made[owners == i]])

    def _subscribe(self, j: int, i: int, subscriptions: Iterable[int]) -> None:
        added = [self._frontend[k] for k in subscriptions]
        self._send(j, link.Changed(next(self._changes), self.world.subscribers[i], added))

    def _arrive(self, subscribers: Longs, kind: Kind) -> None:
        """Each subscriber requests a broker and logs in there; without one it retries."""
        unreachable = frozenset(self.world.brokers[j] for j in np.flatnonzero(~self.alive))
        for i in subscribers:
            self._log_in(int(i), kind, unreachable)

    def _log_in(self, i: int, kind: Kind, unreachable: frozenset[BrokerId]) -> None:
        name, place = self.world.subscribers[i], Place(*self.world.places_deg[i].tolist())
        if name not in self.core.registry.subscribers:
            self._coordinate(events.UserRegistered(next(self._requests), name, place))
        placed = self._coordinate(events.BrokerRequested(next(self._requests), name, place, avoid=unreachable))
        if not isinstance(placed, events.Placed):
            self.kernel.call_after(_RETRY_S, self._arrive, np.array([i]), kind)
            return
        j = self._index[placed.broker]
        subscriber, broker = np.array([i]), np.array([j], dtype=np.int32)
        self.assigned[i] = j
        self.brokers.connect(subscriber, broker)
        self._generation += 1
        known = self.core.registry.subscribers[name]
        if known.home != placed.broker:
            self._send(j, link.StateRequest(name))
        self._send(j, link.SessionOpened(name))
        entries = np.arange(self.world.start[i], self.world.start[i + 1])
        subscriptions = self.world.wants[entries[self.brokers.subscribed[entries]]]
        missed = [k for k in subscriptions if self._frontend[k].subscription not in known.subscriptions]
        if missed:
            self._subscribe(j, i, missed)
        self._recorder.arrived(self.kernel.now_s, kind, subscriber, broker)

    def _churn(self, now_s: float) -> None:
        before = self.brokers.online.copy()
        super()._churn(now_s)
        for i in np.flatnonzero(before != self.brokers.online):
            j, name = int(self.brokers.served_by[i]), self.world.subscribers[i]
            if j < 0:
                continue
            if before[i]:
                self._send(j, link.SessionClosed(name, "left"))
            else:
                self._send(j, link.SessionOpened(name))

    def _change_subscriptions(self, now_s: float) -> None:
        before = self.brokers.subscribed.copy()
        super()._change_subscriptions(now_s)
        changed = np.flatnonzero(before != self.brokers.subscribed)
        owners = np.searchsorted(self.world.start, changed, side="right") - 1
        for entry, i in zip(changed.tolist(), owners.tolist(), strict=True):
            j, frontend = int(self.brokers.served_by[i]), self._frontend[self.world.wants[entry]]
            if j >= 0 and before[entry]:
                removed = [frontend.subscription]
                self._send(j, link.Changed(next(self._changes), self.world.subscribers[i], removed=removed))
            elif j >= 0:
                self._send(j, link.Changed(next(self._changes), self.world.subscribers[i], added=[frontend]))

    # Moves

    def _begin_move(self, j: int, migration: str, subscriber: SubscriberId) -> None:
        i, now_s = self._number_of[subscriber], self.kernel.now_s
        if not self._moving[i]:  # the coordinator may repeat a preparation
            self.log.migrations += 1
            reason = self.core.registry.migrations[migration].reason
            movers, target = np.array([i]), np.array([j], dtype=np.int32)
            self._recorder.moving(now_s, movers, self.brokers.served_by[movers], target, [reason])
            self._moving[i], self._moved_at_s[i], self.assigned[i] = True, now_s, j
            self._generation += 1

    def _follow(self, subscriber: SubscriberId, j: int, migration: str) -> None:
        """The subscriber connects to its new broker, unless it has lost its session or the new broker is dead."""
        i = self._number_of[subscriber]
        if self.alive[j] and self.brokers.served_by[i] >= 0:
            movers, target = np.array([i]), np.array([j], dtype=np.int32)
            self._recorder.moved(self.kernel.now_s, movers, self.brokers.served_by[movers], target)
            self.brokers.move(movers, target)
            self.assigned[i] = j
            self._generation += 1
            self._send(j, link.SessionOpened(subscriber, migration))

    def _report(self) -> None:
        """Record a sample. The core has its own reports and rounds."""
        self._sample()

    # Failures

    def _detect_failure(self, j: int, lost: Longs) -> None:
        self._moving[lost] = False
        self._coordinate(events.LinkClosed(self.world.brokers[j], self._links[j]))
        self.kernel.call_after(self.world.scenario.detect_s, self._fail_over_from, lost)

    def _fail_over_from(self, lost: Longs) -> None:
        # The core places offline subscribers anew by itself; they request their broker when they log in again.
        stranded = lost[(self.brokers.served_by[lost] < 0) & self.brokers.online[lost]]
        self.log.failed_over += len(stranded)
        self._arrive(stranded, Kind.FAILOVER)

    def _back(self, j: int) -> None:
        super()._back(j)
        self._register(j)
