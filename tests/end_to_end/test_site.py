"""A site of real processes: a head, two edges, publishers at the head and receivers at edges."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.end_to_end.topic_network import COORDINATOR, TopicNetwork, topic_network
from tocsin.client import TopicGap, TopicMessage, Topics, TopicSubscription

HEAD, EDGE, STANDBY = "broker-1", "broker-2", "broker-3"
FLAGS = {HEAD: {"role": "head"}, EDGE: {"role": "edge"}, STANDBY: {"role": "edge", "standby": ""}}
Run = Callable[[Callable[[TopicNetwork], Coroutine[Any, Any, None]]], None]
WAIT_S = 60.0
PATIENT = COORDINATOR | {"topic-lease-s": "10", "suspect-s": "6", "dead-s": "12"}
"""No home fails here, however slow the machine is."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a test's coroutine with one site that all tests here share."""
    with asyncio.Runner() as runner:
        opened = topic_network(tmp_path_factory.mktemp("site"), coordinator=PATIENT, broker_flags=FLAGS)
        network = runner.run(opened.__aenter__())

        def run(test: Callable[[TopicNetwork], Coroutine[Any, Any, None]]) -> None:
            runner.run(asyncio.wait_for(test(network), 240))

        yield run
        runner.run(opened.__aexit__(None, None, None))


def address_of(network: TopicNetwork, broker: str) -> str:
    return str(network.stack.brokers[broker].announcement["address"])


async def metric(network: TopicNetwork, broker: str, name: str) -> float:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {network.token}"}) as http:
        answer = await http.get(address_of(network, broker).replace("ws", "http", 1) + "/metrics")
    lines = [line for line in answer.text.splitlines() if line.startswith(f"tocsin_broker_{name}_total ")]
    return float(lines[0].split()[1])


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.02)


async def redirect(network: TopicNetwork, topic: str, source: str, target: str, reading: Reader) -> None:
    """Send a reader to another edge, once, and wait for its arrival."""
    body = {"topic": topic, "source": source, "target": target, "clients": [reading.name]}
    address = address_of(network, target)
    if reading.client.receives_at(topic) != address:
        answer = await network.request("POST", "/v1/topics/redirect", json=body)
        assert answer.status_code == 202, answer.text
        await until(lambda: reading.client.receives_at(topic) == address)


class Reader:
    """Records everything that a subscription gets."""

    def __init__(self, client: Topics, subscription: TopicSubscription) -> None:
        self.client = client
        self.name = f"first-administrator/{client.run}"
        self.numbers: list[int] = []
        self.gaps: list[TopicGap] = []
        self._subscription = subscription
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for item in self._subscription:
            if isinstance(item, TopicMessage):
                self.numbers.append(int(item.data))
            else:
                self.gaps.append(item)

    async def until(self, number: int) -> None:
        await until(lambda: self.numbers and self.numbers[-1] >= number)


@asynccontextmanager
async def reader(network: TopicNetwork, topic: str) -> AsyncIterator[Reader]:
    async with network.client(coordinates=False) as client, client.subscribe(topic) as subscription:
        reading = Reader(client, subscription)
        yield reading
        reading.task.cancel()


class Publisher:
    """Publishes numbers at a constant rate."""

    def __init__(self, client: Topics, topic: str, per_s: float) -> None:
        self.published = 0
        self._client, self._topic, self._per_s = client, topic, per_s
        self._sent: list[asyncio.Future[None]] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            while self.published < (loop.time() - began_s) * self._per_s:
                self._sent.append(self._client.send(self._topic, b"%d" % self.published))
                self.published += 1
            await asyncio.sleep(0.01)

    async def finish(self) -> int:
        """Stop, wait for the acknowledgements, and return the last number."""
        self._task.cancel()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*self._sent)
        return self.published - 1


@asynccontextmanager
async def publishing(network: TopicNetwork, topic: str, per_s: float = 500.0) -> AsyncIterator[Publisher]:
    async with network.client(coordinates=False) as client:
        publisher = Publisher(client, topic, per_s)
        yield publisher
        await publisher.finish()


def edge_of(network: TopicNetwork, reading: Reader, topic: str) -> str:
    """The edge from which a reader receives."""
    here = reading.client.receives_at(topic)
    return next(name for name in (EDGE, STANDBY) if address_of(network, name) == here)


