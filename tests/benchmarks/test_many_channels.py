"""`tocsin bench many-channels` at a toy size, and its check of the results."""

from __future__ import annotations

import asyncio
from collections import namedtuple
from pathlib import Path

import pytest

from tocsin.benchmarks.many_channels import Load, application, run_load
from tocsin.benchmarks.shared.running_cluster import running_cluster

Result = namedtuple("Result", "result")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark")  # otherwise the benchmark would make a session that all later tests get
def test_every_record_reaches_each_channel_with_its_severity(tmp_path: Path) -> None:
    async def scenario() -> Load:
        async with running_cluster(str(tmp_path), application(range(3))) as cluster:
            return await run_load(cluster, channels=3, subscriptions=2, rate_per_s=20.0, seconds=1.0)

    load = asyncio.run(scenario())
    assert load.is_correct and load.lost == 0
    assert len(load.received_at) == sum(severity > channel for severity in _severities(20) for channel in range(3))
    assert load.latencies_s(0.0)[0] > 0.0


def _severities(count: int) -> list[int]:
    return [number * 7 // 3 % 5 + 1 for number in range(count)]


def test_check_sees_missing_and_repeated_results() -> None:
    load = Load(channels=1, subscriptions=1)
    load._sent_at = {0: 1.0, 1: 1.5}

    def received(record: str, now_s: float) -> tuple[int, bool]:
        load.receive("C0", [Result({"id": record})], now_s)
        return load.lost, load.is_correct

    assert received("0", 2.0) == (1, False), "record 1 is missing"
    assert received("1", 2.0) == (0, True)
    assert load.latencies_s(0.25) == [0.5]
    assert received("1", 3.0) == (0, False), "record 1 is repeated"
