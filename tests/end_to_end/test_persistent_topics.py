"""Persistent topics over real processes with real files: nothing acknowledged is lost, and no consumer gets a gap."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.end_to_end.topic_network import TopicNetwork, take, topic_network
from tocsin.client import BEGINNING, RequestRefused, TopicMessage, Topics

Run = Callable[[Callable[[TopicNetwork], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a test's coroutine with one network that all tests here share."""
    with asyncio.Runner() as runner:
        opened = topic_network(tmp_path_factory.mktemp("topics"))
        network = runner.run(opened.__aenter__())

        def run(test: Callable[[TopicNetwork], Coroutine[Any, Any, None]]) -> None:
            runner.run(asyncio.wait_for(test(network), 120))

        yield run
        runner.run(opened.__aexit__(None, None, None))


class Load:
    """A publisher that publishes numbers all the time, up to 50 without an acknowledgement."""

    def __init__(self, publisher: Topics, topic: str) -> None:
        self._publisher = publisher
        self._topic = topic
        self._stopped = asyncio.Event()
        self.published = 0

    async def run(self) -> None:
        while not self._stopped.is_set():
            numbers = range(self.published, self.published + 50)
            await asyncio.gather(*(self._publisher.send(self._topic, b"%d" % number) for number in numbers))
            self.published += 50

    async def until(self, published: int) -> None:
        while self.published < published:
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._stopped.set()


@asynccontextmanager
async def load(publisher: Topics, topic: str) -> AsyncIterator[Load]:
    publishing = Load(publisher, topic)
    task = asyncio.create_task(publishing.run())
    yield publishing
    publishing.stop()
    await task


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_messages_survive_every_broker_and_the_coordinator_being_killed_at_once(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("kept", replicas=2)
        async with network.client() as publisher:
            await asyncio.gather(*(publisher.send("kept", b"%d" % number) for number in range(500)))
        for child in (*network.stack.brokers.values(), network.stack.coordinator):
            child.signal(signal.SIGKILL)
        async with network.client() as reader, reader.subscribe("kept", after=BEGINNING) as kept:
            assert await take(kept, 500) == numbers(500)
            async with network.client() as publisher:
                await publisher.publish("kept", b"500")
            assert await take(kept, 1) == [b"500"]

    run(test)


@pytest.mark.parametrize("options", [{"replicas": 2, "quorum": 2}, {"replicas": 3, "quorum": 2}], ids=["2-2", "3-2"])
@pytest.mark.parametrize("victim", ["home", "follower", "coordinator"])
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_fault_under_load_loses_and_repeats_nothing(
    run: Run, options: dict[str, int], victim: str, fault: signal.Signals
) -> None:
    async def test(network: TopicNetwork) -> None:
        topic = f"load/{fault.name}/{victim}/{options['replicas']}"
        entry = await network.create(topic, **options)
        follower = next(name for name in entry["replicas"] if name != entry["home"])
        process = {"home": network.stack.brokers[entry["home"]], "follower": network.stack.brokers[follower]}.get(
            victim, network.stack.coordinator
        )
        async with (
            network.client() as publisher,
            network.client() as reader,
            reader.subscribe(topic) as subscription,
            load(publisher, topic) as publishing,
        ):
            await publishing.until(500)
            process.signal(fault)
            if fault is signal.SIGSTOP:
                await asyncio.sleep(3.0)
                process.signal(signal.SIGCONT)
            await publishing.until(publishing.published + 500)
            publishing.stop()
            await asyncio.sleep(0.1)
            assert await take(subscription, publishing.published) == numbers(publishing.published)

    run(test)


def test_moves_under_load_lose_nothing_and_old_replicas_drop_the_log(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("moving/kept", replicas=2, quorum=2)
        async with (
            network.client() as publisher,
            network.client() as reader,
            reader.subscribe("moving/kept") as moving,
            load(publisher, "moving/kept") as publishing,
        ):
            homes = [await network.move("moving/kept") for _ in range(5)]
            publishing.stop()
            await asyncio.sleep(0.5)
            assert await take(moving, publishing.published) == numbers(publishing.published)
        assert len(set(homes)) > 1
        entry = await network.until("moving/kept", lambda entry: entry["status"] is None)
        folders = network.stack.coordinator_state.parent.glob("brokers/*/topics/*/moving%kept@*")
        assert {folder.parent.name for folder in folders} == set(entry["replicas"])

    run(test)


def test_consumer_resumes_behind_its_cursor(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("cursor", persistent=True)
        async with network.client() as publisher, network.client() as first, first.subscribe("cursor") as before:
            await asyncio.gather(*(publisher.send("cursor", b"%d" % number) for number in range(100)))
            for _ in range(40):
                item = await anext(before)
            assert isinstance(item, TopicMessage)
        async with network.client() as second, second.subscribe("cursor", after=item.position) as after:
            assert await take(after, 60) == numbers(100)[40:]
            with pytest.raises(RequestRefused, match="use another client"):
                second.subscribe("cursor", after=BEGINNING)

    run(test)


def test_topic_without_enough_replicas_is_refused_or_says_so(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        answer = await network.http.post("/v1/topics", json={"topic": "wide", "replicas": 4})
        assert answer.status_code == 503
        assert "REPLICAS 4 needs as many brokers" in answer.text
        answer = await network.http.post("/v1/topics", json={"topic": "wide", "replicas": 2, "quorum": 3})
        assert answer.status_code == 400
        entry = await network.create("lonely", replicas=3, quorum=3)
        follower = next(name for name in entry["replicas"] if name != entry["home"])
        await network.until("lonely", lambda entry: entry["status"] is None)
        network.stack.brokers[follower].signal(signal.SIGSTOP)
        entry = await network.until("lonely", lambda entry: entry["status"] is not None)
        assert entry["status"].startswith("not available: 2 of 3 replicas that are needed follow")
        network.stack.brokers[follower].signal(signal.SIGCONT)
        await network.until("lonely", lambda entry: entry["status"] is None)

    run(test)


def test_deleted_topic_leaves_no_log_and_may_be_created_again(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("gone/kept", replicas=2)
        async with network.client() as publisher:
            await publisher.publish("gone/kept", b"old")
        assert (await network.http.delete("/v1/topics/gone/kept")).status_code == 200
        await network.create("gone/kept", replicas=2)
        async with (
            network.client() as publisher,
            network.client() as reader,
            reader.subscribe("gone/kept", after=BEGINNING) as again,
        ):
            await publisher.publish("gone/kept", b"new")
            assert await take(again, 1) == [b"new"]
        folders = list(network.stack.coordinator_state.parent.glob("brokers/*/topics/*/gone%kept@*"))
        assert len(folders) == 2

    run(test)
