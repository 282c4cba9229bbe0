"""A run under the live coordinator's own logic: placement, rounds, arbiter, migrations and failover as they run live.

The world and the aggregated brokers are `balance_run`'s. What changes is who decides: `coordinator.core`, which is told
over links what real brokers would tell it (`wire.link`) and is answered as they would answer. So the live limits hold
too: so many migrations at a time, consecutive hits, silence before a broker counts as dead.

For worlds of up to some ten thousand subscribers: the core keeps an object for each. Larger ones take
`PolicyCoordinator`, which decides the same on the same snapshot; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import count

import numpy as np

from tocsin.coordinator import effects as decided
from tocsin.coordinator import events
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.rules import Rules
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.plan import Plan
from tocsin.model.snapshot import Place
from tocsin.model.trace import Kind
from tocsin.policies.balance.load import Longs, known_rates
from tocsin.policies.balance.multistage import BalanceSettings
from tocsin.policies.balance.placement import PlacementPolicy
from tocsin.sim.balance.run import TICK_S, BalanceRun, PlanMade
from tocsin.sim.balance.scenario import Failure, Scenario
from tocsin.sim.balance.trace import Trace
from tocsin.sim.balance.world import BalanceWorld
from tocsin.sim.kernel import LATE, Kernel
from tocsin.wire import link

_TOLD_ANEW = 0.05
"""A rate is told again when it has changed by this share, as brokers do (`link.LoadReport`)."""
_TRY_AGAIN_S = 1.0


def rules_for(scenario: Scenario, placement: PlacementPolicy, settings: BalanceSettings) -> Rules:
    """What a live coordinator starts with, but for what the scenario says."""
    period_s = scenario.report_s
    return Rules(placement=placement, balancing=True, balance=settings, balance_s=period_s, report_s=period_s)


class CoordinatorRun(BalanceRun):
    def __init__(self, kernel: Kernel, world: BalanceWorld, rules: Rules, trace: Trace | None = None) -> None:
        settings = {"placement": str(rules.placement), **asdict(rules.balance)}
        super().__init__(kernel, world, trace=trace, settings=settings)
        m = len(world.brokers)
        self.core = Coordinator(rules, "simulated", now_s=kernel.now_s)
        self._asks, self._link_numbers, self._changes = count(1), count(1), count(1)
        self._links = [0] * m
        self._incarnation = [0] * m
        self._index: dict[BrokerId, int] = {name: j for j, name in enumerate(world.brokers)}
        self._people: dict[SubscriberId, int] = {name: i for i, name in enumerate(world.subscribers)}
        self._frontend = [
            link.Frontend(SubscriptionId(f"s{k}"), ChannelName(f"c{world.channel_of[k]}"), {}, str(Cursor(1, 0)))
            for k in range(len(world.rate))
        ]
        self._told = np.zeros((m, len(world.rate)))
        self._step_s = world.scenario.handover_s / 2.0
        self._last_plan: Plan | None = None
        for j in range(m):
            self._register(j)
        kernel.every(rules.heartbeat_s, self._beat)
        kernel.every(rules.report_s, self._tell_loads, priority=LATE)
        kernel.every(TICK_S, self._time_passes, priority=LATE)

    # The core, and what it wants done

    def _coordinate(self, event: events.Event) -> object:
        answer: object = None
        for effect in self.core.handle(event, self.kernel.now_s):
            match effect:
                case decided.Answer(_, value):
                    answer = value
                case decided.Send(broker, _, message):
                    self._told_by_core(self._index[broker], message)
                case decided.SendHandOver():
                    self.kernel.call_after(
                        self._step_s, self._follow, effect.subscriber, self._index[effect.target], effect.migration
                    )
                case decided.ReleaseAtCluster(broker):
                    self.kernel.call_after(self._step_s, self._coordinate, events.BrokerReleased(broker))
        return answer

    def _told_by_core(self, j: int, message: link.FromCoordinator) -> None:
        match message:
            case link.Prepare(migration, state, _):
                self._begin(j, migration, state.subscriber)
                self.kernel.call_after(self._step_s, self._hear, j, link.Prepared(migration))
            case link.Release(subscriber, migration):
                self._moving[self._people[subscriber]] = False
                self.kernel.call_after(self._step_s, self._hear, j, link.Released(subscriber, migration))
            case link.Abandon(_, subscriber):
                who = self._people[subscriber]
                here, target = np.array([who]), np.array([j], dtype=np.int32)
                self._telling.not_moved(self.kernel.now_s, here, self.brokers.served_by[here], target)
                self._moving[who] = False
                self.assigned[who] = self.brokers.served_by[who]

    def _hear(self, j: int, message: link.FromBroker) -> None:
        """A dead broker says nothing."""
        if self.alive[j]:
            self._coordinate(events.Heard(self.world.brokers[j], self._links[j], message))

    def _time_passes(self) -> None:
        self._coordinate(events.Ticked())
        made = self.core.last_round
        if made is None or made.plan is self._last_plan:
            return
        self._last_plan, taken = made.plan, sum(one.taken for one in made.verdicts)
        if taken:
            self.log.plans.append(
                PlanMade(
                    self.kernel.now_s, made.plan.policy, taken, made.before.cov, made.after.cov, made.after.maximum
                )
            )
            moves = tuple(one.move for one in made.verdicts if one.taken)
            self._telling.planned(self.kernel.now_s, replace(made.plan, moves=moves), made.before, made.after)

    # What brokers say

    def _register(self, j: int) -> None:
        self._links[j] = next(self._link_numbers)
        self._incarnation[j] += 1
        self._told[j] = 0.0
        name, place = self.world.brokers[j], self.world.broker_places[j]
        self._hear(
            j,
            link.Register(
                name, f"i{self._incarnation[j]}", f"ws://{name}", float(self.world.capacity[j]), place.lat, place.lon
            ),
        )

    def _beat(self) -> None:
        sessions = self.brokers.subscribers()
        for j, counts in enumerate(self.brokers.counts):
            self._hear(j, link.Heartbeat(int(sessions[j]), int(counts.sum()), int(np.count_nonzero(counts))))

    def _tell_loads(self) -> None:
        rate = known_rates(self.rate_seen)
        for j, counts in enumerate(self.brokers.counts):
            held = counts > 0
            now = np.where(held, rate, 0.0)
            news = np.flatnonzero(np.abs(now - self._told[j]) > _TOLD_ANEW * self._told[j])
            self._told[j, news] = now[news]
            rates = {self._frontend[k].subscription: float(now[k]) for k in news}
            self._hear(j, link.LoadReport(float(now.sum()), float(counts @ rate), rates))

    # People

    def _tick(self) -> None:
        wished = self._wished
        super()._tick()
        made = self._wish_order[wished : self._wished]
        owners = np.searchsorted(self.world.start, made, side="right") - 1
        for who in np.unique(owners):
            j = int(self.brokers.served_by[who])
            if j >= 0:  # who has no broker at the moment subscribes when it has one
                self._subscribed(j, who, self.world.wants[made[owners == who]])

    def _subscribed(self, j: int, who: int, wants: Iterable[int]) -> None:
        added = [self._frontend[k] for k in wants]
        self._hear(j, link.Changed(next(self._changes), self.world.subscribers[who], added))

    def _arrive(self, who: Longs, kind: Kind) -> None:
        """Each asks for a broker and logs in there; whom nobody takes tries again."""
        unreachable = frozenset(self.world.brokers[j] for j in np.flatnonzero(~self.alive))
        for one in who:
            self._log_in(int(one), kind, unreachable)

    def _log_in(self, who: int, kind: Kind, unreachable: frozenset[BrokerId]) -> None:
        name, place = self.world.subscribers[who], Place(*self.world.places_deg[who].tolist())
        if name not in self.core.registry.subscribers:
            self._coordinate(events.UserRegistered(next(self._asks), name, place))
        placed = self._coordinate(events.BrokerRequested(next(self._asks), name, place, avoid=unreachable))
        if not isinstance(placed, events.Placed):
            self.kernel.call_after(_TRY_AGAIN_S, self._arrive, np.array([who]), kind)
            return
        j = self._index[placed.broker]
        here = np.array([who])
        self.assigned[who] = j
        self.brokers.connect(here, np.array([j], dtype=np.int32))
        self._generation += 1
        known = self.core.registry.subscribers[name]
        if known.home != placed.broker:
            self._hear(j, link.Wanted(name))
        self._hear(j, link.SessionOpened(name))
        wishes = np.arange(self.world.start[who], self.world.start[who + 1])
        wanted = self.world.wants[wishes[self.brokers.made[wishes]]]
        missed = [k for k in wanted if self._frontend[k].subscription not in known.subscriptions]
        if missed:
            self._subscribed(j, who, missed)
        self._telling.arrived(self.kernel.now_s, kind, here, np.array([j], dtype=np.int32))

    def _churn(self, now_s: float) -> None:
        before = self.brokers.served_by.copy()
        super()._churn(now_s)
        for who in np.flatnonzero((before >= 0) & (self.brokers.served_by < 0)):
            self._hear(int(before[who]), link.SessionClosed(self.world.subscribers[who], "left"))

    # Moves

    def _begin(self, j: int, migration: str, subscriber: SubscriberId) -> None:
        who = self._people[subscriber]
        if not self._moving[who]:  # a preparation may be told again
            self.log.migrations += 1
            reason = self.core.registry.migrations[migration].reason
            here, target = np.array([who]), np.array([j], dtype=np.int32)
            self._telling.moves(self.kernel.now_s, here, self.brokers.served_by[here], target, [reason])
            self._moving[who], self._moved_at_s[who], self.assigned[who] = True, self.kernel.now_s, j
            self._generation += 1

    def _follow(self, subscriber: SubscriberId, j: int, migration: str) -> None:
        """Told where to go, it goes; unless it has been cut off meanwhile, or finds nobody there."""
        who = self._people[subscriber]
        if self.alive[j] and self.brokers.served_by[who] >= 0:
            here, target = np.array([who]), np.array([j], dtype=np.int32)
            self._telling.moved(self.kernel.now_s, here, self.brokers.served_by[here], target)
            self.brokers.move(here, target)
            self.assigned[who] = j
            self._generation += 1
            self._hear(j, link.SessionOpened(subscriber, migration))

    def _report(self) -> None:
        """Only looked at here: the core has its own reports and its own rounds."""
        self._sample()

    # Failures

    def _fail(self, failure: Failure) -> None:
        j = failure.broker
        lost = np.flatnonzero(self.brokers.served_by == j)
        self.alive[j] = False
        self.brokers.disconnect(lost)
        self._moving[lost] = False
        self._generation += 1
        self._telling.failed(self.kernel.now_s, j, self.alive)
        self._coordinate(events.LinkClosed(self.world.brokers[j], self._links[j]))
        self.kernel.call_after(self.world.scenario.detect_s, self._fail_over_from, lost)
        self.kernel.call_at(failure.back_s, self._back, j)

    def _fail_over_from(self, lost: Longs) -> None:
        stranded = lost[self.brokers.served_by[lost] < 0]
        self.log.failed_over += len(stranded)
        self._arrive(stranded, Kind.FAILOVER)

    def _back(self, j: int) -> None:
        super()._back(j)
        self._register(j)
