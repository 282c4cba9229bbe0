"""λ from several holders, offline subscribers and stale flags: the snapshot tells the truth [BAD §4]."""

from __future__ import annotations

import math

import pytest

from tests.coordinator.bench import B1, B2, Bench, crowded, frontend
from tocsin.coordinator.events import BalanceChosen, Ticked
from tocsin.coordinator.rates import SubscriptionRates
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.model.plan import Urgency
from tocsin.model.rate import MovingAverage
from tocsin.policies.balance.load import snapshot_balance
from tocsin.policies.balance.settings import BalanceSettings
from tocsin.wire import link as wire

K = SubscriptionId("k")


def test_second_holder_does_not_lower_the_rate() -> None:
    rates = SubscriptionRates()
    rates.measured(B1, K, 1_086.0, 1.0)
    follower = MovingAverage(began_s=0.0)
    for second in range(1, 101):
        follower.add(1_086.0, float(second))
        rates.measured(B2, K, follower.now(second), follower.share(second))
        assert rates.known[K] == pytest.approx(1_086.0, rel=0.02), second


def test_rate_outlives_the_release_by_the_longest_holder() -> None:
    rates = SubscriptionRates()
    rates.measured(B1, K, 1_086.0, 1.0)
    rates.measured(B2, K, 167.0, 0.154)
    rates.released(B1, K)
    assert rates.known[K] == pytest.approx(167.0 + 0.846 * 1_086.0)
    rates.measured(B2, K, 1_080.0, 0.99)
    assert rates.known[K] == pytest.approx(1_080.0, rel=0.02), "measured long enough to need no former rate"


def test_rate_stays_known_between_two_holders() -> None:
    rates = SubscriptionRates()
    rates.measured(B1, K, 500.0, 1.0)
    rates.released(B1, K)
    assert rates.known[K] == 500.0
    rates.measured(B2, K, 0.0, 0.0)
    assert rates.known[K] == 500.0


def test_holder_that_measures_anew_keeps_the_rate() -> None:
    """A broker that released and was granted a subscription between two reports does not report the release."""
    rates = SubscriptionRates()
    rates.measured(B1, K, 1_000.0, 1.0)
    rates.measured(B1, K, 30.0, 0.05)
    assert rates.known[K] == pytest.approx(30.0 + 0.95 * 1_000.0)


def test_dead_broker_no_longer_determines_the_rate() -> None:
    rates = SubscriptionRates()
    rates.measured(B1, K, 500.0, 1.0)
    rates.measured(B2, K, 90.0, 0.9)
    rates.remove_broker(B1)
    assert rates.known[K] == pytest.approx(90.0 + 0.1 * 500.0)
    rates.measured(B2, K, 100.0, 1.0)
    assert rates.known[K] == 100.0


def test_broker_that_registers_again_reports_its_rates_anew() -> None:
    bench = crowded()
    bench.send(B1, wire.LoadReport(0.0, 0.0, {K: 70.0}))
    bench.register(B1)
    bench.send(B1, wire.LoadReport(0.0, 0.0, {K: 30.0}))
    assert bench.core.loads.rates.known[K] == 30.0


def test_unmeasured_rate_counts_as_the_mean_of_the_others() -> None:
    bench = crowded()
    bench.connect("max", B2, "new")
    assert math.isnan(bench.snapshot().rate[-1])
    assert snapshot_balance(bench.snapshot()).loads == (80.0, 20.0)
    bench.send(B2, wire.LoadReport(0.0, 0.0, {SubscriptionId("new"): 0.0}))
    assert snapshot_balance(bench.snapshot()).loads == (80.0, 0.0), "measured, and quiet"


def test_offline_subscriber_costs_a_fetch_and_no_delivery() -> None:
    bench = crowded()
    bench.send(B1, wire.SessionClosed(SubscriberId("ada"), "left"))
    assert snapshot_balance(bench.snapshot()).loads == (70.0, 0.0)


def test_snapshot_follows_sessions_within_one_generation() -> None:
    bench = crowded()
    before = bench.snapshot()
    for name in ("ada", "bob", "eve"):
        bench.send(B1, wire.SessionClosed(SubscriberId(name), "left"))
    after = bench.snapshot()
    assert after.generation == before.generation, "a plan by hand is not stale because people come and go"
    assert before.movable.sum() == 4 and after.movable.sum() == 1
    bench.send(B1, wire.SessionOpened(SubscriberId("ada")))
    assert bench.snapshot().movable.sum() == 2


def test_webhook_subscriber_is_online_and_movable() -> None:
    bench = crowded()
    webhook = wire.Webhook("https://example.org/alerts", ["whsec_x"])
    bench.send(B1, wire.Changed(2, SubscriberId("ada"), webhook=webhook))
    bench.send(B1, wire.SessionClosed(SubscriberId("ada"), "left"))
    snapshot = bench.snapshot()
    assert snapshot.movable.all() and snapshot_balance(snapshot).loads == (80.0, 0.0)
    bench.move("ada", B2)
    [prepare] = bench.sent(B2, wire.Prepare)
    bench.send(B2, wire.Prepared(prepare.migration))
    assert bench.home("ada") == B2
    [adopt] = bench.sent(B2, wire.Adopt)
    assert adopt.subscribers[0].webhook == webhook and bench.sent(B1, wire.Release)


