"""The control loop of topics on real processes: it relieves an overloaded home, and topics follow clients that move."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx

from tests.end_to_end.topic_network import COORDINATOR, TopicNetwork, take, topic_network
from tocsin.client import Topics
from tocsin.runtime.stack.distance import EmulatedDistance

PERIOD_S = 4.0
SLACK_S = 3.0
"""For a busy machine, on top of the time that the loop has."""
LIMIT_S = 240.0
STEADY = {**COORDINATOR, "topic-lease-s": "20", "suspect-s": "20", "dead-s": "40", "topic-balance-s": str(PERIOD_S)}
"""Long times: no broker of a busy machine may drop out of the choice of homes."""
PER_S = 100
ACCESS_S, BETWEEN_S = 0.005, 0.040
"""One way: from a client to the broker of its place, and between the places."""


async def homes(network: TopicNetwork, *topics: str) -> dict[str, str]:
    entries = [await network.until(topic, lambda entry: entry["home"] is not None) for topic in topics]
    return {entry["topic"]: entry["home"] for entry in entries}


@asynccontextmanager
async def traffic(network: TopicNetwork, *topics: str) -> AsyncIterator[None]:
    """A publisher and a subscriber of each topic; `PER_S` messages a second for each."""
    async with AsyncExitStack() as stack:
        senders = [await stack.enter_async_context(network.client()) for _ in topics]
        readers = [await stack.enter_async_context(network.client()) for _ in topics]
        tasks = []
        for reader, topic in zip(readers, topics, strict=True):
            subscription = await stack.enter_async_context(reader.subscribe(topic))
            tasks.append(asyncio.create_task(_read(subscription)))
        tasks += [asyncio.create_task(_publish(*pair)) for pair in zip(senders, topics, strict=True)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _read(subscription: Any) -> None:
    async for _ in subscription:
        pass


async def _publish(client: Topics, topic: str) -> None:
    began_s, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began_s) * PER_S)
        for _ in range(due - sent):
            client.send(topic, b"x")
        sent = due
        await asyncio.sleep(0.02)


async def until_it_plans(network: TopicNetwork) -> None:
    """Wait until the coordinator has compiled its policies: on a busy machine that takes a minute the first time."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = await network.http.post("/v1/plans", json={"moves": []})
                assert answer.status_code == 200, answer.text
                return


def test_overloaded_home_is_relieved_within_two_periods(tmp_path: Path) -> None:
    async def scenario() -> None:
        rules = {**STEADY, "topic-output-per-s": str(1.5 * PER_S)}
        async with topic_network(tmp_path, 2, coordinator=rules) as network:
            await until_it_plans(network)
            for topic in ("a", "b"):
                await network.create(topic, within_s=None)
                if (await homes(network, topic))[topic] != "broker-1":
                    await network.move(topic, "broker-1")
            async with traffic(network, "a", "b"):
                began_s = time.monotonic()
                while len(set((await homes(network, "a", "b")).values())) < 2:
                    assert time.monotonic() - began_s < 2 * PERIOD_S + SLACK_S, "broker-1 is still overloaded"
                    await asyncio.sleep(0.1)
                after = await homes(network, "a", "b")
                await asyncio.sleep(2.5 * PERIOD_S)
                assert await homes(network, "a", "b") == after, "no broker is overloaded: nothing moves"

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


@asynccontextmanager
async def two_places(folder: Path) -> AsyncIterator[tuple[TopicNetwork, EmulatedDistance]]:
    """A broker and a street at each of two places. Clients are in the streets; the coordinator is near everything."""
    async with EmulatedDistance() as distance:
        for one, other in combinations(("city-1", "city-2", "street-1", "street-2"), 2):
            apart_s = 0.0 if one[-1] == other[-1] else BETWEEN_S
            access_s = ACCESS_S * ("street" in one) + ACCESS_S * ("street" in other)
            await distance.set_delay(one, other, apart_s + access_s)
        for number in (1, 2):
            await distance.place(f"broker-{number}", f"city-{number}")
        sources = {name: await distance.address(name) for name in ("broker-1", "broker-2")}
        async with topic_network(folder, 2, distance, coordinator=STEADY, sources=sources) as network:
            yield network, distance


async def addresses(network: TopicNetwork) -> dict[str, str]:
    """The addresses of the brokers, once all of them have settled coordinates."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            views = (await network.request("GET", "/v1/brokers")).json()["brokers"]
            if all(view["coordinate"] is not None and view["coordinate"]["error"] < 0.3 for view in views):
                return {view["broker"]: view["address"] for view in views}
            await asyncio.sleep(0.5)


def test_topic_follows_its_clients_to_another_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_places(tmp_path) as (network, distance):
            await until_it_plans(network)
            gateways = await addresses(network)
            await network.create("walk", within_s=0.05)
            if (await homes(network, "walk"))["walk"] != "broker-1":
                await network.move("walk", "broker-1")
            await distance.place("walker", "street-1")
            options = {"source": await distance.address("walker"), "gateway": gateways["broker-1"]}
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(network.client(**options)) for _ in range(2)]
                messages = await stack.enter_async_context(clients[1].subscribe("walk"))
                await clients[0].publish("walk", b"here")
                await take(messages, 1)
                await network.until("walk", lambda entry: entry["worst_latency_s"] is not None)
                await asyncio.sleep(1.5 * PERIOD_S)
                assert await homes(network, "walk") == {"walk": "broker-1"}
                await distance.place("walker", "street-2")
                for client in clients:
                    client.use_gateway(gateways["broker-2"])
                moved_s = time.monotonic()
                await network.until("walk", lambda entry: entry["home"] == "broker-2")
                assert time.monotonic() - moved_s < 2 * PERIOD_S + SLACK_S
                await clients[0].publish("walk", b"there")
                assert await take(messages, 1) == [b"there"]
                await network.until("walk", lambda entry: 0.0 < (entry["worst_latency_s"] or 0.0) < 0.05)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))
