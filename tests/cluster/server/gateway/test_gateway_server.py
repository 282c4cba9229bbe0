"""A gateway answers publishers without Spark, a data cluster or a lease."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import msgspec

from tocsin.cluster.catalog import Catalog
from tocsin.cluster.feed.shared_gateway import new_seed
from tocsin.cluster.server.gateway.server import GatewayServer
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.cluster.server.tokens import TokenStore
from tocsin.cluster.settings import ClusterSettings
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName, TopicName
from tocsin.model.schema import Schema
from tocsin.wire.recording import TOPIC_RECORDS, TopicRecords, TopicRecordsAnswer

REPORTS = Dataset(DatasetName("Reports"), DatasetKind.STREAM, Schema.of(id="STRING"), key=("id",))


def test_gateway_stores_records_and_answers_for_recordings(tmp_path: Path) -> None:
    settings = ClusterProcessSettings(port=0, cluster=ClusterSettings(root=str(tmp_path)))
    settings.cluster.state_folder().mkdir()
    catalog = Catalog(settings.cluster.catalog_url())
    catalog.datasets.create(REPORTS, catalog.next_generation(), new_seed())
    tokens = TokenStore(catalog, time.time, time.monotonic)
    _, token = tokens.create("broker", ["publish:Reports", "broker:north"])
    cursor = msgspec.msgpack.encode(TopicRecords("recording", TopicName("Weather"), grant=""))

    async def scenario() -> list[httpx.Response]:
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = GatewayServer(settings, address.set_result)
        running = asyncio.create_task(server.run())
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=await address, headers=headers) as client:
            replies = [
                await client.post("/v1/datasets/Reports/records", json=[{"id": "a"}]),
                await client.post(TOPIC_RECORDS.format(name="Reports"), content=cursor),
            ]
        server.stop()
        await running
        return replies

    stored, recorded = asyncio.run(scenario())
    assert stored.status_code == 200 and stored.json()["accepted"] == 1
    assert recorded.status_code == 200
    assert msgspec.msgpack.decode(recorded.content, type=TopicRecordsAnswer).upto == 0
    catalog.close()