def surging(settings: BalanceSettings) -> Bench:
    """Four subscribers at b1, two of them also at a quiet channel; balancing runs every ten minutes."""
    bench = crowded(CoordinatorRules(balancing=True, balance_s=600.0, balance=settings))
    for name in ("ada", "bob"):
        bench.send(B1, wire.Changed(2, SubscriberId(name), added=[frontend("alarm")]))
    bench.send(B1, wire.LoadReport(0.0, 0.0, {SubscriptionId("alarm"): 1.0}))
    bench.wait(5.0, B1, B2)
    return bench


def test_reported_surge_is_answered_within_seconds() -> None:
    bench = surging(BalanceSettings(shuffle="none"))
    bench.send(B1, wire.LoadReport(0.0, 0.0, {SubscriptionId("alarm"): 400.0}, surge=True))
    bench.wait(2.0, B1, B2)
    answered = bench.core.last_round
    assert answered is not None and answered.plan.urgency is Urgency.OVERLOAD and bench.registry.migrations
    assert answered.after.maximum < 0.8 * answered.before.maximum and "surge" in answered.plan.note
    bench.wait(30.0, B1, B2)
    assert bench.core.last_round is answered, "one answer to one report"


def test_repeated_surge_reports_do_not_repeat_rounds_every_second() -> None:
    bench = surging(BalanceSettings(shuffle="none", alpha=3.0))
    bench.ask(lambda ask: BalanceChosen(ask, period_s=20.0))
    rounds = set()
    for _ in range(60):
        bench.send(B1, wire.LoadReport(0.0, 0.0, {}, surge=True))
        bench.wait(0.5, B1, B2)
        if bench.core.last_round is not None:
            rounds.add(bench.core.last_round.at_s)
    assert 2 <= len(rounds) <= 5, "30 s, at most one in ten seconds"


def test_old_surge_is_not_answered_when_balancing_is_switched_on() -> None:
    bench = surging(BalanceSettings(shuffle="none"))
    bench.ask(lambda ask: BalanceChosen(ask, on=False))
    bench.send(B1, wire.LoadReport(0.0, 0.0, {SubscriptionId("alarm"): 400.0}, surge=True))
    bench.wait(2.0, B1, B2)
    bench.ask(lambda ask: BalanceChosen(ask, on=True))
    bench.wait(5.0, B1, B2)
    assert bench.core.last_round is None


def test_surge_that_all_brokers_share_moves_no_subscriber() -> None:
    bench = surging(BalanceSettings(shuffle="none", alpha=3.0))
    bench.send(B1, wire.LoadReport(0.0, 0.0, {SubscriptionId("alarm"): 400.0}, surge=True))
    bench.wait(2.0, B1, B2)
    assert bench.core.last_round is not None and not bench.core.last_round.plan.moves
    assert "evenly" in bench.core.last_round.plan.note


def test_broker_above_its_limit_is_relieved_without_waiting() -> None:
    settings = BalanceSettings(shuffle="none", alpha=3.0, hits=50, overload_bytes_per_s=60.0)
    bench = crowded(CoordinatorRules(balance=settings))
    plan = bench.plan("multistage").plan
    assert plan.urgency is Urgency.OVERLOAD and plan.after is not None and plan.after.maximum <= 60.0
    assert len(plan.moves) == 1, "not more moves than the limit needs"


def test_brokers_get_the_limit_and_its_changes_by_capacity() -> None:
    bench = Bench()
    bench.register(B1)
    bench.register(B2, capacity=3.0)
    limits = []
    for limit in (60.0, 0.0):
        bench.ask(lambda ask: BalanceChosen(ask, changes={"overload_bytes_per_s": limit}))  # noqa: B023
        bench.handle(Ticked())
        for broker in (B1, B2):
            limits += [(broker, message.overload_bytes_per_s) for message in bench.sent(broker, wire.Accepting)]
    assert limits == [(B1, 30.0), (B2, 90.0), (B1, 0.0), (B2, 0.0)]


@pytest.mark.parametrize("surges", [True, False])
def test_announced_burst_above_the_limit_is_answered_within_seconds(surges: bool) -> None:
    """The load of b1 rises from 84 to 128 bytes/s: no surge, cov at most α, and above the limit of 100."""
    settings = BalanceSettings(shuffle="none", alpha=3.0, hits=50, surges=surges, overload_bytes_per_s=100.0)
    bench = surging(settings)
    bench.core.loads.level.factor = 1.1
    bench.send(B1, wire.LoadReport(0.0, 0.0, {SubscriptionId("alarm"): 15.0}, overload=True))
    assert bench.core.loads.level.factor == 1.1, "only a surge restarts the level"
    bench.wait(2.0, B1, B2)
    answered = bench.core.last_round
    assert answered is not None and answered.plan.urgency is Urgency.OVERLOAD and bench.registry.migrations
    assert answered.after.maximum <= 100.0
