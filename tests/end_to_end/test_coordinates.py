"""Network coordinates between real processes with emulated distances: predictions, and placement by them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.end_to_end.topic_network import TopicNetwork, take, topic_network
from tocsin.coords.coordinate import Coordinate, distance_s
from tocsin.coords.estimator import LIVE_TUNING, LOW_OF_8, Estimator
from tocsin.runtime.stack.distance import EmulatedDistance
from tocsin.runtime.stack.stack import SUBSCRIBERS

RTT_S = {("broker-1", "broker-2"): 0.160, ("broker-1", "broker-3"): 0.320, ("broker-2", "broker-3"): 0.400}
"""Longer than the delays that a busy machine adds to most round trips."""
BROKERS = ("broker-1", "broker-2", "broker-3")
COORDINATOR = {"topic-prefixes": "game/", "topic-lease-s": "20", "suspect-s": "20", "dead-s": "40"}
"""Long times: no broker of a busy machine may drop out of the choice of homes."""
LIMIT_S = 300.0
SETTLE_S = 120.0
SETTLED_ERROR = 0.2


@asynccontextmanager
async def distant_network(folder: Path) -> AsyncIterator[tuple[TopicNetwork, EmulatedDistance]]:
    """Three brokers at emulated distances; the coordinator and the clients are at the place of broker-1."""
    async with EmulatedDistance() as distance:
        for (one, other), rtt_s in RTT_S.items():
            await distance.set_delay(one, other, rtt_s / 2)
        for node in BROKERS:
            await distance.place(node, node)
        for node in ("coordinator", SUBSCRIBERS):
            await distance.place(node, "broker-1")
        sources = {name: await distance.address(name) for name in BROKERS}
        async with topic_network(folder, 3, distance, coordinator=COORDINATOR, sources=sources) as network:
            yield network, distance


async def brokers(network: TopicNetwork) -> dict[str, Any]:
    answer = await network.request("GET", "/v1/brokers")
    assert answer.status_code == 200, answer.text
    return {view["broker"]: view for view in answer.json()["brokers"]}


async def settled(network: TopicNetwork, good: Callable[[dict[str, Coordinate]], bool]) -> dict[str, Coordinate]:
    """The first coordinates of all brokers for which `good` is true; the last ones if the time is over."""
    coordinates: dict[str, Coordinate] = {}
    for _ in range(int(SETTLE_S / 0.5)):
        views = await brokers(network)
        coordinates = {
            name: Coordinate(**{**view["coordinate"], "vector": tuple(view["coordinate"]["vector"])})
            for name, view in views.items()
            if view["coordinate"] is not None
        }
        if len(coordinates) == len(BROKERS) and good(coordinates):
            break
        await asyncio.sleep(0.5)
    return coordinates


def beside(name: str, coordinates: dict[str, Coordinate]) -> Coordinate:
    """The coordinate of a node that is 2 ms from this broker."""
    rng = random.Random(1)
    estimator = Estimator(lambda: rng.gauss(0.0, 1.0), LIVE_TUNING, LOW_OF_8)
    for _ in range(60):
        for other, coordinate in coordinates.items():
            pair = (min(name, other), max(name, other))
            estimator.observe(other, coordinate, 0.002 + (0.0 if other == name else RTT_S[pair]))
    return estimator.coordinate


def errors(coordinates: dict[str, Coordinate]) -> list[float]:
    """The relative error of each pair."""
    return [
        abs(distance_s(coordinates[one], coordinates[other]) - RTT_S[one, other]) / RTT_S[one, other]
        for one, other in combinations(BROKERS, 2)
    ]


def is_good(coordinates: dict[str, Coordinate]) -> bool:
    """Predictions are right, and the brokers themselves report a small error: their coordinates have converged."""
    settled = all(coordinate.error <= SETTLED_ERROR for coordinate in coordinates.values())
    return settled and max(errors(coordinates)) < 0.2


def test_brokers_predict_emulated_distances_and_topics_get_the_nearest_home(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with distant_network(tmp_path) as (network, distance):
            coordinates = await settled(network, is_good)
            assert len(coordinates) == len(BROKERS)
            assert max(errors(coordinates)) < 0.2, (errors(coordinates), coordinates)
            assert all(coordinate.is_settled for coordinate in coordinates.values())
            for name in BROKERS:
                present = await settled(network, is_good)
                entry = await network.create(f"near/{name}", coordinate=asdict(beside(name, present)))
                assert entry["home"] == name, (beside(name, present), present, await brokers(network))
            await _create_by_client(network, distance)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


async def _create_by_client(network: TopicNetwork, distance: EmulatedDistance) -> None:
    """A client that moves beside broker-2 measures the brokers, and its first message makes a topic there."""
    await distance.place(SUBSCRIBERS, "broker-2", cut=True)
    async with network.client() as client, network.client() as reader:
        coordinate = await client.locate(60.0)
        assert coordinate is not None
        await client.publish("game/2", b"first")
        entry = await network.until("game/2", lambda entry: entry["home"] is not None)
        assert entry["home"] == "broker-2", (coordinate, await brokers(network))
        await network.move("game/2", "broker-3")
        async with reader.subscribe("game/2") as messages:
            await client.publish("game/2", b"second")
            await take(messages, 1)
            entry = await network.until("game/2", lambda entry: entry["worst_latency_s"] is not None)
            # Both legs are half of the 400 ms to broker-3; a busy machine adds to them.
            assert 0.39 <= entry["worst_latency_s"] < 0.8
