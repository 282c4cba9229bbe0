"""Topics that are recorded into datasets, over real processes with Spark: from MQTT and topic clients to channels."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from tests.end_to_end.conftest import take
from tests.end_to_end.mqtt_network import MqttNetwork, output_of
from tests.end_to_end.topic_network import PATIENCE, topic_network
from tocsin.cli.main import make_app
from tocsin.client import Subscriber
from tocsin.cluster.spark.session import require_java
from tocsin.wire.errors import TocsinError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

APPLICATION = """
CREATE STREAM DATASET Temperatures (room STRING, degrees DOUBLE, topic STRING, position STRING);
CREATE TOPIC rooms/1/temperature WITHIN 1 S RECORD INTO Temperatures;
CREATE CONTINUOUS CHANNEL Hot (least DOUBLE) AS
  SELECT t.room, t.degrees, t.topic, t.position FROM NEW Temperatures t WHERE t.degrees >= :least;
CREATE STREAM DATASET Orders (n INT);
CREATE CONTINUOUS CHANNEL AllOrders AS SELECT o.n FROM NEW Orders o;
CREATE TOPIC orders PERSISTENT REPLICAS 3 QUORUM 2 RECORD INTO Orders;
"""
# Spark takes most of a small machine while it starts: a broker that waits for the processor is not dead.
COORDINATOR = {"heartbeat-s": "1", "suspect-s": "6", "dead-s": "12", "probation-s": "1", "topic-lease-s": "5"}
ROOM = "rooms/1/temperature"
Run = Callable[[Callable[[MqttNetwork], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a test's coroutine with one network that all tests here share. The application file is applied."""
    try:
        require_java()
    except TocsinError as error:
        pytest.skip(error.message)
    folder = tmp_path_factory.mktemp("recorded")
    with asyncio.Runner() as runner:
        opened = topic_network(folder, coordinator=COORDINATOR, broker={"mqtt-port": "0"}, data_cluster=True)
        network = MqttNetwork(runner.run(opened.__aenter__()))
        (folder / "app.sql").write_text(APPLICATION)

        def run(test: Callable[[MqttNetwork], Coroutine[Any, Any, None]]) -> None:
            runner.run(asyncio.wait_for(test(network), 500))

        try:
            assert set(runner.run(asyncio.to_thread(apply, network, folder / "app.sql")).values()) == {"created"}
            assert set(runner.run(asyncio.to_thread(apply, network, folder / "app.sql")).values()) == {"unchanged"}
            yield run
        finally:
            runner.run(opened.__aexit__(None, None, None))


def apply(network: MqttNetwork, file: Path) -> dict[str, str]:
    """Apply a file with the command. Returns the action for each name."""
    stack = network.topics.stack
    options = ["--url", stack.cluster_url, "--coordinator", stack.coordinator_url, "--token", network.token, "--json"]
    result = CliRunner().invoke(make_app(), ["apply", str(file), *options])
    assert result.exit_code == 0, result.output
    return {change["name"]: change["action"] for change in json.loads(result.stdout)["changes"]}


def subscriber(network: MqttNetwork, user: str) -> Subscriber:
    return Subscriber(network.topics.stack.coordinator_url, user=user, token=network.token, patience=PATIENCE)


async def rows(network: MqttNetwork, dataset: str) -> int:
    headers = {"Authorization": f"Bearer {network.token}"}
    async with httpx.AsyncClient(base_url=network.topics.stack.cluster_url, headers=headers, timeout=60) as cluster:
        return int((await cluster.get(f"/v1/datasets/{dataset}")).json()["rows"])


def test_message_of_an_mqtt_client_reaches_a_channel(run: Run) -> None:
    async def test(network: MqttNetwork) -> None:
        async with subscriber(network, "ann") as ann:
            hot = await ann.subscribe("Hot", {"least": 30.0})
            for message in ('{"room": "cold", "degrees": 20}', "no JSON", '{"room": "hot", "degrees": 35.5}'):
                await output_of(await network.mosquitto("mosquitto_pub", "-q", "1", "-t", ROOM, "-m", message))
            several = '[{"room": "a", "degrees": 40, "topic": "forged"}, {"room": "b", "degrees": 41}]'
            await output_of(await network.mosquitto("mosquitto_pub", "-q", "1", "-t", ROOM, "-m", several, number=2))
            found = [result.value for result in await take(hot, 3, 180)]
            assert sorted((result["room"], result["topic"]) for result in found) == [
                ("a", ROOM), ("b", ROOM), ("hot", ROOM),
            ]  # fmt: skip
            entry = await network.topics.entry(ROOM)
            assert entry is not None and entry["record_into"] == "Temperatures"
            positions = sorted(result["position"] for result in found)
            assert positions == [f"{entry['epoch']}-3", f"{entry['epoch']}-4", f"{entry['epoch']}-4"]

    run(test)


def test_each_message_is_recorded_once_when_homes_and_data_cluster_die(run: Run) -> None:
    async def test(network: MqttNetwork) -> None:
        stack, stopped, published = network.topics.stack, asyncio.Event(), 0
        async with network.topics.client() as publisher, subscriber(network, "bob") as bob:
            orders = await bob.subscribe("AllOrders", {})

            async def publish() -> None:
                nonlocal published
                while not stopped.is_set():
                    batch = range(published, published + 10)
                    await asyncio.gather(*(publisher.send("orders", b'{"n": %d}' % number) for number in batch))
                    published += 10
                    await asyncio.sleep(0.05)

            async def publish_more() -> None:
                """Return when further messages were acknowledged."""
                enough = published + 50
                async with asyncio.timeout(120):
                    while published < enough:
                        await asyncio.sleep(0.05)

            publishing = asyncio.create_task(publish())
            for victim in ("home", "cluster", "home"):
                await publish_more()
                entry = await network.topics.until("orders", lambda entry: entry["home"] is not None)
                child = stack.cluster if victim == "cluster" else stack.brokers[entry["home"]]
                assert child.signal(signal.SIGKILL)
            await publish_more()
            stopped.set()
            await publishing
            count = published
            found = [result.value["n"] for result in await take(orders, count, 300)]
            assert sorted(found) == list(range(count))
            async with asyncio.timeout(60):
                while await rows(network, "Orders") < count:
                    await asyncio.sleep(0.2)
            await asyncio.sleep(2)
            assert await rows(network, "Orders") == count

    run(test)
