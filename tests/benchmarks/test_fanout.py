"""`tocsin bench fanout` at a toy size: it runs every installed server and counts all deliveries."""

from __future__ import annotations

import asyncio

from tocsin.benchmarks import fanout


def test_fanout_counts_every_delivery_of_every_server() -> None:
    measured = asyncio.run(fanout.measure(sessions=20, results=60, burst=10, size_bytes=300))
    assert measured["deliveries"] == 20 * 50 and measured["correct"]
    assert {"deliveries_per_cpu_s", "deliveries_per_s", "peers", "ratio_nats", "ratio_mosquitto"} <= set(measured)
    assert all(peer["deliveries"] == 20 * 50 for peer in measured["peers"].values())
