"""Topics over real processes: a coordinator and brokers, killed, frozen and moved while messages flow."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.end_to_end.topic_network import TopicNetwork, take, take_until, topic_network
from tocsin.client import Denied, RequestRefused, TopicMessage

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


def test_messages_reach_every_subscriber_in_order(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("swarm/3/leader")
        async with (
            network.client() as publisher,
            network.client() as one,
            network.client() as other,
            one.subscribe("swarm/3/leader") as first,
            other.subscribe("swarm/+/leader") as second,
        ):
            for number in range(20):
                await publisher.publish("swarm/3/leader", b"%d" % number)
            await asyncio.gather(*(publisher.send("swarm/3/leader", b"%d" % n) for n in range(20, 2000)))
            expected = [b"%d" % number for number in range(2000)]
            assert await take(first, 2000) == expected
            assert await take(second, 2000) == expected

    run(test)


def test_topic_made_on_first_use_reaches_a_pattern_from_its_first_message(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        async with network.client() as publisher, network.client() as reader, reader.subscribe("game/#") as games:
            await publisher.publish("game/7/north", b"hello")
            await publisher.publish("game/7/north", b"again")
            assert await take(games, 2) == [b"hello", b"again"]
            with pytest.raises(RequestRefused, match="there is no topic"):
                await publisher.publish("nogame/1", b"x")

    run(test)


def test_planned_move_loses_and_repeats_nothing(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("moving")
        async with network.client() as publisher, network.client() as reader, reader.subscribe("moving") as moving:
            published = 0

            async def publish_until(stopped: asyncio.Event) -> None:
                nonlocal published
                while not stopped.is_set():
                    await publisher.publish("moving", b"%d" % published)
                    published += 1

            stopped = asyncio.Event()
            publishing = asyncio.create_task(publish_until(stopped))
            homes = [await network.move("moving") for _ in range(4)]
            stopped.set()
            await publishing
            assert len(set(homes)) > 1
            assert await take(moving, published) == [b"%d" % number for number in range(published)]

    run(test)


def test_broken_connections_lose_and_repeat_nothing(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("fragile")
        async with network.client() as publisher, network.client() as reader, reader.subscribe("fragile") as fragile:
            for number in range(60):
                if number % 10 == 5:
                    publisher.break_connections()
                    reader.break_connections()
                await publisher.publish("fragile", b"%d" % number)
            assert await take(fragile, 60) == [b"%d" % number for number in range(60)]

    run(test)


def test_drained_broker_hands_its_topic_over_without_a_gap(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        home = (await network.create("drained"))["home"]
        async with network.client() as publisher, network.client() as reader, reader.subscribe("drained") as drained:
            await publisher.publish("drained", b"0")
            assert (await network.http.post(f"/v1/brokers/{home}/drain", json={"on": True})).is_success
            number = 0
            while (entry := await network.entry("drained")) is None or entry["home"] == home or entry["moving_to"]:
                number += 1
                await publisher.publish("drained", b"%d" % number)
            assert (await network.http.post(f"/v1/brokers/{home}/drain", json={"on": False})).is_success
            await publisher.publish("drained", b"%d" % (number + 1))
            assert await take(drained, number + 2) == [b"%d" % index for index in range(number + 2)]

    run(test)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_failover_reports_a_gap_and_keeps_each_publisher_in_order(run: Run, fault: signal.Signals) -> None:
    async def test(network: TopicNetwork) -> None:
        topic = f"frail/{fault.name}"
        home = (await network.create(topic))["home"]
        async with network.client() as publisher, network.client() as reader, reader.subscribe(topic) as frail:
            for number in range(20):
                await publisher.publish(topic, b"%03d" % number)
            assert len(await take(frail, 20)) == 20
            network.stack.brokers[home].signal(fault)
            await asyncio.gather(*(publisher.send(topic, b"%03d" % number) for number in range(20, 40)))
            data, gaps = await take_until(frail, b"039")
            assert data == [b"%03d" % number for number in range(20, 40)]
            assert [(gap.first, gap.last) for gap in gaps] == [(21, None)]
            entry = await network.entry(topic)
            assert entry is not None
            if fault is signal.SIGSTOP:
                assert entry["home"] != home
                network.stack.brokers[home].signal(signal.SIGCONT)
                await publisher.publish(topic, b"040")
                assert (await take_until(frail, b"040"))[0] == [b"040"]

    run(test)


def test_stopped_home_is_replaced_before_its_lease_would_end(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        entry = await network.create("stopped")
        async with network.client() as publisher, network.client() as reader, reader.subscribe("stopped") as stopped:
            await publisher.publish("stopped", b"0")
            assert await take(stopped, 1) == [b"0"]
            network.stack.brokers[entry["home"]].signal(signal.SIGTERM)
            await network.until("stopped", lambda now: now["epoch"] > entry["epoch"] and now["home"] is not None)
            await publisher.publish("stopped", b"1")
            data, gaps = await take_until(stopped, b"1")
            assert (data, [(gap.first, gap.last) for gap in gaps]) == ([b"1"], [(2, None)])

    run(test)


def test_scopes_decide_about_sending_receiving_and_creating(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("guarded/a")
        await network.create("guarded/b")
        token = await network.token_for("send:guarded/a", "receive:guarded/b")
        async with network.client() as admin, network.client(token) as limited:
            with pytest.raises(Denied, match="send:guarded/b"):
                await limited.publish("guarded/b", b"x")
            await limited.publish("guarded/a", b"x")
            async with limited.subscribe("guarded/#") as visible:
                await admin.publish("guarded/a", b"hidden")
                await admin.publish("guarded/b", b"shown")
                item = await anext(visible)
                assert isinstance(item, TopicMessage)
                assert (item.topic, item.data) == ("guarded/b", b"shown")
        async with network.client("not a token") as stranger:
            with pytest.raises(Denied):
                await stranger.publish("guarded/a", b"x")

    run(test)


def test_deleted_topic_refuses_publishers(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("gone")
        async with network.client() as publisher:
            await publisher.publish("gone", b"x")
            assert (await network.http.delete("/v1/topics/gone")).status_code == 200
            with pytest.raises(RequestRefused, match="there is no topic"):
                while True:  # the home accepts messages until the coordinator's message reaches it
                    await publisher.publish("gone", b"y")

    run(test)


def test_restarted_coordinator_interrupts_no_topic_for_good(run: Run) -> None:
    async def test(network: TopicNetwork) -> None:
        await network.create("steady")
        async with network.client() as publisher, network.client() as reader, reader.subscribe("steady") as steady:
            await publisher.publish("steady", b"0")
            network.stack.coordinator.signal(signal.SIGKILL)
            for number in range(1, 10):
                await publisher.publish("steady", b"%d" % number)
            data, _gaps = await take_until(steady, b"9")
            assert data == [b"%d" % number for number in range(10)]

    run(test)
