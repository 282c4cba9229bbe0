"""Policies inside the coordinator: periodic balancing of three brokers, its settings, and policies by name."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.coordinator.bench import crowded
from tocsin.coordinator import effects, events
from tocsin.coordinator.arbiter import Decision
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import Effect, RequestRejection, StoredState
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.plan import Plan, Urgency
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance.settings import BalanceSettings
from tocsin.wire import link

BROKERS = [BrokerId(name) for name in ("a", "b", "c")]
RULES = CoordinatorRules(balancing=True, balance_s=10.0, balance=BalanceSettings(shuffle="none", rest_s=60.0))


class Network:
    """Brokers that answer every message at once; at the start one of them has all subscribers."""

    def __init__(self, rules: CoordinatorRules = RULES, subscribers: int = 60) -> None:
        self.core = Coordinator(rules, "e")
        self.now_s = 0.0
        self.moves = 0
        rng = np.random.default_rng(3)
        self.rates = {SubscriptionId(f"{number:032x}"): float(rng.uniform(100, 2_000)) for number in range(30)}
        for number, broker in enumerate(BROKERS):
            self.send(broker, link.Register(broker, "i", f"ws://{broker}"), number)
        for number in range(subscribers):
            name = SubscriberId(f"s{number}")
            self.send(BROKERS[0], link.SessionOpened(name))
            chosen = rng.choice(list(self.rates), 4, replace=False)
            added = [link.Frontend(SubscriptionId(str(name)), ChannelName("C"), {}, "1-0") for name in chosen]
            self.send(BROKERS[0], link.Changed(number + 1, name, added))

    def send(self, broker: BrokerId, message: link.FromBroker, number: int | None = None) -> None:
        self.post(events.LinkMessageReceived(broker, BROKERS.index(broker) if number is None else number, message))

    def post(self, event: events.Event) -> object:
        answer: object = None
        for effect in self.core.handle(event, self.now_s):
            answer = effect.value if isinstance(effect, effects.AnswerRequest) else answer
            self._carry_out(effect)
        return answer

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case effects.SendToBroker(broker, _, link.Prepare(migration=migration)):
                self.send(broker, link.Prepared(migration))
            case effects.SendHandOver():
                self.moves += 1
                self.send(effect.target, link.SessionOpened(effect.subscriber, effect.migration))
            case effects.SendToBroker(broker, _, link.Release(subscriber=subscriber, migration=migration)):
                self.send(broker, link.Released(subscriber, migration))

    def run(self, seconds: float, jitter: float = 0.0, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 1.0
            for broker in BROKERS:
                rates = {name: rate * (1 + jitter * rng.uniform(-1, 1)) for name, rate in self.rates.items()}
                self.send(broker, link.LoadReport(0.0, 0.0, rates))
            self.post(events.Ticked())

    @property
    def cov(self) -> float:
        decision = self.post(events.PlanProposed(1, "drain"))
        assert isinstance(decision, Decision)
        return decision.before.cov


def test_balancing_evens_out_one_crowded_broker_and_then_stops() -> None:
    network = Network()
    network.run(1)
    assert network.cov > 1.4
    network.run(14)
    assert network.moves == 0, "one round with an imbalance is not enough"
    network.run(30)
    assert network.cov <= 0.15
    moved = network.moves
    assert 0 < moved < 60, "only the necessary moves"
    network.run(600)
    assert network.moves == moved


def test_jittering_rates_cause_few_moves() -> None:
    network = Network()
    network.run(45)
    settled = network.moves
    network.run(3_600, jitter=0.2)
    assert network.moves - settled <= 30, "a handful in an hour, for sixty subscribers"


def test_disabled_balancing_moves_none_until_multistage_once_is_proposed() -> None:
    network = Network()
    assert network.post(events.BalanceChosen(1, on=False)) is True
    network.run(120)
    assert network.moves == 0
    decision = network.post(events.PlanProposed(1, "multistage-once", dry_run=False))
    assert isinstance(decision, Decision) and all(verdict.taken and verdict.reason for verdict in decision.verdicts)
    network.run(5)
    assert network.cov <= 0.15


def test_dry_run_of_a_policy_changes_nothing() -> None:
    network = Network()
    network.run(1)
    decision = network.post(events.PlanProposed(1, "ldm"))
    assert isinstance(decision, Decision) and decision.after.cov < decision.before.cov
    assert network.moves == 0 and network.core.arbiter.waiting == 0


def test_chosen_balancing_settings_survive_a_restart() -> None:
    network = Network()
    network.post(events.BalanceChosen(1, on=False, period_s=5.0, changes={"alpha": 0.3, "scheme": "sdm"}))
    stored = [
        effect
        for effect in network.core.handle(events.BalanceChosen(2, changes={"gamma": 0.9}), 1.0)
        if isinstance(effect, effects.StoreFact)
    ]
    restarted = Coordinator(RULES, "f", memory=StoredState(facts=tuple(stored)))
    assert (restarted.rules.balancing, restarted.rules.balance_s) == (False, 5.0)
    assert restarted.rules.balance == BalanceSettings(
        scheme="sdm", shuffle="none", alpha=0.3, gamma=0.9, rest_s=RULES.balance.rest_s
    )


@pytest.mark.parametrize(("changes", "named"), [({"alpha": -1.0}, "alpha"), ({"scheme": "best"}, "scheme")])
def test_invalid_balancing_setting_is_rejected(changes: dict[str, object], named: str) -> None:
    network = Network(subscribers=1)
    answer = network.post(events.BalanceChosen(1, on=False, changes=changes))
    assert isinstance(answer, RequestRejection) and named in answer.message
    assert network.core.rules == RULES


def test_stored_setting_that_no_longer_exists_is_ignored() -> None:
    fact = effects.StoreFact("balance", json.dumps({"on": True, "period_s": 7.0, "settings": {"of_old": 1}}))
    assert Coordinator(RULES, "f", memory=StoredState(facts=(fact,))).rules == replace(RULES, balance_s=7.0)


def test_policy_memory_is_in_the_next_snapshot_except_after_dry_runs() -> None:
    hits: list[float] = []

    def planner(snapshot: Snapshot) -> Plan:
        hits.append(snapshot.memory.get("hits", 0))
        return Plan(snapshot.generation, "mine", Urgency.IMBALANCE, memory={"hits": 1.0 + hits[-1]})

    bench = crowded()
    bench.core.planning.planners["mine"] = planner
    for dry_run in (True, False, False):
        bench.plan("mine", dry_run=dry_run)
    assert hits == [0, 0, 1]


def test_unknown_policy_is_rejected_with_the_known_names() -> None:
    bench = crowded()
    bench.core.planning.planners["mine"] = lambda snapshot: Plan(snapshot.generation, "mine", Urgency.IMBALANCE)
    answer = bench.ask(lambda ask: events.PlanProposed(ask, "magic"))
    assert isinstance(answer, RequestRejection)
    assert all(name in answer.message for name in ("drain", "failover", "mine", "multistage"))
