"""The broker's benchmarks at toy sizes: they run, they check their answers, they say what they are asked for."""

from __future__ import annotations

import asyncio

from tocsin.benchmarks import fanout, sessions


def test_fanout_counts_every_delivery_of_every_server() -> None:
    measured = asyncio.run(fanout.measure(sessions=20, results=60, burst=10, size_bytes=300))
    assert measured["deliveries"] == 20 * 50 and measured["correct"]
    assert {"deliveries_per_cpu_s", "deliveries_per_s", "peers", "ratio_nats", "ratio_mosquitto"} <= set(measured)
    assert all(peer["deliveries"] == 20 * 50 for peer in measured["peers"].values())


def test_sessions_are_all_alive_at_the_end() -> None:
    measured = asyncio.run(sessions.measure(sessions=60, pool=10, idle_s=0.5))
    assert measured["alive"] == 60 * 3 and measured["correct"] and measured["bytes_per_session"] > 0
