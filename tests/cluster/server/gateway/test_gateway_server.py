"""A gateway answers publishers without Spark, a data cluster or a lease."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from tocsin.cluster.catalog import Catalog
from tocsin.cluster.feed.shared_gateway import new_seed
from tocsin.cluster.server.gateway.server import GatewayServer
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.cluster.server.tokens import TokenStore
from tocsin.cluster.settings import ClusterSettings
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName, TopicName
from tocsin.model.schema import Schema
from tocsin.wire.errors import TocsinError
from tocsin.wire.recording import TOPIC_RECORDS, TopicRecords, TopicRecordsAnswer

REPORTS = Dataset(DatasetName("Reports"), DatasetKind.STREAM, Schema.of(id="STRING"), key=("id",))


def made_catalog(settings: ClusterProcessSettings) -> Catalog:
    settings.cluster.state_folder().mkdir(exist_ok=True)
    return Catalog(settings.cluster.catalog_url())


def test_gateway_neither_makes_nor_converts_a_catalog(tmp_path: Path) -> None:
    settings = ClusterProcessSettings(port=0, cluster=ClusterSettings(root=str(tmp_path)))
    settings.cluster.state_folder().mkdir()

    async def scenario() -> None:
        ready = asyncio.Event()
        server = GatewayServer(settings, lambda _: ready.set())
        running = asyncio.create_task(server.run())
        await asyncio.sleep(1.5)
        assert not ready.is_set() and not running.done(), "it waits for the data cluster"
        with pytest.raises(TocsinError, match="there is no data root yet"):
            Catalog(settings.cluster.catalog_url(), as_it_is=True)
        made_catalog(settings).close()
        async with asyncio.timeout(20):
            await ready.wait()
        server.stop()
        await running

        catalog = made_catalog(settings)
        older = "UPDATE stored_formats SET format = 2 WHERE store = 'data root'"
        catalog._database.execute(sa.text(older))
        with pytest.raises(TocsinError, match="has format 2"):
            await GatewayServer(settings).run()
        catalog.close()

    asyncio.run(scenario())


def test_gateway_that_waits_for_a_catalog_can_be_stopped(tmp_path: Path) -> None:
    settings = ClusterProcessSettings(port=0, cluster=ClusterSettings(root=str(tmp_path)))
    settings.cluster.state_folder().mkdir()

    async def scenario() -> None:
        server = GatewayServer(settings)
        running = asyncio.create_task(server.run())
        await asyncio.sleep(0.5)
        server.stop()
        async with asyncio.timeout(20):
            await running

    asyncio.run(scenario())


def test_gateway_stores_records_and_answers_for_recordings(tmp_path: Path) -> None:
    settings = ClusterProcessSettings(port=0, cluster=ClusterSettings(root=str(tmp_path)))
    catalog = made_catalog(settings)
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
