"""A short `tocsin chaos` on the network that is there: brokers and coordinator are hit, subscribers move and return."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.conftest import Network
from tocsin.chaos.run import ChaosRun, ChaosSettings, failed

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_two_rounds_of_faults_lose_repeat_and_reorder_nothing(network: Network, tmp_path: Path) -> None:
    settings = ChaosSettings(
        rounds=2, subscribers=15, round_s=5.0, drain_s=90.0, cluster_faults=False, repetitive=False
    )  # fmt: skip
    told: list[str] = []
    report = network.run(ChaosRun(settings, tmp_path, told.append, network.stack).on_running_stack(), 240)
    assert not failed(report), (report, told)
    assert report["published"] >= 100 and report["delivered"] == report["expected"] >= 300
    assert sum(report["faults"].values()) >= 5, "faults that did not happen prove nothing"
