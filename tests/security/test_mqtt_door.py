"""MQTT clients: each token gets its own rights, and no client fills the memory or stops another user's clients."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from tests.broker.mqtt.bench import Client, MqttBench
from tests.runtime.broker.running_broker import RunningBroker, row, token
from tests.runtime.broker.test_mqtt import FIRE, RawClient, client, mqtt_broker, port, raw, take, until
from tocsin.broker.mqtt import events, packets
from tocsin.broker.mqtt.packets import V5
from tocsin.broker.mqtt.reasons import Reason
from tocsin.broker.mqtt.writing import written

FLOOD = "$channels/Reports?kind=flood"
KEPT: dict[str, Any] = {"properties": {"session_expiry_s": 600}, "clean_start": False}


def codes(granted: Any) -> list[int]:
    return [int(code.value) for code in granted]


# -- rights ------------------------------------------------------------------------------------------------------------


def test_token_without_the_channel_gets_nothing_beside_a_wide_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path) as (_, broker), client(broker, identifier="wide") as wide:
            assert codes(await wide.subscribe(FIRE, 1)) == [Reason.GRANTED_QOS_1]
            for number, scope in enumerate(("receive:#", "subscribe:Other")):
                narrow = client(broker, identifier=f"narrow-{number}", password=token("ann", scope))
                async with narrow:
                    assert codes(await narrow.subscribe(FIRE, 1)) == [Reason.NOT_AUTHORIZED]

    asyncio.run(scenario())


def test_wide_token_gets_its_channels_beside_a_narrow_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        narrow_token = token("ann", "subscribe:Other")
        async with mqtt_broker(tmp_path) as (cluster, broker):
            narrow = client(broker, identifier="narrow", password=narrow_token)
            async with narrow, client(broker, identifier="wide") as wide:
                assert codes(await narrow.subscribe("$channels/Other?x=1", 1)) == [Reason.TOPIC_FILTER_INVALID]
                assert codes(await wide.subscribe(FIRE, 1)) == [Reason.GRANTED_QOS_1]
                (identity,) = broker.core.state.backends
                cluster.execute("Reports", {identity: [row(1)]})
                (message,) = await take(wide, 1)
                assert json.loads(message.payload)["n"] == 1

    asyncio.run(scenario())


def bench_with_tokens(*narrow: str) -> MqttBench:
    bench = MqttBench()
    bench.users = {
        "wide": ("ann", frozenset({"receive:#", "subscribe"}), None),
        "narrow": ("ann", frozenset(narrow), None),
        "sender": ("bob", frozenset({"send:#"}), None),
    }
    return bench


def sender_of(bench: MqttBench) -> Client:
    sender = bench.client()
    sender.connect("sender", password=b"sender")
    return sender


def test_queued_messages_do_not_reach_a_narrower_token() -> None:
    bench = bench_with_tokens("receive:a/#")
    wide, sender = bench.client(), sender_of(bench)
    wide.connect("c1", password=b"wide", **KEPT)
    wide.subscribe("secret/1", "a/1", qos=1)
    wide.lose()
    for topic in ("secret/1", "a/1"):
        sender.publish(topic, topic.encode(), qos=1)
    narrow = bench.client()
    assert narrow.connect("c1", password=b"narrow", **KEPT).session_present
    sender.publish("secret/1", b"live", qos=1)
    assert narrow.payloads == [b"a/1"]
    narrow.lose()
    again = bench.client()
    again.connect("c1", password=b"wide", **KEPT)
    sender.publish("secret/1", b"later", qos=1)
    (message,) = again.messages
    assert message.payload == b"later"
    assert "tocsin-gap" in dict(message.properties["user_properties"]), "what was withheld is reported as missing"


def test_message_in_flight_is_not_repeated_to_a_narrower_token() -> None:
    for qos in (1, 2):
        bench = bench_with_tokens("receive:a/#")
        wide, sender = bench.client(), sender_of(bench)
        wide.acknowledges = False
        wide.connect("c1", password=b"wide", **KEPT)
        wide.subscribe("secret/1", "a/1", qos=qos)
        sender.publish("secret/1", b"secret", qos=qos)
        assert wide.payloads == [b"secret"]
        wide.lose()
        narrow = bench.client()
        narrow.connect("c1", password=b"narrow", **KEPT)
        assert not narrow.messages
        sender.publish("a/1", b"public", qos=qos)
        assert narrow.payloads == [b"public"]
        assert not bench.core.state.sessions["ann\x1fc1"].inflight, "the exchange of the withheld message has ended"


def test_shared_message_that_is_withheld_goes_to_another_member() -> None:
    bench = bench_with_tokens("receive:a/#")
    bench.users["other"] = ("eve", frozenset({"receive:#"}), None)
    wide, sender = bench.client(), sender_of(bench)
    wide.connect("c1", password=b"wide", **KEPT)
    wide.subscribe("$share/g/secret/1", qos=1)
    wide.lose()
    sender.publish("secret/1", b"job", qos=1)
    other = bench.client()
    other.connect("c2", password=b"other")
    other.subscribe("$share/g/secret/1", qos=1)
    narrow = bench.client()
    narrow.connect("c1", password=b"narrow", **KEPT)
    assert (narrow.payloads, other.payloads) == ([], [b"job"])


def test_results_do_not_reach_a_narrower_token_of_the_session() -> None:
    bench = bench_with_tokens("subscribe:Other")
    wide = bench.client()
    wide.connect("c1", password=b"wide", **KEPT)
    wide.subscribe(FLOOD, qos=1)
    bench.do(events.ChannelAnswered("ann\x1fc1", FLOOD, Reason.GRANTED_QOS_1))
    wide.lose()
    bench.do(events.ChannelResultArrived("ann\x1fc1", FLOOD, "s", "1-1", b"queued"))
    narrow = bench.client()
    narrow.connect("c1", password=b"narrow", **KEPT)
    bench.do(events.ChannelResultArrived("ann\x1fc1", FLOOD, "s", "1-2", b"live"))
    assert not narrow.messages
    narrow.lose()
    again = bench.client()
    again.connect("c1", password=b"wide", **KEPT)
    bench.do(events.ChannelResultArrived("ann\x1fc1", FLOOD, "s", "1-3", b"later"))
    assert again.payloads == [b"later"]
    assert ("tocsin-gap", "unknown") in again.messages[0].properties["user_properties"]


def test_narrower_token_on_the_open_connection_withholds_what_waits() -> None:
    bench = bench_with_tokens("receive:a/#")
    method = {"authentication_method": "token"}
    client, sender = bench.client(), sender_of(bench)
    client.acknowledges = False
    properties = {**method, "authentication_data": b"wide", "receive_maximum": 1}
    client.connect("c1", password=None, properties=properties)
    client.subscribe("secret/1", qos=1)
    for payload in (b"sent", b"waits"):
        sender.publish("secret/1", payload, qos=1)
    client.send(packets.Auth(Reason.RE_AUTHENTICATE, {**method, "authentication_data": b"narrow"}))
    client.send(packets.PubAck(client.messages[0].packet_id))
    assert client.payloads == [b"sent"]


# -- floods ------------------------------------------------------------------------------------------------------------


async def open_websocket(broker: RunningBroker) -> socket.socket:
    """A WebSocket at /mqtt that has not logged in, with a small receive buffer."""
    host, _, number = broker.url.rpartition("/")[2].partition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (host, int(number)))
    key = base64.b64encode(os.urandom(16)).decode()
    head = f"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
    head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    await loop.sock_sendall(connection, head.encode())
    assert (await loop.sock_recv(connection, 4_096)).startswith(b"HTTP/1.1 101")
    return connection


def test_unread_pongs_stop_the_reading_of_pings_before_login(tmp_path: Path) -> None:
    """The client sends pings in small pieces, slowly enough for its share of the time, and reads no pong."""
    pings = (b"\x89\xfd\0\0\0\0" + bytes(125)) * 60

    async def scenario() -> None:
        async with mqtt_broker(tmp_path, login_s=60.0) as (_, broker):
            assert broker.server.mqtt is not None
            hostile = await open_websocket(broker)
            (connection,) = broker.server.mqtt.process.connections.values()
            transport = connection._transport  # type: ignore[attr-defined]
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            with contextlib.suppress(TimeoutError):
                for _ in range(500):
                    async with asyncio.timeout(2.0):
                        await asyncio.get_running_loop().sock_sendall(hostile, pings)
                    await asyncio.sleep(0.004)
            assert transport.get_write_buffer_size() < 1 << 20
            hostile.close()

    asyncio.run(scenario())


def login(user: str, *scopes: str, **fields: Any) -> bytes:
    return written(packets.Connect(user, V5, username=user, password=token(user, *scopes).encode(), **fields), V5)


async def fill_share(broker: RunningBroker, flooding: RawClient, user: str) -> None:
    """Publish as `user` until the broker holds its messages back. No coordinator answers, so none reaches a home."""
    assert broker.server.mqtt is not None
    process = broker.server.mqtt.process
    flooding.writer.write(login(user, "send:#"))
    assert isinstance(await flooding.receive(), packets.ConnAck)
    flooding.writer.write(written(packets.Publish("x", bytes(1_000)), V5) * 1_000)
    await until(lambda: user in process._held)


def test_flood_of_one_publisher_leaves_room_for_other_users(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path, mqtt_waiting_bytes=400_000) as (_, broker), raw(broker) as eve:
            assert broker.server.mqtt is not None
            relay = broker.server.mqtt.process.relay
            await fill_share(broker, eve, "eve")
            assert relay.waiting_of["eve"] < 60_000
            async with raw(broker) as ann:
                ann.writer.write(login("ann", "send:#") + written(packets.Publish("y", b"1"), V5))
                assert isinstance(await ann.receive(), packets.ConnAck)
                await until(lambda: "ann" in relay.waiting_of)

    asyncio.run(scenario())


def test_pings_and_acknowledgements_overtake_messages_that_wait_for_homes(tmp_path: Path) -> None:
    """Several publishers fill the room of all users. A client that publishes, too, gets its results and its pings."""

    async def scenario() -> None:
        async with mqtt_broker(tmp_path, mqtt_waiting_bytes=100_000) as (cluster, broker):
            assert broker.server.mqtt is not None
            relay = broker.server.mqtt.process.relay
            async with contextlib.AsyncExitStack() as stack:
                for number in range(9):
                    await fill_share(broker, await stack.enter_async_context(raw(broker)), f"eve-{number}")
                assert relay.waiting_bytes > 100_000
                ann = await stack.enter_async_context(raw(broker))
                ann.writer.write(login("ann", "subscribe", "send:#", keep_alive_s=1))
                assert isinstance(await ann.receive(), packets.ConnAck)
                ann.writer.write(written(packets.Subscribe(1, [packets.Filter(FIRE, 1)]), V5))
                assert isinstance(await ann.receive(), packets.SubAck)
                ann.writer.write(written(packets.Publish("y", b"1"), V5))
                (identity,) = broker.core.state.backends
                cluster.execute("Reports", {identity: [row(1)]})
                result = await ann.receive()
                assert isinstance(result, packets.Publish)
                ann.writer.write(written(packets.PubAck(result.packet_id), V5) + b"\xc0\x00")
                assert isinstance(await ann.receive(), packets.PingResp)
                frontend = broker.core.state.subscribers["ann"].frontends[identity]
                await until(lambda: frontend.acked.offset > 0)
                assert "ann" not in relay.waiting_of, "the message itself waits"
                for number in list(relay._waiting):
                    relay.settle(number, None, "")
                await until(lambda: "ann" in relay.waiting_of)

    asyncio.run(scenario())


def test_client_that_is_not_read_is_not_ended_by_its_keep_alive(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path, mqtt_waiting_bytes=80_000) as (_, broker), raw(broker) as busy:
            assert broker.server.mqtt is not None
            process = broker.server.mqtt.process
            busy.writer.write(login("ann", "send:#", keep_alive_s=1))
            assert isinstance(await busy.receive(), packets.ConnAck)
            busy.writer.write(written(packets.Publish("x", bytes(1_000)), V5) * 1_000 + b"\xc0\x00")
            await until(lambda: "ann" in process._held)
            began_s = time.monotonic()
            await until(lambda: time.monotonic() - began_s > 2.5)
            while process.relay._waiting:
                for number in list(process.relay._waiting):
                    process.relay.settle(number, None, "")
                await asyncio.sleep(0.02)
            assert isinstance(await busy.receive(), packets.PingResp)

    asyncio.run(scenario())


def test_disconnect_behind_messages_that_wait_suppresses_the_will(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path, mqtt_waiting_bytes=80_000) as (_, broker):
            assert broker.server.mqtt is not None
            process = broker.server.mqtt.process
            will = packets.Will("will", b"gone", 0, False)
            async with raw(broker) as leaving:
                leaving.writer.write(login("ann", "send:#", will=will))
                assert isinstance(await leaving.receive(), packets.ConnAck)
                message = written(packets.Publish("x", bytes(1_000)), V5)
                leaving.writer.write(message * 20 + written(packets.Disconnect(), V5))
                await until(lambda: "ann" in process._held)
            accepted = 0

            def settle_all() -> bool:
                nonlocal accepted
                for number, (_, _, user) in list(process.relay._waiting.items()):
                    accepted += user == "ann"
                    process.relay.settle(number, None, "")
                return not process.core.state.connections and not process.relay._waiting

            await until(settle_all)
            assert accepted == 20, "every message was published, and no will"

    asyncio.run(scenario())


def test_subscribes_without_an_answer_are_bounded() -> None:
    bench = MqttBench(mqtt_subscriptions=10)
    client = bench.connected()
    bench.unready.add("a")
    for _ in range(10):
        assert client.subscribe("a") is None
    refused = client.subscribe("a")
    assert refused is not None
    assert refused.reasons == [Reason.QUOTA_EXCEEDED]
    bench.do(events.PatternReady("a"))
    assert len([packet for packet in client.got if isinstance(packet, packets.SubAck)]) == 11
    assert client.subscribe("a") is not None


def test_subscribe_costs_the_same_beside_many_that_wait() -> None:
    """Each SUBSCRIBE once looked at every other one that waited."""

    def took_s(waiting: int) -> float:
        bench = MqttBench(mqtt_subscriptions=20_000)
        client = bench.connected()
        bench.unready.add("a")
        for _ in range(waiting):
            client.subscribe("a")
        client.got.clear()
        began_s = time.process_time()
        for number in range(200):
            client.got.clear()
            client.subscribe(f"b/{number}")
        return time.process_time() - began_s

    assert min(took_s(4_000) for _ in range(3)) < 3 * min(took_s(1) for _ in range(3)) + 0.02


def test_listener_finds_clients_that_vanished(tmp_path: Path) -> None:
    """MQTT permits a keep-alive of 0: TCP itself finds that such a client is gone."""

    async def scenario() -> None:
        async with mqtt_broker(tmp_path) as (_, broker):
            reader, writer = await asyncio.open_connection("127.0.0.1", port(broker))
            assert broker.server.mqtt is not None
            process = broker.server.mqtt.process
            await until(lambda: process.connections)
            (connection,) = process.connections.values()
            accepted = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            writer.close()
            await reader.read()

    asyncio.run(scenario())
