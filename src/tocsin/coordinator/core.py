"""The coordinator's logic (the BCS [BAD §3.1]): events in, effects out. No clock, no socket, no database.

Driven by `runtime.coordinator_process` and by the simulator, in the same way: hand in events with the time, do what
comes back in order (`effects` says what that means), start it again with what was stored.

This module only says who handles what. Decisions are in the modules it names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tocsin.coordinator import changes, events, failover, liveness, migrations, reconciling, restoring, sessions
from tocsin.coordinator.arbiter import Arbiter, Decision
from tocsin.coordinator.balancing import MULTISTAGE, NAMES, Rounds, changed, planned
from tocsin.coordinator.draining import Draining
from tocsin.coordinator.effects import Answer, Effect, Memory, Rejection, StoreFact
from tocsin.coordinator.entities import Broker, Health
from tocsin.coordinator.loads import Loads
from tocsin.coordinator.placing import choose
from tocsin.coordinator.planners import OWN, Planner
from tocsin.coordinator.registry import Registry
from tocsin.coordinator.rules import Rules
from tocsin.coordinator.snapshots import SnapshotBuilder
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.plan import Move, Plan, Urgency
from tocsin.model.snapshot import Snapshot
from tocsin.model.trace import Kind
from tocsin.wire import link
from tocsin.wire.errors import Code

_TRY_AGAIN_S = 2.0


class Coordinator:
    def __init__(
        self,
        rules: Rules,
        epoch: str,
        *,
        memory: Memory = Memory(),
        now_s: float = 0.0,
        planners: Mapping[str, Planner] | None = None,
    ) -> None:
        """`epoch` is different for every start; `planners` are the balancing policies by name."""
        self.rules = rules
        self.registry = Registry()
        self.loads = Loads()
        self.arbiter = Arbiter(epoch)
        self.planners = dict(planners or {})
        self.policy_memory: dict[str, float] = {}
        self._snapshots = SnapshotBuilder()
        self._failover = failover.Failover()
        self._draining = Draining()
        self._rounds = Rounds()
        self.last_round: Decision | None = None
        """What the balancing policy did or left alone, for whoever looks."""
        self._told_generation = 0
        turn = Turn(self.registry, self.loads, rules, now_s)
        facts = restoring.restore(turn, memory)
        self.rules = restoring.chosen(rules, facts)
        self.policy_memory = json.loads(facts.get("policy_memory", "{}"))

    def handle(self, event: events.Event, now_s: float) -> list[Effect]:
        turn = Turn(self.registry, self.loads, self.rules, now_s)
        match event:
            case events.Heard():
                self._heard(turn, event)
            case events.Ticked(may_plan):
                self._ticked(turn, may_plan)
            case events.LinkClosed(broker, number):
                known = self.registry.brokers.get(broker)
                if known is not None and known.link == number:
                    liveness.link_closed(turn, known)
            case events.BrokerReleased(broker):
                failover.released_at_cluster(turn, broker)
            case _:
                turn.do(Answer(event.ask, self._asked(turn, event)))
        if self.registry.generation != self._told_generation:
            self._told_generation = self.registry.generation
            liveness.tell_accepting(turn)
        return turn.effects

    def _ticked(self, turn: Turn, may_plan: bool) -> None:
        liveness.check_time(turn)
        migrations.check_time(turn)
        self._failover.check_time(turn)
        self._draining.check_time(turn, self.arbiter)
        self.arbiter.start(turn)
        if may_plan and self._rounds.due(turn.now_s, self.rules, self.arbiter.waiting):
            decision = self._plan(turn, events.PlanProposed(0, MULTISTAGE, dry_run=False))
            assert isinstance(decision, Decision)
            self.last_round = decision

    # -- brokers -------------------------------------------------------------------------------------------------------

    def _heard(self, turn: Turn, heard: events.Heard) -> None:
        message = heard.message
        if isinstance(message, link.Register):
            if message.broker == heard.broker:
                reconciling.registered(turn, heard.link, message)
            return
        broker = self.registry.brokers.get(heard.broker)
        if broker is None or broker.link != heard.link:
            return  # a connection that has been replaced, or that has not registered
        liveness.heard(turn, broker)
        self._told(turn, broker, message)

    def _told(self, turn: Turn, broker: Broker, message: link.FromBroker) -> None:
        match message:
            case link.Heartbeat(sessions=open_sessions, frontend=frontend, backend=backend):
                broker.sessions, broker.frontend, broker.backend = open_sessions, frontend, backend
            case link.LoadReport():
                self.loads.reported(broker.id, message)
            case link.SessionOpened(subscriber=subscriber):
                sessions.opened(turn, broker.id, subscriber)
            case link.SessionClosed(subscriber=subscriber):
                sessions.closed(turn, broker.id, subscriber)
            case link.Changed(number=number):
                changes.changed(turn, broker.id, message)
                turn.send(broker.id, link.Stored(number))
            case link.StateRequest(subscriber=subscriber):
                sessions.wanted(turn, broker.id, subscriber, self.arbiter.new_id())
            case link.Prepared(migration=migration):
                migrations.prepared(turn, broker.id, migration)
            case link.PrepareFailed():
                migrations.prepare_failed(turn, broker.id, message)
            case link.HandOverFailed():
                migrations.hand_over_failed(turn, broker.id, message)
            case link.Released(subscriber=subscriber):
                sessions.released(turn, broker.id, subscriber)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _asked(self, turn: Turn, event: events.Event) -> object:
        match event:
            case events.UserRegistered():
                return self._register(turn, event)
            case events.BrokerRequested():
                return self._request(turn, event)
            case events.UserDeleted(user=user):
                if self._is_unknown(user):
                    return Rejection(Code.NOT_FOUND, f"there is no user {user!r}")
                sessions.deleted(turn, user)
                return True
            case events.DrainOrdered(broker=broker, on=on):
                return self._drain(turn, broker, on)
            case events.BrokerDismissed(broker=broker):
                return self._dismiss(turn, broker)
            case events.PlanProposed():
                return self._plan(turn, event)
            case events.PlacementChosen():
                return self._choose(turn, event)
            case events.BalanceChosen():
                return self._choose_balance(turn, event)
        raise AssertionError(f"nobody handles {event}")

    def _is_unknown(self, user: SubscriberId) -> bool:
        found = self.registry.subscribers.get(user)
        return found is None or found.deleted

    def _register(self, turn: Turn, event: events.UserRegistered) -> object:
        known = self.registry.subscribers.get(event.user)
        if known is not None and known.deleted:
            return Rejection(
                Code.IN_USE, "a user of that name is being deleted: try again in a moment", retry_after_s=_TRY_AGAIN_S
            )
        subscriber = turn.known(event.user)
        if (event.place, event.coordinate) != (None, None):
            subscriber.place = event.place or subscriber.place
            subscriber.coordinate = event.coordinate or subscriber.coordinate
            turn.store_subscriber(subscriber)
        return known is None

    def _request(self, turn: Turn, event: events.BrokerRequested) -> object:
        """Sticky: whoever serves it goes on doing so, if it is well and can be reached."""
        if self._is_unknown(event.user):
            return Rejection(Code.NOT_FOUND, f"there is no user {event.user!r}: register it first")
        subscriber = self.registry.subscribers[event.user]
        if (event.place, event.coordinate) not in ((None, None), (subscriber.place, subscriber.coordinate)):
            subscriber.place = event.place or subscriber.place
            subscriber.coordinate = event.coordinate or subscriber.coordinate
            turn.store_subscriber(subscriber)
        migration = self.registry.moving.get(event.user)
        home = None if subscriber.home is None else self.registry.brokers.get(subscriber.home)
        if home is not None and home.id not in event.avoid and self.registry.accepting(home) and migration is None:
            return events.Placed(home.id, home.address)
        target = self._somewhere(turn, event)
        if target is None:
            return Rejection(
                Code.NOT_READY, "no broker accepts subscribers at the moment; try again", retry_after_s=_TRY_AGAIN_S
            )
        if migration is None and (home is None or home.health is Health.DEAD):
            turn.set_home(subscriber, target.id)
            turn.adopt(target.id, [subscriber])
        # else: its home goes on holding everything until it has logged in there (sessions.wanted).
        return events.Placed(target.id, target.address)

    def _somewhere(self, turn: Turn, event: events.BrokerRequested) -> Broker | None:
        subscriber = self.registry.subscribers[event.user]
        migration = self.registry.moving.get(event.user)
        for candidate in () if migration is None else (migration.target, subscriber.home):
            broker = None if candidate is None else self.registry.brokers.get(candidate)
            if broker is not None and broker.id not in event.avoid and self.registry.accepting(broker):
                return broker
        chosen = choose(turn, subscriber, self.rules.placement, event.avoid)
        if chosen is None and event.avoid:  # those it could not reach may be back
            chosen = choose(turn, subscriber, self.rules.placement)
        return None if chosen is None else self.registry.brokers[chosen]

    def _drain(self, turn: Turn, broker: BrokerId, on: bool) -> object:
        found = self.registry.brokers.get(broker)
        if found is None:
            return Rejection(Code.NOT_FOUND, f"there is no broker {broker!r}")
        if found.draining != on:
            found.draining = on
            self.registry.generation += 1
            turn.store_broker(found)
            accepting = found.told_accepting = self.registry.accepting(found)
            turn.send(broker, link.Accepting(accepting, draining=on))
            turn.note("broker drains" if on else "broker no longer drains", broker=broker)
        return len(self.registry.hosted(broker))

    def _dismiss(self, turn: Turn, broker: BrokerId) -> object:
        found = self.registry.brokers.get(broker)
        if found is None:
            return Rejection(Code.NOT_FOUND, f"there is no broker {broker!r}")
        left = len(self.registry.hosted(broker))
        if found.health is not Health.DEAD and not found.draining:
            return Rejection(Code.IN_USE, f"{broker} is {found.state}: drain it first (`tocsin drain {broker} --wait`)")
        if left:
            return Rejection(Code.IN_USE, f"{broker} still has {left} subscribers: wait until they have moved")
        failover.dismiss(turn, found)
        return True

    def _choose(self, turn: Turn, event: events.PlacementChosen) -> object:
        if event.placement is not None:
            self.rules = replace(self.rules, placement=event.placement)
            turn.do(StoreFact("placement", str(event.placement)))
        if event.replacement is not None:
            self.rules = replace(self.rules, replacement=event.replacement)
            turn.do(StoreFact("replacement", str(event.replacement)))
        return True

    def _choose_balance(self, turn: Turn, event: events.BalanceChosen) -> object:
        try:
            settings = changed(self.rules.balance, event.changes)
        except ValueError as error:
            return Rejection(Code.BAD_REQUEST, str(error))
        if event.period_s is not None and not 0.1 <= event.period_s <= 86_400:
            return Rejection(Code.BAD_REQUEST, "period_s: expected 0.1 to 86,400 seconds between rounds")
        self.rules = replace(
            self.rules,
            balance=settings,
            balancing=self.rules.balancing if event.on is None else event.on,
            balance_s=event.period_s or self.rules.balance_s,
        )
        turn.do(StoreFact("balance", restoring.balance_fact(self.rules)))
        turn.note(
            "balancing was set", on=self.rules.balancing, period_s=self.rules.balance_s, changes=dict(event.changes)
        )
        return True

    # -- plans ---------------------------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> Snapshot:
        return self._snapshots.build(self.registry, self.loads, now_s, self.policy_memory)

    def _plan(self, turn: Turn, event: events.PlanProposed) -> Decision | Rejection:
        snapshot = self.snapshot(turn.now_s)
        if event.policy is not None:
            plan = self._planned(turn, event.policy, snapshot)
            if plan is None:
                known = ", ".join(sorted({*OWN, *NAMES, *self.planners}))
                return Rejection(Code.NOT_FOUND, f"there is no policy {event.policy!r} (there are: {known})")
        else:
            plan = self._asked_for(event)
        decision = self.arbiter.decide(turn, plan, snapshot)
        if not event.dry_run:
            _watched(turn, decision)
            self.arbiter.take(turn, decision)
            if plan.memory and plan.memory != self.policy_memory:
                self.policy_memory = dict(plan.memory)
                turn.do(StoreFact("policy_memory", json.dumps(self.policy_memory)))
        return decision

    def _planned(self, turn: Turn, policy: str, snapshot: Snapshot) -> Plan | None:
        if policy in OWN:
            return OWN[policy](turn)
        if policy in NAMES:
            return planned(policy, snapshot, self.rules.balance)
        planner = self.planners.get(policy)
        return None if planner is None else planner(snapshot)

    def _asked_for(self, event: events.PlanProposed) -> Plan:
        """An administrator's word is a plan too; it counts as latency: before what merely evens out."""
        generation = self.registry.generation if event.generation is None else event.generation
        return Plan(generation, "asked for", Urgency.LATENCY, tuple(self._moves(event.moves or ())))

    def _moves(self, wanted: Iterable[events.MoveWanted]) -> Iterable[Move]:
        for one in wanted:
            subscriber = self.registry.subscribers.get(one.subscriber)
            demand = 0.0 if subscriber is None else self.loads.demand(subscriber)
            yield Move(one.subscriber, None if subscriber is None else subscriber.home, one.target, one.reason, demand)


def _watched(turn: Turn, decision: Decision) -> None:
    taken = sum(verdict.taken for verdict in decision.verdicts)
    if taken:
        turn.watched(
            Kind.PLAN, cov=decision.after.cov, moves=len(decision.plan.moves), note=decision.plan.note,
            detail={"policy": decision.plan.policy, "cov_before": decision.before.cov, "taken": taken},
        )  # fmt: skip
