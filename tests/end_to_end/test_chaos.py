"""A short `tocsin chaos` with every part: relays, disks, clocks, the JVM, raw sockets, event streams and webhooks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tocsin.chaos.run import ChaosSettings, failed, run_chaos
from tocsin.cluster.spark.session import require_java
from tocsin.wire.errors import TocsinError

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_three_rounds_of_faults_lose_repeat_and_reorder_no_result(tmp_path: Path) -> None:
    try:
        require_java()
    except TocsinError as error:
        pytest.skip(error.message)
    settings = ChaosSettings(rounds=3, subscribers=12, brokers=2, round_s=5.0, drain_s=120.0, unfiltered=3)
    messages: list[str] = []
    report = asyncio.run(asyncio.wait_for(run_chaos(settings, tmp_path, messages.append), 420))
    assert not failed(report), (report, messages)
    assert report["published"] >= 100 and report["expected"] >= 300
    assert {"kill jvm", "torn write", "freeze jvm", "partition", "lost answer"} <= report["faults"].keys()
    assert report["received_without_filter"] and report["webhook_calls"]
    assert report["subscribed_under_faults"] == 3
