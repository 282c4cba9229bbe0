"""A short `tocsin chaos --topics`: faults while topics move lose nothing persistent and never make a second home."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tocsin.chaos.topic_run import TopicChaosSettings, run_topic_chaos


def test_topic_chaos_finds_no_loss_and_no_second_home(tmp_path: Path) -> None:
    messages: list[str] = []
    settings = TopicChaosSettings(rounds=4, seed=3)
    report = asyncio.run(asyncio.wait_for(run_topic_chaos(settings, tmp_path, messages.append), 420))
    assert report["correct"], (report, messages)
    assert report["rounds"] == 4
    assert report["probes_accepted"] > 20, "the observers saw no home"
    assert all(topic["acknowledged"] > 100 for topic in report["topics"].values())
