"""The simulator measures rates as live brokers do, so that it shows the errors of the estimate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.sim.balance.test_run import CHURN, CITY, QUICK, run_policies, world_of
from tocsin.model.rate import MEASURED_SHARE, MovingAverage
from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy
from tocsin.sim.balance.averages import MovingAverages
from tocsin.sim.balance.coordinator_run import CoordinatorRun, rules_for

UNSUBSCRIBE = CHURN + "unsubscribe_per_s = 0.002\n"


def test_arrays_of_averages_equal_single_averages() -> None:
    rng = np.random.default_rng(3)
    singles = [MovingAverage(30.0, began_s=float(n)) for n in range(4)]
    arrays = MovingAverages(4, 30.0)
    for n in range(4):
        arrays.begin(np.array([n]), float(n))
    for at_s in np.cumsum(rng.uniform(0.0, 10.0, 60)).tolist():
        chosen = np.flatnonzero(rng.random(4) < 0.6)
        amounts = rng.uniform(0.0, 1_000.0, len(chosen))
        restarts = bool(rng.random() < 0.1)
        for n, amount in zip(chosen.tolist(), amounts.tolist(), strict=True):
            if restarts:
                singles[n].restart(500.0, amount, at_s)
            singles[n].add(amount, at_s)
        if restarts:
            arrays.restart(chosen, np.full(len(chosen), 500.0), at_s)
        else:
            arrays.add(chosen, amounts, at_s)
        expected = [single.estimate(at_s) if single.share(at_s) >= MEASURED_SHARE else math.nan for single in singles]
        np.testing.assert_allclose(arrays.estimates(at_s), expected)


def steady(text: str) -> str:
    return text.replace("share = 0.25", "share = 0.0").replace("subscriptions = 30", "subscriptions = 30\njitter = 0.0")


@pytest.mark.parametrize("text", [CITY, CITY + UNSUBSCRIBE], ids=["all online", "churn"])
def test_live_core_merges_the_rates_of_all_holders(text: str) -> None:
    """Migrations change the holders all the time; λ must stay near the truth."""
    kernel, world = world_of(steady(text))
    run = CoordinatorRun(kernel, world, rules_for(world.scenario, PlacementPolicy.NEAREST, QUICK))
    run.run()
    assert run.log.migrations > 50
    known = run.core.loads.rates.known
    held = np.flatnonzero(run.brokers.counts.any(axis=0))
    ratios = [known[run._frontend[k].subscription] / world.rate[k] for k in held.tolist()]
    assert np.median(np.abs(np.array(ratios) - 1.0)) < 0.1 and min(ratios) > 0.8 and max(ratios) < 1.25


def test_model_error_of_a_steady_world_is_small() -> None:
    run = run_policies(QUICK, steady(CITY + UNSUBSCRIBE))
    errors = [sample.model_error for sample in run.log.samples if sample.at_s > 120.0]
    assert np.median(errors) < 0.1


def test_offline_subscribers_keep_their_broker_and_get_nothing() -> None:
    run = run_policies(BalanceSettings(scheme="none", shuffle="none"), CITY + UNSUBSCRIBE)
    offline = ~run.brokers.online
    assert 20 < offline.sum() < 200 and (run.brokers.served_by[offline] >= 0).all()
    assert (
        run.brokers.receiving <= run.brokers.counts
    ).all() and run.brokers.receiving.sum() < run.brokers.counts.sum()
    assert not run.snapshot().movable[offline].any()
    assert 0 < (~run.brokers.subscribed).sum() < len(run.world.wants) / 2, "some subscriptions are removed for a while"
