"""The edge tier with its neighbours: window results in a dataset of the data cluster, and readings from a topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.server.conftest import RunningServer, StartServer, start_server, until
from tests.end_to_end.topic_network import topic_network
from tests.runtime.edge.edge_root import running_root

__all__ = ["start_server"]

STREAM = "CREATE EDGE STREAM Readings (meter STRING, ts TIMESTAMP, kwh DOUBLE) TIME ts;"
QUERY = (
    "CREATE EDGE QUERY Use INTO UseByMinute AS SELECT meter, window.start AS since, SUM(kwh) AS total "
    "FROM Readings GROUP BY meter, WINDOW(ts, '1 minute') ORDER BY since, meter;"
)
APPLICATION = """
CREATE STREAM DATASET UseByMinute (meter STRING, since TIMESTAMP, total DOUBLE) KEY (meter, since);
CREATE CONTINUOUS CHANNEL HighUse (least DOUBLE) AS
  SELECT u.meter, u.since, u.total FROM NEW UseByMinute u WHERE u.total >= :least;
"""


def reading(meter: str, second: int, kwh: float) -> dict[str, Any]:
    return {"meter": meter, "ts": f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z", "kwh": kwh}


@pytest.fixture
def cluster(start_server: StartServer) -> Iterator[RunningServer]:
    server = start_server(heartbeat_s=0.5)
    assert server.admin.post("/v1/applications", json={"text": APPLICATION}).status_code == 200
    yield server


@pytest.mark.spark
@pytest.mark.slow
def test_window_results_reach_a_dataset_and_its_channel(cluster: RunningServer, tmp_path: Path) -> None:
    subscribed = cluster.admin.post("/v1/subscriptions", json={"channel": "HighUse", "parameters": {"least": 4.0}})
    [held] = subscribed.json()

    async def run() -> None:
        (tmp_path / "gateway.token").write_text(cluster.token_for("publish:UseByMinute"))
        sink = f'[sink]\ngateway = "{cluster.url}"\ntoken_file = "gateway.token"\n'
        async with running_root(tmp_path, sink) as root:
            await root.apply(STREAM + QUERY)
            await root.publish([reading("m1", 5, 1.5), reading("m1", 50, 3.0), reading("m2", 59, 0.5)])
            await root.publish([reading("m1", 61, 0.25)])
            await root.end()
            await root.until(lambda status: status["queries"][0]["rows"] == 3 and status["outbox"] == 0, 60)

    asyncio.run(run())

    def alerts() -> Any:
        request = {"channel": "HighUse", "subscription": held["id"], "after": held["cursor"]}
        reply = cluster.admin.get("/v1/results", params=request, headers={"Accept": "application/x-ndjson"})
        return [json.loads(line)["result"] for line in reply.text.splitlines()]

    [alert] = until(alerts)
    assert (alert["meter"], alert["total"]) == ("m1", 4.5)
    described = cluster.admin.get("/v1/datasets").json()["datasets"]
    assert [dataset["rows"] for dataset in described if dataset["name"] == "UseByMinute"] == [3]


@pytest.mark.slow
def test_readings_of_a_persistent_topic_continue_at_their_position(tmp_path: Path) -> None:
    folder = tmp_path / "edge"
    folder.mkdir()

    async def run() -> None:
        async with topic_network(tmp_path / "network", brokers=1) as network:
            await network.create("meters/1", persistent=True, replicas=1, quorum=1)
            (folder / "topic.token").write_text(await network.token_for("receive:meters/#"))
            source = (
                '[[source]]\nname = "t"\nstream = "Readings"\nkind = "topic"\n'
                f'location = "{network.stack.coordinator_url}"\n'
                f'options = {{ topic = "meters/1", token_file = "{folder / "topic.token"}" }}\n'
            )
            async with network.client() as topics:
                for first, rows in ((0, 1), (60, 2)):  # the second time the node starts again
                    async with running_root(folder, source) as root:
                        if first == 0:
                            await root.apply(STREAM + QUERY)
                        one = reading("m1", first + 5, 1.0)
                        await topics.publish("meters/1", json.dumps(one).encode())
                        await topics.publish("meters/1", b"no reading")
                        several = [reading("m1", first + 10, 0.5), reading("m1", first + 61, 0.0)]
                        await topics.publish("meters/1", json.dumps(several).encode())
                        status = await root.until(lambda status: status["queries"][0]["rows"] == rows, 30)  # noqa: B023
                        await asyncio.sleep(0.7)  # the floor travels with the next answer to a beat
                        entries = (await root.client.get("/v1/edge/results")).json()["entries"]
                        assert [row["total"] for entry in entries for row in entry["rows"]] == [1.5] * rows
                        assert status["recoveries"] <= 2

    asyncio.run(run())
