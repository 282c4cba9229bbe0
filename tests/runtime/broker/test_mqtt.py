"""MQTT at a broker's process: channels with an emulated data cluster, connections that misbehave, draining."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import httpx

from tests.broker.mqtt.paho_properties import connect_properties
from tests.broker.mqtt.server_packets import read_all
from tests.runtime.broker.running_broker import RunningBroker, row, running_broker, token
from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
from tocsin.broker.mqtt import events, packets
from tocsin.broker.mqtt.packets import V5
from tocsin.broker.mqtt.reasons import Reason
from tocsin.broker.mqtt.writing import written
from tocsin.runtime.http.work_budget import ALLOWANCE_S

FIRE = "$channels/Reports?kind=fire"
TAKE_S = 20.0


@asynccontextmanager
async def mqtt_broker(folder: Path, **settings: Any) -> AsyncIterator[tuple[EmulatedCluster, RunningBroker]]:
    """A broker with MQTT. No coordinator answers, so there are channels and no topics."""
    given: dict[str, Any] = {
        "coordinator": "http://127.0.0.1:9",
        "keys": str(folder / "keys.json"),
        "mqtt_port": 0,
    } | settings
    async with EmulatedCluster("Reports") as cluster, running_broker(folder, cluster.url, **given) as broker:
        yield cluster, broker


def port(broker: RunningBroker) -> int:
    assert broker.server.mqtt_address is not None
    return int(broker.server.mqtt_address.rpartition(":")[2])


def client(broker: RunningBroker, user: str = "ann", **options: Any) -> aiomqtt.Client:
    login: dict[str, Any] = {"username": user, "password": token(user), "protocol": aiomqtt.ProtocolVersion.V5}
    return aiomqtt.Client("127.0.0.1", port(broker), **login | options)


async def take(connected: aiomqtt.Client, count: int) -> list[Any]:
    messages: list[Any] = []
    async with asyncio.timeout(TAKE_S):
        async for message in connected.messages:
            messages.append(message)
            if len(messages) == count:
                break
    return messages


async def until(holds: Any) -> None:
    async with asyncio.timeout(TAKE_S):
        while not holds():
            await asyncio.sleep(0.02)


def test_results_of_a_channel_reach_an_mqtt_client_with_cursors(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path) as (cluster, broker), client(broker) as ann:
            granted = await ann.subscribe(FIRE, 1)
            assert [int(code.value) for code in granted] == [1]  # type: ignore[union-attr]
            (identity,) = broker.core.state.backends
            cluster.execute("Reports", {identity: [row(1), row(2)]})
            messages = await take(ann, 2)
            assert [json.loads(message.payload)["n"] for message in messages] == [1, 2]
            assert {str(message.topic) for message in messages} == {FIRE}
            cursors = [dict(message.properties.UserProperty)["tocsin-cursor"] for message in messages]
            frontend = broker.core.state.subscribers["ann"].frontends[identity]
            await until(lambda: str(frontend.acked) == cursors[1])

    asyncio.run(scenario())


def test_two_clients_of_a_user_share_its_subscription_to_a_channel(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path) as (cluster, broker), client(broker) as first:
            await first.subscribe(FIRE, 1)
            async with client(broker) as second:
                await second.subscribe(FIRE, 1)
                (identity,) = broker.core.state.backends
                cluster.execute("Reports", {identity: [row(1)]})
                for receiver in (first, second):
                    (message,) = await take(receiver, 1)
                    assert json.loads(message.payload)["n"] == 1
            assert len(broker.core.state.sessions) == 1
            await first.unsubscribe(FIRE)
            await until(lambda: not broker.core.state.sessions)

    asyncio.run(scenario())


def test_unknown_channel_and_missing_scope_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path) as (_, broker):
            async with client(broker) as ann:
                codes = await ann.subscribe("$channels/Nothing?x=1", 1)
                assert [int(code.value) for code in codes] == [Reason.TOPIC_FILTER_INVALID]  # type: ignore[union-attr]
            async with client(broker, "bob", password=token("bob", "receive:#")) as bob:
                codes = await bob.subscribe(FIRE, 1)
                assert [int(code.value) for code in codes] == [Reason.NOT_AUTHORIZED]  # type: ignore[union-attr]

    asyncio.run(scenario())


def test_results_wait_for_an_mqtt_client_that_is_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        keeps = connect_properties(SessionExpiryInterval=60)
        session: dict[str, Any] = {"identifier": "keeper", "clean_start": False, "properties": keeps}
        async with mqtt_broker(tmp_path) as (cluster, broker):
            async with client(broker, **session) as first:
                await first.subscribe(FIRE, 1)
            (identity,) = broker.core.state.backends
            cluster.execute("Reports", {identity: [row(1)]})
            await until(lambda: any(each.queue for each in broker.server.mqtt.process.core.state.sessions.values()))  # type: ignore[union-attr]
            async with client(broker, **session) as second:
                (message,) = await take(second, 1)
                assert json.loads(message.payload)["n"] == 1

    asyncio.run(scenario())


class RawClient:
    """A client that writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._rest = b""
        self._found: list[packets.Packet] = []

    async def receive(self) -> packets.Packet | None:
        """The next packet; None at the end of the connection."""
        while not self._found:
            async with asyncio.timeout(TAKE_S):
                data = await self.reader.read(65_536)
            if not data:
                return None
            self._found, self._rest = read_all(self._rest + data, V5)
        return self._found.pop(0)


