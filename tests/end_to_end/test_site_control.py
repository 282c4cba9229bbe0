"""Offloading and congestion control in a site of real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from tests.end_to_end.test_site import EDGE, FLAGS, STANDBY, publishing, reader, redirect
from tests.end_to_end.topic_network import COORDINATOR, TopicNetwork, topic_network
from tocsin.client import RequestRefused, TopicMessage

TOPICS = tuple(f"readings/{number}" for number in range(4))
EDGES = (EDGE, STANDBY)
WITHOUT_LIMITS = {**COORDINATOR, "no-site-congestion": ""}
"""A machine that stands still for seconds makes a queue, and publishers would be limited although a helper is there."""


async def loads(network: TopicNetwork) -> dict[str, dict[str, Any]]:
    answer = await network.request("GET", "/v1/brokers")
    return {view["broker"]: view["topic_load"] or {} for view in answer.json()["brokers"] if view["broker"] in EDGES}


def output(now: dict[str, dict[str, Any]], edge: str) -> float:
    return float(now[edge].get("out_bytes_per_s", 0.0))


async def usual_output(network: TopicNetwork, edge: str) -> float:
    """The median of some seconds: in a single one the machine may stand still."""
    seconds = []
    for _ in range(5):
        await asyncio.sleep(1.0)
        seconds.append(output(await loads(network), edge))
    return median(seconds)


async def set_capacity(network: TopicNetwork, broker: str, out_bytes_per_s: float | None) -> None:
    body = {"out_bytes_per_s": out_bytes_per_s}
    answer = await network.request("PUT", f"/v1/brokers/{broker}/capacity", json=body)
    assert answer.is_success, answer.text


async def until(network: TopicNetwork, holds: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
    """Wait for such loads."""
    async with asyncio.timeout(60.0):
        while not holds(await loads(network)):
            await asyncio.sleep(0.1)


def test_overloaded_edge_is_relieved_without_loss(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            topic_network(tmp_path, broker_flags=FLAGS, coordinator=WITHOUT_LIMITS) as network,
            AsyncExitStack() as opened,
        ):
            for number, topic in enumerate(TOPICS):
                await network.create(topic, within_s=None, delay_s=float(1 + number))
            readers = [await opened.enter_async_context(reader(network, topic)) for topic in TOPICS for _ in range(3)]
            for number, reading in enumerate(readers):
                await redirect(network, TOPICS[number // 3], STANDBY, EDGE, reading)
            publishers = [await opened.enter_async_context(publishing(network, topic, 50.0)) for topic in TOPICS]
            await asyncio.sleep(1.0)
            await until(network, lambda now: output(now, EDGE) > 5_000.0 and output(now, STANDBY) < 100.0)
            whole = await usual_output(network, EDGE)
            await set_capacity(network, STANDBY, 2 * whole)
            await set_capacity(network, EDGE, 0.9 * whole)
            await until(network, lambda now: output(now, STANDBY) > 0.1 * whole)
            await until(network, lambda now: all(load["state"] in ("LOW", "HIGH") for load in now.values()))
            now = await loads(network)
            assert now[EDGE]["Uo"] <= 0.95, now
            last = [await publisher.finish() for publisher in publishers]
            for index, reading in enumerate(readers):
                await reading.until(last[index // 3])
                first, final = reading.numbers[0], reading.numbers[-1]
                assert reading.gaps == [] and reading.numbers == list(range(first, final + 1))

    asyncio.run(asyncio.wait_for(scenario(), 400))


def test_congested_site_limits_useless_publishers_and_lifts_the_limits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with topic_network(tmp_path, broker_flags=FLAGS) as network, AsyncExitStack() as opened:
            topic = "mixed"
            await network.create(topic, within_s=None)
            changes: list[float | None] = []

            def utility(message: TopicMessage) -> float:
                return 1.0 if message.data.startswith(b"good") else 0.0

            subscriber = await opened.enter_async_context(network.client(coordinates=False, utility=utility))
            received = await opened.enter_async_context(subscriber.subscribe(topic))
            counts = {"good": 0, "bad": 0}
            gaps: list[object] = []

            async def read() -> None:
                async for item in received:
                    if isinstance(item, TopicMessage):
                        counts[item.data.split()[0].decode()] += 1
                    else:
                        gaps.append(item)

            reading = asyncio.create_task(read())
            good = await opened.enter_async_context(network.client(coordinates=False))
            limited = network.client(coordinates=False, on_limit=lambda _, rate: changes.append(rate))
            bad = await opened.enter_async_context(limited)
            refused = {"good": 0, "bad": 0}

            async def publish(client: Any, word: str) -> None:
                while True:
                    future = client.send(topic, word.encode() + b" " + b"x" * 200)
                    future.add_done_callback(lambda done: _count(done, word))
                    await asyncio.sleep(0.02)

            def _count(done: asyncio.Future[None], word: str) -> None:
                if not done.cancelled() and isinstance(done.exception(), RequestRefused):
                    refused[word] += 1

            tasks = [asyncio.create_task(publish(good, "good")), asyncio.create_task(publish(bad, "bad"))]
            await until(network, lambda now: sum(output(now, edge) for edge in EDGES) > 10_000.0)
            await asyncio.sleep(4.0)
            now = await loads(network)
            whole = sum(output(now, edge) for edge in EDGES)
            for edge in EDGES:
                await set_capacity(network, edge, 0.6 * whole)
            async with asyncio.timeout(30):
                while not changes:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(6.0)
            before = dict(counts)
            await asyncio.sleep(5.0)
            delivered = {word: counts[word] - before[word] for word in counts}
            assert delivered["good"] > 2 * delivered["bad"]
            assert refused["bad"] > 0
            for edge in EDGES:
                await set_capacity(network, edge, None)
            async with asyncio.timeout(30):
                while bad.limit_per_s(topic) is not None:
                    await asyncio.sleep(0.05)
            for task in (*tasks, reading):
                task.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 400))
