"""Topic connections to a broker process: handshake, login, encodings and limits."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tests.runtime.broker.running_broker import RunningBroker, running_broker, token
from tocsin.broker.topics.events import CoordinatorMessageReceived, Ticked
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire
from tocsin.wire.topic_link import LeaseRenewed, OwnedTopic, OwnTopics

T = TopicName("a/b")
NO_CLUSTER = "http://127.0.0.1:9"
_decoder = msgspec.json.Decoder(wire.ToClient)


class TopicClient:
    def __init__(self, socket: ClientConnection, *, msgpack: bool = False) -> None:
        self.socket = socket
        self._msgpack = msgpack

    async def send(self, request: wire.FromClient) -> None:
        encoded = msgspec.msgpack.encode(request) if self._msgpack else msgspec.json.encode(request).decode()
        await self.socket.send(encoded)

    async def receive(self) -> wire.ToClient:
        """The next message that is not a heartbeat."""
        while True:
            async with asyncio.timeout(10):
                frame = await self.socket.recv()
            message: wire.ToClient = (
                msgspec.msgpack.decode(frame, type=wire.ToClient)
                if isinstance(frame, bytes)
                else _decoder.decode(frame)
            )
            if not isinstance(message, wire.Beat):
                return message

    async def ask(self, request: wire.FromClient) -> wire.ToClient:
        await self.send(request)
        return await self.receive()

    async def closed(self) -> int:
        with pytest.raises(ConnectionClosed):
            while True:
                await self.receive()
        assert self.socket.close_code is not None
        return self.socket.close_code


@asynccontextmanager
async def home(folder: Path, **settings: Any) -> AsyncIterator[RunningBroker]:
    """A broker that is home of one topic, as if a coordinator had assigned it."""
    async with running_broker(folder, NO_CLUSTER, **settings) as broker:
        topics = broker.server.topics
        topics.happened(CoordinatorMessageReceived(OwnTopics([OwnedTopic(T, 1)])))
        topics.happened(Ticked())
        topics.happened(CoordinatorMessageReceived(LeaseRenewed(1, 600.0)))
        yield broker


@asynccontextmanager
async def connected(
    broker: RunningBroker, *scopes: str, msgpack: bool = False, login: bool = True
) -> AsyncIterator[TopicClient]:
    protocols = [Subprotocol("tocsin.msgpack" if msgpack else "tocsin.json")]
    async with connect(f"{broker.address}/v1/topics", subprotocols=protocols, close_timeout=1) as socket:
        client = TopicClient(socket, msgpack=msgpack)
        if login:
            answer = await client.ask(wire.Login(1, token("ann", *(scopes or ("send:#", "receive:#")))))
            assert isinstance(answer, wire.LoggedIn), answer
        yield client


@pytest.mark.parametrize("msgpack", [False, True])
def test_published_messages_arrive_in_both_encodings(tmp_path: Path, msgpack: bool) -> None:
    async def scenario() -> None:
        async with (
            home(tmp_path) as broker,
            connected(broker) as sender,
            connected(broker, msgpack=msgpack) as receiver,
        ):
            attached = await receiver.ask(wire.AttachReceiver(2, T))
            assert attached == wire.ReceiverAttached(2, 1, 1, 0, since=1)
            assert await sender.ask(wire.AttachSender(2, T, 7)) == wire.SenderAttached(2, 1, 1)
            assert await sender.ask(wire.Publish(1, 1, [b"a", b"\xff\x00"])) == wire.Acknowledged(1, 2)
            messages = await receiver.receive()
            assert isinstance(messages, wire.Messages)
            assert [entry[1:] for entry in messages.messages] == [(1, b"a"), (2, b"\xff\x00")]

    asyncio.run(scenario())


def test_json_carries_the_bytes_as_base64(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with home(tmp_path) as broker, connected(broker) as client:
            await client.ask(wire.AttachReceiver(2, T))
            await client.ask(wire.AttachSender(3, T, 7))
            data = base64.b64encode(b"\x00x").decode()
            await client.socket.send(json.dumps({"op": "publish", "at": 1, "number": 1, "messages": [data]}))
            frame = json.loads(await client.socket.recv())
            assert frame["messages"][0][2] == data

    asyncio.run(scenario())


def test_token_without_topic_scope_and_other_tokens_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with home(tmp_path) as broker:
            for text, code in ((token("ann", "subscribe"), "forbidden"), ("nonsense", "unauthenticated")):
                async with connected(broker, login=False) as client:
                    refused = await client.ask(wire.Login(1, text))
                    assert isinstance(refused, wire.Refused)
                    assert refused.code == code
                    assert await client.closed() == 4401

    asyncio.run(scenario())


def test_request_before_login_and_malformed_requests_close_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with home(tmp_path) as broker:
            async with connected(broker, login=False) as client:
                await client.send(wire.Ping(1))
                assert await client.closed() == 4400
            async with connected(broker) as client:
                await client.socket.send('{"op":"publish"}')
                assert await client.closed() == 4400

    asyncio.run(scenario())


def test_frame_above_the_limit_closes_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            home(tmp_path, topic_message_bytes=100, topic_frame_bytes=1000) as broker,
            connected(broker) as client,
        ):
            await client.send(wire.Publish(1, 1, [b"x" * 2000]))
            assert await client.closed() == 1009

    asyncio.run(scenario())


def test_sessions_and_other_paths_are_served_beside_topics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with home(tmp_path) as broker:
            async with broker.session("ann") as subscriber:
                assert (await subscriber.ask("ping"))["type"] == "pong"
            with pytest.raises(InvalidStatus):
                async with connect(f"{broker.address}/v1/topicsx"):
                    pass
            with pytest.raises(InvalidStatus):
                async with connect(f"{broker.address}/v1/topics", subprotocols=[Subprotocol("cloudevents.json")]):
                    pass

    asyncio.run(scenario())


def test_consumer_that_does_not_read_gets_a_gap_and_delays_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = {"topic_queue_bytes": 50_000, "topic_recent_bytes": 50_000, "topic_message_bytes": 10_000}
        async with (
            home(tmp_path, **limits) as broker,
            connected(broker, msgpack=True) as sender,
            connected(broker, msgpack=True) as slow,
            connected(broker, msgpack=True) as quick,
        ):
            for client in (slow, quick):
                await client.ask(wire.AttachReceiver(2, T))
            await sender.ask(wire.AttachSender(2, T, 7))
            slow.socket.transport.pause_reading()
            count = 2_000
            for number in range(1, count + 1):
                assert await sender.ask(wire.Publish(1, number, [b"x" * 10_000])) == wire.Acknowledged(1, number)
                received = await quick.receive()
                assert isinstance(received, wire.Messages)
                assert received.sequence == number
            slow.socket.transport.resume_reading()
            position, gaps = 0, 0
            while position < count:
                message = await slow.receive()
                if isinstance(message, wire.Gap):
                    assert message.first == position + 1
                    position, gaps = message.last, gaps + 1
                else:
                    assert isinstance(message, wire.Messages)
                    assert message.sequence == position + 1
                    position += len(message.messages)
            assert gaps

    asyncio.run(scenario())


def test_revoked_and_expired_tokens_end_topic_connections(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with home(tmp_path) as broker, connected(broker) as client:
            broker.server.topics.end_revoked(lambda claims: claims.subject == "ann")
            closing = await client.receive()
            assert isinstance(closing, wire.Closing)
            assert closing.code == "revoked"
            assert await client.closed() == 4403

    asyncio.run(scenario())
