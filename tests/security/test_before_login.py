"""What a client without a token can make a server keep: connections, headers, requests in advance."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.runtime.broker.running_broker import (
    RunningBroker,
    broker_with_emulated_cluster,
    running_broker,
    token,
    until,
)
from tests.runtime.coordinator.harness import coordinator as running_coordinator
from tocsin.benchmarks.shared.certificate import make_certificate
from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.packets import V5
from tocsin.broker.mqtt.writing import written
from tocsin.runtime.broker.client_socket import LOGIN_BYTES
from tocsin.runtime.http.bounded_protocols import HEAD_BYTES, PIPELINED
from tocsin.runtime.http.listening import loop_factory
from tocsin.wire.topic_log import PATH as REPLICAS

LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def status_of(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        size = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
        await reader.readexactly(int(size.partition(b":")[2]))
    return int(head.split(b" ", 2)[1])


async def is_closed(reader: asyncio.StreamReader, limit_s: float = 10) -> bool:
    """True if the server closes the connection within the limit; skips what it sends before."""
    try:
        async with asyncio.timeout(limit_s):
            while await reader.read(65536):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


async def send_until_closed(writer: asyncio.StreamWriter, piece: bytes, limit_bytes: int) -> int:
    """Send the piece again and again until the server closes the connection; return how many bytes were sent."""
    sent = 0
    try:
        while sent < limit_bytes and not writer.transport.is_closing():
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    return sent


async def longest_pause_s(broker: RunningBroker, attack: asyncio.Task[int]) -> float:
    """The longest answer to `ping` of another session during the attack."""
    longest_s = 0.0
    async with broker.session("ann") as ann:
        while not attack.done():
            started_s = time.monotonic()
            assert (await ann.ask("ping"))["type"] == "pong"
            longest_s = max(longest_s, time.monotonic() - started_s)
    return longest_s


def test_header_without_an_end_is_refused_and_stalls_no_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path) as (broker, _),
            connection(port_of(broker.url)) as (reader, writer),
        ):
            writer.write(b"GET /v1/ping HTTP/1.1\r\nHost: b\r\nX-Long: ")
            attack = asyncio.create_task(send_until_closed(writer, b"x" * 65_536, 50 << 20))
            assert await longest_pause_s(broker, attack) < 5
            assert attack.result() < 20 << 20
            assert await is_closed(reader)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/ping HTTP/1.1\r\n" + b"X-A: b\r\n" * (HEAD_BYTES // 6) + b"\r\n",
        b"GET /v1/ping?" + b"x" * HEAD_BYTES + b" HTTP/1.1\r\nHost: b\r\n\r\n",
        b"GET /v1/ping HTTP/1.1\r\nX-Long: " + b"x" * HEAD_BYTES + b"\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X-A: b\r\n" * HEAD_BYTES + b"\r\n",
    ],
    ids=["many headers", "long address", "one long header", "trailers"],
)
def test_large_heads_are_refused(tmp_path: Path, head: bytes) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path) as (broker, _),
            connection(port_of(broker.url)) as (reader, writer),
        ):
            writer.write(head)
            with suppress(ConnectionError):  # the server closes while data is on its way
                assert await status_of(reader) in (431, 405)  # trailers may come after the request's answer
            assert await is_closed(reader, 5)

    asyncio.run(scenario())


def test_headers_up_to_the_limit_are_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path) as (broker, _),
            connection(port_of(broker.url)) as (reader, writer),
        ):
            writer.write(b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * (HEAD_BYTES - 1_000) + b"\r\n\r\n")
            assert await status_of(reader) == 200

    asyncio.run(scenario())


def test_requests_in_advance_are_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path) as (broker, _),
            connection(port_of(broker.url)) as (reader, writer),
        ):
            writer.write(HEALTH * (PIPELINED // 2))
            assert [await status_of(reader) for _ in range(PIPELINED // 2)] == [200] * (PIPELINED // 2)
            writer.write(HEALTH * 5_000)
            assert await is_closed(reader)

    asyncio.run(scenario())


def test_connection_stays_half_open_until_a_token_is_accepted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path, login_s=1) as (broker, _):
            half_open = broker.server.guard.half_open
            authorized = HEALTH.replace(b"/healthz", b"/v1/ping")[:-2] + b"Authorization: Bearer %b\r\n\r\n"
            async with connection(port_of(broker.url)) as (reader, writer):
                writer.write(HEALTH)
                assert await status_of(reader) == 200
                assert len(half_open) == 1
                writer.write(authorized % b"nonsense")
                assert await status_of(reader) == 401
                assert len(half_open) == 1
                writer.write(authorized % token("ann").encode())
                assert await status_of(reader) == 200
                assert len(half_open) == 0
                writer.write(HEALTH[:10])  # the next request begins, and never ends
                await until(lambda: len(half_open) == 1)
                assert await is_closed(reader)
            async with connection(port_of(broker.url)) as (reader, writer):
                asking = asyncio.create_task(send_until_closed(writer, HEALTH, 1 << 30))
                assert await is_closed(reader)
                asking.cancel()
            await until(lambda: len(half_open) == 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("loop", [None, loop_factory()], ids=["asyncio", "uvloop"])
def test_silent_tls_connections_are_half_open(tmp_path: Path, loop: LoopFactory) -> None:
    """A connection counts before its TLS handshake; a client that shakes hands is served beside them."""

    async def scenario() -> None:
        certificate, key = make_certificate(tmp_path)
        settings = {"tls_cert": certificate, "tls_key": key, "half_open": 10, "login_s": 2, "mqtt_port": 0}
        settings |= {"coordinator": "http://127.0.0.1:9", "keys": str(tmp_path / "keys.json")}
        async with running_broker(tmp_path, "http://127.0.0.1:9", **settings) as broker, AsyncExitStack() as opened:
            server = broker.server
            assert server.mqtt_address is not None
            for address in (server.address, server.mqtt_address):
                silent = [await opened.enter_async_context(connection(port_of(address))) for _ in range(50)]
                assert len(server.guard.half_open) <= 10
                trusted = ssl.create_default_context(cafile=certificate)
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(address), ssl=trusted)
                if address == server.address:
                    writer.write(HEALTH)
                    assert await status_of(reader) == 200
                writer.close()
                for silent_reader, _ in silent:
                    assert await is_closed(silent_reader)
            await until(lambda: len(server.guard.half_open) == 0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


def test_long_frame_of_a_stranger_is_refused_at_topics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, _):
            address = f"{broker.server.address}/v1/topics"
            async with connect(address, subprotocols=[Subprotocol("tocsin.json")]) as stranger:
                with suppress(ConnectionClosed):
                    await stranger.send("x" * (LOGIN_BYTES + 1))
                await stranger.wait_closed()
                assert stranger.close_code == 1009

    asyncio.run(scenario())


def test_strangers_are_not_read_while_their_token_is_checked(tmp_path: Path) -> None:
    """No coordinator answers, so the key of the token cannot be fetched yet."""

    async def scenario() -> None:
        settings = {"coordinator": "http://127.0.0.1:9", "mqtt_port": 0, "login_s": 3}
        async with running_broker(tmp_path, "http://127.0.0.1:9", **settings) as broker:
            asked = asyncio.Event()

            async def fetch_for_ever(*arguments: object, **named: object) -> None:
                asked.set()
                await asyncio.sleep(60)

            broker.server.keys.claims = fetch_for_ever  # type: ignore[method-assign]
            assert broker.server.mqtt_address is not None
            upgrade = (
                f"GET {REPLICAS} HTTP/1.1\r\nHost: b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                f"Sec-WebSocket-Protocol: tocsin.msgpack\r\nAuthorization: Bearer {token('b2')}\r\n\r\n"
            ).encode()
            login = written(packets.Connect("a", V5, username="ann", password=token("ann").encode()), V5)
            for address, first in ((broker.server.address, upgrade), (broker.server.mqtt_address, login)):
                asked.clear()
                async with connection(port_of(address)) as (_, writer):
                    writer.write(first)
                    await asked.wait()
                    sent = 0
                    while sent < 64 << 20:
                        writer.write(bytes(1 << 20))
                        try:
                            async with asyncio.timeout(0.5):
                                await writer.drain()
                        except (TimeoutError, ConnectionError):
                            break
                        sent += 1 << 20
                    writer.transport.abort()
                    assert sent < 32 << 20, "the buffers of the kernel take some of it"

    asyncio.run(scenario())


def test_coordinator_closes_connections_without_a_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            running_coordinator(tmp_path, login_s=3) as coordinator,
            connection(port_of(coordinator.url)) as (reader, writer),
            connection(port_of(coordinator.url)) as (silent, _),
        ):
            writer.write(HEALTH)
            assert await status_of(reader) == 200
            assert await is_closed(reader) and await is_closed(silent)
            async with connection(port_of(coordinator.url)) as (long_reader, long_writer):
                long_writer.write(b"GET / HTTP/1.1\r\nX-Long: " + b"x" * (HEAD_BYTES + 1_000) + b"\r\n\r\n")
                assert await status_of(long_reader) == 431

    asyncio.run(scenario())
