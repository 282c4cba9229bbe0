"""Topics between real processes with emulated distances: clients, brokers and coordinator at different places."""

from __future__ import annotations

import asyncio
import time
from itertools import combinations
from pathlib import Path

from tests.end_to_end.topic_network import TopicNetwork, take, topic_network
from tocsin.runtime.stack.distance import EmulatedDistance
from tocsin.runtime.stack.stack import SUBSCRIBERS

ONE_WAY_S = 0.02
LIMIT_S = 150.0


async def _spread(distance: EmulatedDistance, *nodes: str) -> None:
    """Put every node at a place of its own."""
    for one, other in combinations(nodes, 2):
        await distance.set_delay(one, other, ONE_WAY_S)
    for node in nodes:
        await distance.place(node, node)


def test_move_over_a_distance_loses_and_reorders_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with EmulatedDistance() as distance:
            await _spread(distance, "coordinator", "broker-1", "broker-2", SUBSCRIBERS)
            async with topic_network(tmp_path, 2, distance) as network:
                await _publish_through_moves(network, distance)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


async def _publish_through_moves(network: TopicNetwork, distance: EmulatedDistance) -> None:
    await network.create("far")
    async with network.client() as publisher, network.client() as reader, reader.subscribe("far") as far:
        await publisher.publish("far", b"0")
        began_s = time.perf_counter()
        await publisher.publish("far", b"1")
        assert time.perf_counter() - began_s >= 2 * ONE_WAY_S, "an acknowledgement takes a round trip"
        sent, stopped = [publisher.send("far", b"2")], asyncio.Event()

        async def publish() -> None:
            while not stopped.is_set():
                await asyncio.sleep(0.005)
                sent.append(publisher.send("far", b"%d" % (len(sent) + 2)))

        publishing = asyncio.create_task(publish())
        homes = {await network.move("far") for _ in range(2)}
        await distance.place(SUBSCRIBERS, "broker-1", cut=True)
        await asyncio.sleep(0.2)
        stopped.set()
        await publishing
        await asyncio.gather(*sent)
        assert len(homes) == 2
        count = len(sent) + 2
        assert await take(far, count) == [b"%d" % number for number in range(count)]
    assert (await distance.report()).chunks > count
