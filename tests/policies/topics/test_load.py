"""The load of brokers: a base and a slope per message, learnt from reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policies.topics.partition_worlds import PARAMS, at, broker, topic, world
from tocsin.policies.topics.load import SAMPLES_KEPT, samples_after, slopes
from tocsin.policies.topics.partition import plan
from tocsin.policies.topics.types import LoadSample, TopicBroker

HERE, THERE = broker("here", at(0)), broker("there", at(60))
SHARE = st.floats(0.0, 1.0)
RATE = st.floats(0.0, 1e6)


def slope_of(host: TopicBroker, rate_per_s: float, *others: TopicBroker) -> list[float]:
    rates = np.array([rate_per_s, *[0.0] * len(others)])
    found: list[float] = slopes([host, *others], rates, PARAMS)[0].tolist()
    return found


def test_broker_with_memory_in_use_and_a_quiet_topic_has_room() -> None:
    """30 % of the memory belong to the process, not to one message per second."""
    used = replace(HERE, memory=0.3)
    quiet = topic("quiet", HERE, [at(0)], [at(0)], rate_per_s=1.0)
    comes = topic("comes", THERE, [at(0)], [at(0)], bound_ms=20, rate_per_s=10.0)
    assert [move.target for move in plan(world([quiet, comes], [used, THERE]), PARAMS).moves] == ["here"]


def test_base_and_slope_follow_from_two_reports() -> None:
    """20 % at rest and 60 % at 10,000 messages a second: 4 % for each 1,000."""
    seen = replace(HERE, cpu=0.6, samples=(LoadSample(0.0, cpu=0.2),))
    assert slope_of(seen, 10_000.0)[0] == pytest.approx(4e-5, rel=0.01)


def test_slope_of_other_brokers_counts_where_the_own_rate_never_changed() -> None:
    seen = replace(THERE, cpu=0.2, samples=(LoadSample(10_000.0, cpu=0.6),))
    assert slope_of(replace(HERE, cpu=0.5), 5_000.0, seen)[0] == pytest.approx(4e-5, rel=0.01)


def test_slope_without_evidence_is_that_of_the_profile() -> None:
    profile = PARAMS.utilisation_limit / PARAMS.rate_limit_per_s
    assert slope_of(replace(HERE, cpu=0.3, memory=0.5, network=0.1), 100.0) == pytest.approx([profile] * 3)


def test_noise_at_low_rates_is_no_evidence() -> None:
    noisy = replace(HERE, cpu=0.32, samples=(LoadSample(1.0, cpu=0.30), LoadSample(3.0, cpu=0.34)))
    assert slope_of(noisy, 2.0)[0] < 1e-5


def test_memory_independent_of_the_rate_moves_no_topic() -> None:
    """Moving topics would not relieve this broker. It gets no further topics."""
    full = replace(HERE, memory=0.9, samples=tuple(LoadSample(rate, memory=0.9) for rate in (0.0, 40_000.0, 80_000.0)))
    stays = topic("stays", HERE, [at(0)], [at(0)], rate_per_s=20_000.0)
    comes = topic("comes", THERE, [at(0)], [at(0)], bound_ms=20, rate_per_s=10_000.0)
    assert slope_of(full, 20_000.0)[1] < 1e-9
    assert plan(world([stays, comes], [full, THERE]), PARAMS).moves == ()
    assert plan(world([comes], [replace(HERE, memory=0.3), THERE]), PARAMS).moves, "the other broker is close enough"


def test_overloaded_broker_without_evidence_sheds_as_if_it_had_no_base() -> None:
    assert slope_of(replace(HERE, cpu=0.95), 100.0)[0] == pytest.approx(0.0095)


@given(st.lists(st.tuples(RATE, SHARE, SHARE, SHARE), max_size=20), RATE, SHARE)
def test_slopes_are_finite_not_negative_and_leave_no_negative_base(
    reports: list[tuple[float, float, float, float]], rate_per_s: float, used: float
) -> None:
    host = replace(HERE, cpu=used, samples=tuple(LoadSample(*report) for report in reports))
    for slope, share in zip(slope_of(host, rate_per_s), (used, 0.0, 0.0), strict=True):
        assert np.isfinite(slope)
        assert slope >= 0.0
        assert rate_per_s == 0.0 or slope * rate_per_s <= share + 1e-9


@given(st.lists(RATE, min_size=1, max_size=60))
def test_samples_keep_the_latest_and_both_ends(rates: list[float]) -> None:
    samples: tuple[LoadSample, ...] = ()
    for rate in rates:
        samples = samples_after(samples, LoadSample(rate))
    kept = [sample.rate_per_s for sample in samples]
    assert len(kept) == min(len(rates), SAMPLES_KEPT)
    assert {min(rates), max(rates), rates[-1]} <= set(kept)
    assert slopes([], np.zeros(0), PARAMS).shape == (0, 3)
