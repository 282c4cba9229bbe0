"""Two gateway processes accept for one dataset, and one of them is killed: no record is lost, and none enters twice."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.emergency import declare
from tests.conftest import ClusterAt
from tocsin.cluster.catalog import dataset_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.server.tokens import TokenStore
from tocsin.cluster.spark.frames import dataset_frame
from tocsin.model.ids import TopicName
from tocsin.wire import recording

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

APPLICATION = "CREATE STREAM DATASET Reports (id STRING, n INT) KEY (id);"


@contextmanager
def gateway(root: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """(address, process) of a gateway."""
    command = [sys.executable, "-c", "from tocsin.cli.main import main; main()", "gateway", "--json"]
    command += ["--root", str(root), "--port", "0", "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"], process
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def cluster(cluster_at: ClusterAt) -> DataCluster:
    cluster = cluster_at(log="shared")
    declare(cluster, APPLICATION)
    declare(cluster, "CREATE KEYED DATASET Places (id STRING, n INT) KEY (id);")
    return cluster


def stored(cluster: DataCluster) -> list[str]:
    files = cluster.catalog.files.of(dataset_owner("Reports"))
    dataset = cluster.dataset("Reports").dataset
    return [row.id for row in dataset_frame(cluster.spark, cluster.storage, dataset, files).collect()]


def test_killed_gateway_loses_no_record_and_its_publisher_goes_on_elsewhere(
    cluster: DataCluster, tmp_path: Path
) -> None:
    _, token = TokenStore(cluster.catalog, time.time, time.monotonic).create("publisher", ["publish:Reports"])
    acknowledged: list[str] = []
    with gateway(tmp_path / "data") as (north, victim), gateway(tmp_path / "data") as (south, _):

        def publish(name: str, addresses: list[str]) -> None:
            with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
                for number in range(40):
                    ids = [f"{name}-{number}-{index}" for index in range(5)]
                    body = [{"id": one, "n": number} for one in ids]
                    while True:
                        try:
                            reply = client.post(f"{addresses[0]}/v1/datasets/Reports/records", json=body)
                        except httpx.TransportError:
                            addresses.pop(0)  # was it stored? The keys tell
                            continue
                        assert reply.status_code == 200, reply.text
                        assert reply.json()["accepted"] + reply.json()["duplicates"] == 5
                        break
                    acknowledged.extend(ids)
                    if name == "a" and number == 20:
                        victim.kill()

        threads = [
            threading.Thread(target=publish, args=("a", [north, south])),
            threading.Thread(target=publish, args=("b", [north, south])),
            threading.Thread(target=publish, args=("c", [south])),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert victim.wait(10) < 0
    cluster.catch_up("Reports")
    assert len(acknowledged) == 600
    assert Counter(stored(cluster)) == Counter(acknowledged)


def test_gateway_refuses_what_only_the_data_cluster_can_do(cluster: DataCluster, tmp_path: Path) -> None:
    _, token = TokenStore(cluster.catalog, time.time, time.monotonic).create("all", ["admin", "publish:*"])
    with (
        gateway(tmp_path / "data") as (address, _),
        httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client,
    ):
        assert client.get("/readyz").json() == {"ready": True, "reasons": []}
        assert client.post("/v1/datasets/None/records", json=[]).status_code == 404
        assert client.get("/v1/channels").status_code == 404
        assert httpx.post(f"{address}/v1/datasets/Reports/records", json=[]).status_code == 401
        declare(cluster, "CREATE STREAM DATASET Later (id STRING) KEY (id);")
        deadline_s = time.monotonic() + 30
        while client.post("/v1/datasets/Later/records", json=[{"id": "a"}]).status_code != 200:
            assert time.monotonic() < deadline_s, "the gateway does not see a new dataset"
            time.sleep(0.1)
        cluster.datasets.drop("Later")
        assert client.post("/v1/datasets/Later/records", json=[{"id": "b"}]).status_code in (404, 503)


def test_gateway_stores_messages_of_recorded_topics(cluster: DataCluster, tmp_path: Path) -> None:
    scopes = ["broker:b1", "publish:Reports"]
    _, token = TokenStore(cluster.catalog, time.time, time.monotonic).create("broker", scopes)
    with (
        gateway(tmp_path / "data") as (address, _),
        httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client,
    ):

        def send(*messages: tuple[str, bytes], **cursor: Any) -> recording.TopicRecordsAnswer:
            sent = recording.TopicRecords("r1", TopicName("t"), "", list(messages), **cursor)
            answer = client.post("/v1/datasets/Reports/topic-records", content=recording.encode(sent))
            assert answer.status_code == 200, answer.text
            return recording.decode_answer(answer.content)

        assert send().upto == 0
        assert send(("1-1", b'{"id": "a"}'), after=0, upto=1).accepted == 1
        assert send().upto == 1
