"""Unchanged MQTT clients against real brokers and a real coordinator: mosquitto's tools, paho-mqtt, aiomqtt."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.broker.mqtt.paho_properties import connect_properties, publish_properties
from tests.end_to_end.mqtt_conformance.client import ServerUnderTest
from tests.end_to_end.mqtt_network import TAKE_S, MqttNetwork, mqtt_network, output_of, until_line
from tocsin.broker.mqtt import packets
from tocsin.client import TopicMessage


@asynccontextmanager
async def client(network: MqttNetwork, number: int = 1, **options: Any) -> AsyncIterator[aiomqtt.Client]:
    login: dict[str, Any] = {"protocol": aiomqtt.ProtocolVersion.V5, "username": "ann", "password": network.token}
    async with aiomqtt.Client("127.0.0.1", network.port(number), **login | options) as connected:
        yield connected


async def take(connected: aiomqtt.Client, count: int) -> list[Any]:
    messages = []
    async with asyncio.timeout(TAKE_S):
        async for message in connected.messages:
            messages.append(message)
            if len(messages) == count:
                return messages
    raise AssertionError("the connection ended")


def test_unchanged_clients_work_with_topics_of_a_network(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_network(tmp_path) as network:
            await network.topics.create("test/a")
            for check in (
                check_mosquitto_tools,
                check_paho,
                check_aiomqtt_and_sdk,
                check_retained_messages,
                check_will,
                check_session,
                check_websocket,
                check_refusals,
                check_move_of_the_home,
                check_draining,
                check_death_of_the_home,
            ):
                await check(network)

    asyncio.run(scenario())


async def check_mosquitto_tools(network: MqttNetwork) -> None:
    """Every version and quality of service, between two brokers."""
    for version in ("mqttv311", "5"):
        arguments = ("-V", version, "-t", "test/#", "-q", "2", "-C", "3", "-F", "%t %q %p", "-d", "-W", "30")
        receiver = await network.mosquitto("mosquitto_sub", *arguments, number=2)
        await until_line(receiver, "Subscribed")
        for qos in "012":
            sent = ("-V", version, "-t", f"test/{version}", "-q", qos, "-m", f"hello {qos}")
            await output_of(await network.mosquitto("mosquitto_pub", *sent))
        received = [line for line in (await output_of(receiver)).splitlines() if line.startswith("test/")]
        assert received == [f"test/{version} {qos} hello {qos}" for qos in "012"]


async def check_paho(network: MqttNetwork) -> None:
    """A request and its response, by a client that runs its own thread."""
    loop = asyncio.get_running_loop()
    received: asyncio.Queue[Any] = asyncio.Queue()
    paho: Any = PahoClient(CallbackAPIVersion.VERSION2, "paho", protocol=MQTTProtocolVersion.MQTTv5)
    paho.username_pw_set("ann", network.token)
    paho.on_message = lambda client, data, message: loop.call_soon_threadsafe(received.put_nowait, message)
    paho.on_subscribe = lambda *answer: loop.call_soon_threadsafe(received.put_nowait, "subscribed")
    paho.on_connect = lambda *answer: paho.subscribe("test/reply", 1)
    paho.connect_async("127.0.0.1", network.port())
    paho.loop_start()
    try:
        async with asyncio.timeout(TAKE_S), client(network, 2) as other:
            assert await received.get() == "subscribed"
            await other.subscribe("test/request", 1)
            properties = publish_properties(ResponseTopic="test/reply", CorrelationData=b"7")
            paho.publish("test/request", b"question", 1, properties=properties)
            (request,) = await take(other, 1)
            answer = publish_properties(CorrelationData=request.properties.CorrelationData)
            await other.publish(request.properties.ResponseTopic, b"answer", 1, properties=answer)
            reply = await received.get()
            assert (reply.payload, reply.properties.CorrelationData) == (b"answer", b"7")
    finally:
        paho.disconnect()
        await asyncio.to_thread(paho.loop_stop)


async def check_aiomqtt_and_sdk(network: MqttNetwork) -> None:
    """MQTT clients and clients of our own share a topic; positions are those of the home."""
    wants = connect_properties(UserProperty=("tocsin-position", "on"))
    async with network.topics.client() as topics, client(network, 2, properties=wants) as receiver:
        await receiver.subscribe("test/+", 1)
        async with topics.subscribe("test/a") as subscription:
            await topics.publish("test/a", b"from the SDK")
            with_type = publish_properties(ContentType="text/plain")
            await receiver.publish("test/a", b"from MQTT", 1, properties=with_type)
            messages = await take(receiver, 2)
            assert [message.payload for message in messages] == [b"from the SDK", b"from MQTT"]
            seen = [await anext(subscription) for _ in range(2)]
    assert all(isinstance(item, TopicMessage) for item in seen)
    assert [item.data for item in seen if isinstance(item, TopicMessage)] == [b"from the SDK", b"from MQTT"]
    positions = [dict(message.properties.UserProperty)["tocsin-position"] for message in messages]
    assert positions == [str(item.position) for item in seen if isinstance(item, TopicMessage)]
    last = seen[1]
    assert isinstance(last, TopicMessage)
    assert last.properties is not None
    assert last.properties.content_type == "text/plain"


async def check_retained_messages(network: MqttNetwork) -> None:
    """A message that one broker retains reaches a later subscriber of another broker."""
    async with client(network, 1) as sender, client(network, 2) as receiver:
        await sender.publish("test/kept/1", b"kept", 1, retain=True)
        await asyncio.sleep(0.5)
        await receiver.subscribe("test/kept/#", 1)
        (message,) = await take(receiver, 1)
        assert (message.payload, message.retain) == (b"kept", True)
        await sender.publish("test/kept/1", b"", 1, retain=True)


async def check_will(network: MqttNetwork) -> None:
    async with client(network, 1) as watcher:
        await watcher.subscribe("test/will", 1)
        will = ("--will-topic", "test/will", "--will-payload", "gone", "--will-qos", "1")
        other = await network.mosquitto("mosquitto_sub", *will, "-t", "test/none", "-d", number=2)
        await until_line(other, "Subscribed")
        other.kill()
        await other.wait()
        (message,) = await take(watcher, 1)
        assert message.payload == b"gone"


async def check_session(network: MqttNetwork) -> None:
    """A session keeps messages while its client is away."""
    keeps = connect_properties(SessionExpiryInterval=60)
    session: dict[str, Any] = {"identifier": "keeper", "clean_start": False, "properties": keeps}
    async with client(network, 1, **session) as first:
        await first.subscribe("test/session", 1)
    async with client(network, 2) as sender:
        for number in range(3):
            await sender.publish("test/session", b"%d" % number, 1)
    async with client(network, 1, **session) as second:
        assert [message.payload for message in await take(second, 3)] == [b"0", b"1", b"2"]


async def check_websocket(network: MqttNetwork) -> None:
    """The same in a WebSocket with the subprotocol `mqtt`, at the broker's ordinary port."""
    port = int(network.url(2).rpartition(":")[2])
    loop = asyncio.get_running_loop()
    received: asyncio.Queue[Any] = asyncio.Queue()
    paho: Any = PahoClient(
        CallbackAPIVersion.VERSION2, "web", protocol=MQTTProtocolVersion.MQTTv311, transport="websockets"
    )
    paho.username_pw_set("ann", network.token)
    paho.ws_set_options("/mqtt")
    paho.on_message = lambda client, data, message: loop.call_soon_threadsafe(received.put_nowait, message.payload)
    paho.on_subscribe = lambda *answer: loop.call_soon_threadsafe(received.put_nowait, "subscribed")
    paho.on_connect = lambda *answer: paho.subscribe("test/web", 2)
    paho.connect_async("127.0.0.1", port)
    paho.loop_start()
    try:
        async with asyncio.timeout(TAKE_S):
            assert await received.get() == "subscribed"
            paho.publish("test/web", b"x" * 40_000, 2)
            assert await received.get() == b"x" * 40_000
    finally:
        paho.disconnect()
        await asyncio.to_thread(paho.loop_stop)
    with pytest.raises(Exception, match="400"):
        async with connect(f"{network.url(2)}/mqtt", subprotocols=[Subprotocol("chat")]):
            pass


