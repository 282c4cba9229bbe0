"""`tocsin bench fanout` at a toy size: it runs every installed server and counts all deliveries."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tocsin.benchmarks import fanout
from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
from tocsin.benchmarks.shared.peers import PEERS
from tocsin.benchmarks.shared.processes import broker_process, sink_process
from tocsin.benchmarks.shared.sink_connections import TOPIC


def test_fanout_counts_every_delivery_of_every_server() -> None:
    measured = asyncio.run(fanout.measure(sessions=20, results=60, burst=10, size_bytes=300, rounds=1))
    assert measured["deliveries"] == 20 * 50 and measured["correct"]
    assert {"deliveries_per_cpu_s", "deliveries_per_s", "peers", "ratio_nats", "ratio_mosquitto"} <= set(measured)
    rows = {row.name for row in fanout.ROWS if row.server == "broker" or measured["machine"][_program(row.server)]}
    assert measured["peers"].keys() | {"broker", "broker_acknowledged"} == rows
    assert all(peer["deliveries"] == 20 * 50 for peer in measured["peers"].values())
    assert measured["results_per_read"] >= 1.0 and measured["results_per_write"] > 0.0


def _program(server: str) -> str:
    return PEERS[server].program


@pytest.mark.parametrize(("each", "last"), [(4, 2), (3, 1)])
def test_sink_fails_if_one_socket_lacks_the_last_mark(tmp_path: Path, each: int, last: int) -> None:
    workload = fanout.Workload(sessions=2, results=3, burst=1, size_bytes=50)

    async def scenario() -> None:
        async with (
            EmulatedCluster(TOPIC) as cluster,
            broker_process(tmp_path, 2, cluster.url, id="bench") as (_, port),
            sink_process(
                tmp_path, kind="broker", port=port, subscriptions=[[{"channel": TOPIC, "parameters": {}}]]
            ) as counts,
        ):
            [subscription] = cluster.held["bench"]
            cluster.execute(TOPIC, {subscription: [workload.result(number) for number in range(3)]})
            while counts.delivered() < 6:
                await asyncio.sleep(0.01)
            counts.expect(each, last)

    with pytest.raises(RuntimeError, match="the sink found a missing"):
        asyncio.run(scenario())
