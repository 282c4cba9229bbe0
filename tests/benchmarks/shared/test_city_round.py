"""The cost of one round of the city's channels, for few people and one round."""

from __future__ import annotations

import pytest

from tocsin.benchmarks.shared.city_round import measure_round
from tocsin.sim.city.subscriptions import CHANNELS

# Without the shared session, the benchmark would make one that all later tests get.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("spark")]


def test_round_executes_every_channel_and_has_results() -> None:
    cost = measure_round(people=12, seed=7, warm_ups=0, rounds=1)
    assert cost.by_channel_cpu_s.keys() == CHANNELS.keys()
    assert cost.cpu_s == pytest.approx(sum(cost.by_channel_cpu_s.values())) and cost.cpu_s > 0.0
    assert cost.subscriptions > 20 and cost.results > 100