async def check_refusals(network: MqttNetwork) -> None:
    """Tokens and their scopes decide."""
    with pytest.raises(aiomqtt.MqttError, match="Bad user name or password"):
        async with client(network, password="wrong"):
            pass
    narrow = await network.topics.token_for("receive:test/a", "send:test/b")
    async with client(network, password=narrow) as connected:
        refused = await connected.subscribe("test/b", 1)
        granted = await connected.subscribe("test/a", 1)
        assert [int(code.value) for code in (*refused, *granted)] == [0x87, 1]
        await connected.publish("test/b", b"allowed", 1)
    pub = await network.mosquitto("mosquitto_pub", "-V", "5", "-t", "other/x", "-q", "1", "-m", "x", "-d")
    data, _ = await pub.communicate()
    assert "RC:144" in data.decode(), "a topic that no prefix allows is refused as a name"


async def check_move_of_the_home(network: MqttNetwork) -> None:
    """Messages that a client publishes without waiting, while their topic moves, arrive once and in order."""
    tester = ServerUnderTest("127.0.0.1", network.port(1), "ann", network.token, "moving", 5)
    sender = await tester.connect("sender")
    async with client(network, 2) as receiver:
        await receiver.subscribe("test/a", 1)
        moving = asyncio.create_task(network.topics.move("test/a"))
        number = 0
        while not moving.done() or number < 500:
            number += 1
            assert number < 60_000, "the move takes too long"
            sender.send(packets.Publish("test/a", b"%d" % number, 1, packet_id=number))
            if number % 10 == 0:
                await asyncio.sleep(0.002)
            if number % 500 == 0:
                await sender.expect(packets.PubAck, number - 250)
        await moving
        await sender.expect(packets.PubAck, number)
        messages = await take(receiver, number)
        assert [int(message.payload) for message in messages] == list(range(1, number + 1))
        assert not any(hasattr(message.properties, "UserProperty") for message in messages), "there is no gap"
    await tester.close()