def is_complete(numbers: list[int], last: int) -> bool:
    return numbers == list(range(numbers[0], last + 1))


def test_messages_reach_an_edge_once_whatever_the_number_of_receivers(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        entry = await network.create("site/once")
        assert entry["home"] == HEAD
        before = [await metric(network, broker, "topic_messages_relayed") for broker in (EDGE, STANDBY)]
        sent_before = await metric(network, HEAD, "topic_messages_delivered")
        async with (
            reader(network, "site/once") as one,
            reader(network, "site/once") as two,
            reader(network, "site/once") as three,
        ):
            source = edge_of(network, one, "site/once")
            target = STANDBY if source == EDGE else EDGE
            await redirect(network, "site/once", source, target, three)
            async with publishing(network, "site/once") as publisher:
                await until(lambda: publisher.published > 300)
                last = await publisher.finish()
            for each in (one, two, three):
                await each.until(last)
                assert each.numbers == list(range(last + 1))
                assert not each.gaps
        after = [await metric(network, broker, "topic_messages_relayed") for broker in (EDGE, STANDBY)]
        assert [late - early for late, early in zip(after, before, strict=True)] == [last + 1, last + 1]
        assert await metric(network, HEAD, "topic_messages_delivered") - sent_before == 2 * (last + 1)

    run(test)


def test_redirect_under_load_loses_repeats_and_reorders_nothing(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("site/redirected")
        async with (
            reader(network, "site/redirected") as moved,
            reader(network, "site/redirected") as staying,
            publishing(network, "site/redirected") as publisher,
        ):
            await moved.until(50)
            at = {name: address_of(network, name) for name in (EDGE, STANDBY)}
            for _ in range(10):
                here = moved.client.receives_at("site/redirected")
                source, target = (EDGE, STANDBY) if here == at[EDGE] else (STANDBY, EDGE)
                await redirect(network, "site/redirected", source, target, moved)
                await moved.until(moved.numbers[-1] + 50)
            last = await publisher.finish()
            for each in (moved, staying):
                await each.until(last)
                assert is_complete(each.numbers, last)
                assert not each.gaps

    run(test)


def test_receivers_of_a_killed_edge_continue_at_another_edge(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("site/killed")
        async with (
            reader(network, "site/killed") as one,
            reader(network, "site/killed") as two,
            publishing(network, "site/killed") as publisher,
        ):
            await one.until(100)
            here = one.client.receives_at("site/killed")
            source = edge_of(network, one, "site/killed")
            network.stack.brokers[source].signal(signal.SIGKILL)
            await until(lambda: one.client.receives_at("site/killed") not in (None, here))
            await one.until(one.numbers[-1] + 200)
            last = await publisher.finish()
            for each in (one, two):
                await each.until(last)
                assert is_complete(each.numbers, last)
                assert not each.gaps

    run(test)


@pytest.mark.parametrize("persistent", [False, True], ids=["volatile", "persistent"])
def test_standby_takes_over_when_the_head_is_killed(tmp_path: Path, persistent: bool) -> None:
    async def test() -> None:
        async with topic_network(tmp_path, broker_flags=FLAGS) as network:
            await check_take_over(network, persistent)

    asyncio.run(asyncio.wait_for(test(), 240))


async def check_take_over(network: TopicNetwork, persistent: bool) -> None:
    options = {"replicas": 3, "quorum": 2} if persistent else {}
    entry = await network.create("site/head", **options)
    assert entry["home"] == HEAD
    if persistent:
        await network.until("site/head", lambda entry: entry["status"] is None)
    head = network.stack.brokers[HEAD]
    head.restart = False
    async with (
        reader(network, "site/head") as reading,
        publishing(network, "site/head", 200.0) as publisher,
    ):
        await reading.until(100)
        head.signal(signal.SIGKILL)
        await network.until("site/head", lambda entry: entry["home"] == STANDBY)
        await reading.until(reading.numbers[-1] + 200)
        last = await publisher.finish()
        await reading.until(last)
        assert reading.numbers == sorted(set(reading.numbers))
        if persistent:
            assert is_complete(reading.numbers, last)
            assert not reading.gaps
        else:
            assert [gap.last for gap in reading.gaps] == [None]
