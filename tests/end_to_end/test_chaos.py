"""A short `tocsin chaos` on the shared network: faults of brokers and coordinator while subscribers move and return."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.conftest import Network
from tocsin.chaos.run import ChaosRun, ChaosSettings, failed

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_two_rounds_of_faults_lose_repeat_and_reorder_no_result(network: Network, tmp_path: Path) -> None:
    settings = ChaosSettings(
        rounds=2, subscribers=15, round_s=5.0, drain_s=90.0, cluster_faults=False, repetitive=False
    )
    messages: list[str] = []
    report = network.run(ChaosRun(settings, tmp_path, messages.append, network.stack).on_running_stack(), 240)
    assert not failed(report), (report, messages)
    assert report["published"] >= 100 and report["delivered"] == report["expected"] >= 300
    assert sum(report["faults"].values()) >= 5, "the run must contain enough faults"