async def check_draining(network: MqttNetwork) -> None:
    """A draining broker names the other one, and takes clients again afterwards."""
    port = network.port(2)

    async def references() -> list[str]:
        """The server references in the answers to a new connection and to an open one."""
        tester = ServerUnderTest("127.0.0.1", port, "ann", network.token, "draining", 5)
        staying = await tester.connect("staying")
        answer = await network.topics.http.post("/v1/brokers/broker-2/drain", json={"on": True})
        assert answer.is_success, answer.text
        parting = await staying.expect(packets.Disconnect)
        late = await tester.raw()
        late.send(tester.connect_packet("late"))
        refused = await late.expect(packets.ConnAck)
        assert parting.reason == refused.reason == 0x9C
        await tester.close()
        return [packet.properties["server_reference"] for packet in (parting, refused)]

    assert await references() == [f"127.0.0.1:{network.port(1)}"] * 2
    await network.topics.http.post("/v1/brokers/broker-2/drain", json={"on": False})
    async with asyncio.timeout(TAKE_S):
        while True:
            try:
                async with client(network, 2):
                    return
            except aiomqtt.MqttError:
                await asyncio.sleep(0.2)


async def check_death_of_the_home(network: MqttNetwork) -> None:
    """The home dies: the client keeps its connection, its acknowledgements wait, and the gap is reported."""
    entry = await network.topics.until("test/a", lambda entry: entry["home"] is not None)
    home = str(entry["home"])
    alive = next(int(name.rpartition("-")[2]) for name in network.topics.stack.brokers if name != home)
    async with client(network, alive, timeout=TAKE_S) as connected:
        await connected.subscribe("test/a", 1)
        await connected.publish("test/a", b"before", 1)
        network.topics.stack.brokers[home].signal(signal.SIGKILL)
        await connected.publish("test/a", b"after", 1)
        before, after = await take(connected, 2)
        assert (before.payload, after.payload) == (b"before", b"after")
        (name, gap), *_ = after.properties.UserProperty
        assert name == "tocsin-gap"
        assert gap.endswith("-"), "how many messages the dead home accepted is not known"


def test_certificate_of_the_broker_serves_mqtt_too(tmp_path: Path) -> None:
    from tests.runtime.broker.running_broker import running_broker, token
    from tocsin.benchmarks.shared.certificate import make_certificate

    cert, key = make_certificate(tmp_path)

    async def scenario() -> None:
        keys = str(tmp_path / "keys.json")
        options: dict[str, Any] = {"coordinator": "http://127.0.0.1:9", "keys": keys, "mqtt_port": 0, "ca": cert}
        async with running_broker(tmp_path, "http://127.0.0.1:9", tls_cert=cert, tls_key=key, **options) as broker:
            assert broker.server.mqtt_address is not None
            host, _, port = broker.server.mqtt_address.rpartition(":")
            trusting = ssl.create_default_context(cafile=cert)
            login: dict[str, Any] = {"username": "ann", "password": token("ann", "send:#"), "tls_context": trusting}
            async with aiomqtt.Client(host, int(port), protocol=aiomqtt.ProtocolVersion.V5, **login):
                pass
            with pytest.raises(aiomqtt.MqttError):
                async with aiomqtt.Client(host, int(port), timeout=3):
                    pass

    asyncio.run(scenario())