@asynccontextmanager
async def raw(broker: RunningBroker) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(broker))
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def connect_bytes(user: str = "ann") -> bytes:
    return written(packets.Connect("raw", V5, username=user, password=token(user).encode()), V5)


def test_connection_without_a_login_is_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path, login_s=1.0) as (_, broker), raw(broker) as silent:
            assert await silent.receive() is None

    asyncio.run(scenario())


def test_malformed_packet_gets_its_reason_and_the_connection_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path) as (_, broker), raw(broker) as hostile:
            hostile.writer.write(connect_bytes() + b"\x30\x04\x00\x01\xff\x00")
            assert isinstance(await hostile.receive(), packets.ConnAck)
            parting = await hostile.receive()
            assert isinstance(parting, packets.Disconnect)
            assert parting.reason == Reason.MALFORMED_PACKET
            assert await hostile.receive() is None

    asyncio.run(scenario())


def test_random_bytes_leave_the_broker_working(tmp_path: Path) -> None:
    async def scenario() -> None:
        rng = random.Random(5)
        async with mqtt_broker(tmp_path) as (_, broker):
            for _ in range(60):
                async with raw(broker) as hostile:
                    start = connect_bytes() if rng.random() < 0.5 else b""
                    hostile.writer.write(start + rng.randbytes(rng.randrange(1, 300)))
            async with client(broker):
                pass
            await until(lambda: not broker.server.mqtt.process.core.state.connections)  # type: ignore[union-attr]

    asyncio.run(scenario())


def test_thousands_of_packets_at_once_are_all_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path) as (_, broker), raw(broker) as busy:
            busy.writer.write(connect_bytes() + b"\xc0\x00" * 20_000)
            assert isinstance(await busy.receive(), packets.ConnAck)
            for _ in range(20_000):
                assert isinstance(await busy.receive(), packets.PingResp)

    asyncio.run(scenario())


