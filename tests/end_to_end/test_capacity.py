"""The output of a real broker is limited, and the limit is changed over REST while messages flow."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.end_to_end.topic_network import TopicNetwork, topic_network
from tocsin.client import TopicMessage, TopicSubscription

T = "site/1/sensor"
SIZE_BYTES = 2_000
RECEIVERS = 3


class Reader:
    """Counts what one receiver gets, and checks its order."""

    def __init__(self, subscription: TopicSubscription) -> None:
        self.numbers: list[int] = []
        self._subscription = subscription

    async def read(self) -> None:
        async for item in self._subscription:
            assert isinstance(item, TopicMessage), item
            self.numbers.append(int(item.data[:8]))


def test_output_of_a_broker_is_limited_and_changed_at_run_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        # Large enough that no receiver lags: the rate is that of the shaper alone.
        broker = {"topic-out-bytes-per-s": "200000", "topic-queue-bytes": str(64 << 20)}
        async with topic_network(tmp_path, brokers=1, broker=broker) as network:
            await asyncio.wait_for(_test(network), 120)

    asyncio.run(scenario())


async def _test(network: TopicNetwork) -> None:
    home = str((await network.create(T))["home"])
    clients = [network.client() for _ in range(RECEIVERS + 1)]
    for client in clients:
        await client.__aenter__()
    reading: list[asyncio.Task[None]] = []
    try:
        subscriptions = [client.subscribe(T) for client in clients[1:]]
        for subscription in subscriptions:
            await subscription.__aenter__()
        readers = [Reader(subscription) for subscription in subscriptions]
        reading += [asyncio.create_task(reader.read()) for reader in readers]
        count = 2_000
        sending = [clients[0].publish(T, b"%08d" % number + bytes(SIZE_BYTES - 8)) for number in range(count)]
        await asyncio.gather(*sending)

        def received() -> int:
            return sum(len(reader.numbers) for reader in readers)

        assert await _rate(received) == pytest.approx(200_000, rel=0.1)
        entry = await network.request("GET", f"/v1/brokers/{home}")
        assert entry.json()["topic_load"]["waiting_bytes"] > 1_000_000
        changed = await network.request("PUT", f"/v1/brokers/{home}/capacity", json={"out_bytes_per_s": 1e6})
        assert changed.status_code == 200, changed.text
        await asyncio.sleep(0.5)
        assert await _rate(received) == pytest.approx(1_000_000, rel=0.1)
        async with asyncio.timeout(40):
            while received() < RECEIVERS * count:
                await asyncio.sleep(0.05)
        assert [reader.numbers for reader in readers] == [list(range(count))] * RECEIVERS
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        for client in clients:
            await client.close()


async def _rate(received: object) -> float:
    """Bytes per second over four seconds, with the headers of messages and frames: some 35 bytes for each message."""
    assert callable(received)
    start, start_s = received(), time.monotonic()
    await asyncio.sleep(4.0)
    return float((received() - start) * (SIZE_BYTES + 35) / (time.monotonic() - start_s))
