"""A result server answers a broker's pulls with its token, and refuses everything else."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from tests.cluster.emergency import APPLICATION, NORTH, declare, report
from tests.conftest import ClusterAt, publish
from tocsin.cluster.result_server.server import ResultServer
from tocsin.cluster.result_server.settings import ResultServerSettings
from tocsin.cluster.server.tokens import TokenStore
from tocsin.wire import cluster as wire

pytestmark = pytest.mark.spark


def test_broker_pulls_from_a_result_server_with_its_own_token(cluster_at: ClusterAt) -> None:
    cluster = cluster_at()
    declare(cluster, APPLICATION)
    [granted] = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("r1")])
    cluster.execute("OfKind")
    tokens = TokenStore(cluster.catalog, time.time, time.monotonic)
    north, south = (tokens.create(name, [f"broker:{name}"])[1] for name in ("north", "south"))
    settings = ResultServerSettings(port=0, root=cluster.settings.root)
    body = wire.encode(wire.ResultsRequest("OfKind", {granted.id: str(granted.cursor)}))

    async def scenario() -> list[Any]:
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = ResultServer(settings, lambda at, _: address.set_result(at))
        running = asyncio.create_task(server.run())
        async with httpx.AsyncClient(base_url=await address) as client:

            async def post(path: str, token: str, content: bytes = body) -> httpx.Response:
                return await client.post(path, content=content, headers={"Authorization": f"Bearer {token}"})

            answers = [
                await client.get("/readyz"),
                await post(wire.RESULTS, north),
                await post(wire.RESULTS, south),
                await post(wire.RESULTS, "none"),
                await post(wire.JOINT_RESULTS, north),
                await post(wire.SUBSCRIPTIONS, north),
            ]
        server.stop()
        await running
        return answers

    ready, pulled, foreign, unknown, joint, elsewhere = asyncio.run(scenario())
    assert ready.status_code == 200
    assert pulled.status_code == 200 and b'"id":"r1"' in pulled.content and pulled.headers[wire.CURSOR_HEADER]
    assert (foreign.status_code, unknown.status_code) == (404, 401)
    assert joint.status_code == 404, "brokers then pull each channel by itself"
    assert elsewhere.status_code == 404