def test_flood_of_single_packets_gets_a_share_of_the_time(tmp_path: Path) -> None:
    """No turn is long; the packets of both connections of the user are limited together."""

    async def scenario() -> None:
        async with mqtt_broker(tmp_path) as (_, broker), raw(broker) as first, raw(broker) as second:
            assert broker.server.mqtt is not None
            process = broker.server.mqtt.process
            happened, handled_s = process.happened, 0.0

            def measure(event: events.Event) -> None:
                nonlocal handled_s
                started_s = time.perf_counter()
                if isinstance(event, events.PacketReceived):
                    time.sleep(0.001)
                happened(event)
                handled_s += time.perf_counter() - started_s

            async def ping(flooding: RawClient) -> None:
                while True:
                    flooding.writer.write(b"\xc0\x00")
                    await flooding.receive()

            for number, flooding in enumerate((first, second)):
                login = packets.Connect(f"raw-{number}", V5, username="eve", password=token("eve").encode())
                flooding.writer.write(written(login, V5))
                assert isinstance(await flooding.receive(), packets.ConnAck)
            process.happened = measure  # type: ignore[method-assign]
            began_s = time.perf_counter()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3.0):
                    await asyncio.gather(ping(first), ping(second))
            took_s = time.perf_counter() - began_s
            assert ALLOWANCE_S <= handled_s <= ALLOWANCE_S + 0.5 * took_s + 0.1

    asyncio.run(scenario())


def test_draining_broker_sends_its_mqtt_clients_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path) as (_, broker), raw(broker) as staying, raw(broker) as late:
            mqtt = broker.server.mqtt
            assert mqtt is not None
            mqtt.process.core.peers.addresses["b2"] = "b2.example:1883"
            staying.writer.write(connect_bytes())
            assert isinstance(await staying.receive(), packets.ConnAck)
            broker.core.draining = True
            parting = await staying.receive()
            assert isinstance(parting, packets.Disconnect)
            assert (parting.reason, parting.properties["server_reference"]) == (
                Reason.USE_ANOTHER_SERVER,
                "b2.example:1883",
            )
            late.writer.write(connect_bytes())
            answer = await late.receive()
            assert isinstance(answer, packets.ConnAck)
            assert answer.reason == Reason.USE_ANOTHER_SERVER

    asyncio.run(scenario())


def test_other_session_of_the_user_ends_the_mqtt_client_with_a_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path) as (_, broker), raw(broker) as client:
            client.writer.write(connect_bytes())
            client.writer.write(written(packets.Subscribe(1, [packets.Filter(FIRE, 1)]), V5))
            assert isinstance(await client.receive(), packets.ConnAck)
            assert isinstance(await client.receive(), packets.SubAck)
            async with broker.session("ann"):
                parting = await client.receive()
            assert isinstance(parting, packets.Disconnect)
            assert parting.reason == Reason.SESSION_TAKEN_OVER

    asyncio.run(scenario())


def test_broker_stops_reading_clients_while_homes_do_not_answer(tmp_path: Path) -> None:
    """No coordinator answers, so no message reaches a home; the messages of one user stay below an eighth."""
    limit, size = 200_000, 1_000

    async def scenario() -> None:
        async with mqtt_broker(tmp_path, mqtt_waiting_bytes=8 * limit) as (_, broker), raw(broker) as sender:
            assert broker.server.mqtt is not None
            relay = broker.server.mqtt.process.relay
            login = packets.Connect("raw", V5, username="ann", password=token("ann", "send:#").encode())
            message = written(packets.Publish("a", b"x" * size), V5)
            sender.writer.write(written(login, V5) + message * 1_000 + b"\xc0\x00")
            assert isinstance(await sender.receive(), packets.ConnAck)
            await until(lambda: relay.waiting_bytes > limit)
            await asyncio.sleep(0.3)
            assert relay.waiting_bytes < limit + 2 * size
            while relay.waiting_bytes:
                for number in list(relay._waiting):
                    relay.settle(number, None, "")
                await asyncio.sleep(0.02)
            assert isinstance(await sender.receive(), packets.PingResp)

    asyncio.run(scenario())


def test_metrics_count_mqtt_clients(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path, open_metrics=True) as (_, broker), client(broker):
            async with httpx.AsyncClient(base_url=broker.url) as http:
                text = (await http.get("/metrics")).text
            assert "tocsin_broker_mqtt_connections 1.0" in text
            assert "tocsin_broker_mqtt_sessions 1.0" in text

    asyncio.run(scenario())
