"""The attackers of `bench hostile`: one subscriber, one publisher and one webhook, with valid tokens and bad manners.

`python -m tocsin.benchmarks.shared.hostile_clients FILE` is a process of its own with the lowest priority, so that its
CPU time takes nothing from the servers. FILE names addresses and tokens as JSON. The process prints a line when every
method has been used, attacks until its input ends, then prints as JSON how often it did what. Each attacker starts
again when a server ends its connection.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

SUBSCRIPTIONS = 300
"""Subscriptions of the hostile subscriber: they make each answer to `list` long."""
MODE_S = 3.0
"""Seconds after which an attacker changes its method."""
SILENT = 200
"""Connections that send nothing, or half a request."""
STALLED = 32
LATE_S = 60.0
BODY_BYTES = 8 << 20
PIECE = b" " * (256 << 10)

AT_ONCE = 500
"""Requests in one write."""
UNREAD = 5_000
"""Unread requests of one round. The kernel buffers hundreds of thousands; reading all answers would take minutes."""
METHODS = ("unread lists", "pings", "silent connections", "stalled bodies", "malformed bodies", "wrong records")
"""What subscriber and publisher do. Calls of the webhook come when records are published."""

Counts = Counter[str]


async def again_and_again(attack: Callable[[], Awaitable[None]]) -> None:
    """Repeat an attack; a closed connection or a refusal is what attackers expect."""
    while True:
        with suppress(OSError, EOFError, TimeoutError, ConnectionError):
            await attack()
        await asyncio.sleep(0.1)


# -- the subscriber ----------------------------------------------------------------------------------------------------


def subscriber(address: str, token: str, counts: Counts) -> Callable[[], Awaitable[None]]:
    """Sends `list` without reading the answers, then floods with `ping`; holds silent connections meanwhile."""
    host, port = address.removeprefix("ws://").split(":")

    async def attack() -> None:
        async with AsyncExitStack() as opened:
            await hold_silent_connections(opened, host, int(port), counts)
            session = await RawSession.open(host, int(port))
            opened.callback(session.close)
            await session.send({"op": "login", "id": 0, "token": token})
            await session.receive()
            for number in range(SUBSCRIPTIONS):
                parameters = {"kind": f"eve-{number:0100}"}
                await session.send({"op": "subscribe", "id": 1, "channel": "Hot", "parameters": parameters})
            for _ in range(SUBSCRIPTIONS):
                await session.receive()
            await flood(session, {"op": "list", "id": 2}, "unread lists", counts, reads=False, most=UNREAD)
            await flood(session, {"op": "ping", "id": 3}, "pings", counts, reads=True)

    return attack


class RawSession:
    """A session without a WebSocket library: many requests cost the attacker one write.

    The attacker runs on the same machine: CPU time that it takes delays the servers, and is not their fault.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> RawSession:
        reader, writer = await asyncio.open_connection(host, port)
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET /v1/session HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        return cls(reader, writer)

    async def send(self, request: dict[str, Any], times: int = 1) -> None:
        payload = json.dumps(request).encode()
        length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
        self._writer.write((b"\x81" + length + bytes(4) + payload) * times)  # masked with zeros
        await self._writer.drain()

    async def receive(self) -> bytes:
        """The next message; the broker sends each in one frame."""
        _, length = await self._reader.readexactly(2)
        if length >= 126:
            length = int.from_bytes(await self._reader.readexactly(2 if length == 126 else 8), "big")
        return await self._reader.readexactly(length)

    async def discard(self) -> None:
        while await self._reader.read(1 << 20):
            pass

    def close(self) -> None:
        self._writer.transport.abort()


async def flood(
    session: RawSession, request: dict[str, Any], name: str, counts: Counts, *, reads: bool, most: float = math.inf
) -> None:
    """Send a request as often as the broker takes it, at most `most` times. Without reading, it soon takes no more."""
    ends_s, first = time.monotonic() + MODE_S, counts[name]
    reading = asyncio.create_task(session.discard()) if reads else None
    try:
        while (left_s := ends_s - time.monotonic()) > 0:
            if counts[name] - first >= most:
                await asyncio.sleep(left_s)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await session.send(request, AT_ONCE)
                    counts[name] += AT_ONCE
    finally:
        if reading is not None:
            reading.cancel()


async def hold_silent_connections(opened: AsyncExitStack, host: str, port: int, counts: Counts) -> None:
    for number in range(SILENT):
        _, writer = await asyncio.open_connection(host, port)
        opened.callback(writer.close)
        writer.write((b"", b"GET /v1/ping HTTP/1.1\r\nX-Long: " + PIECE)[number % 2])
        counts["silent connections"] += 1


# -- the publisher -----------------------------------------------------------------------------------------------------


def publisher(address: str, token: str, counts: Counts) -> Callable[[], Awaitable[None]]:
    """Sends bodies that stall shortly before their end; malformed ones and ones full of wrong records in between."""
    host, port = address.removeprefix("http://").split(":")
    head = f"POST /v1/datasets/Facts/records HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"

    malformed = b'[{"id": 1}' + b" " * 200_000
    wrong = b"[" + b"1," * 99_000 + b"1]"

    async def stall() -> None:
        _, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {BODY_BYTES}\r\n\r\n[".encode())
            for _ in range(BODY_BYTES // len(PIECE) - 1):
                writer.write(PIECE)
                await writer.drain()
            counts["stalled bodies"] += 1
            await asyncio.sleep(4 * MODE_S)
        except ConnectionError:
            counts["stalled bodies refused"] += 1
            await asyncio.sleep(MODE_S)
        finally:
            writer.transport.abort()

    async def send(body: bytes, name: str) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.close()
        counts[name] += 1
        counts[f"{name} answered with {answer.split(maxsplit=2)[1].decode()}"] += 1

    async def attack() -> None:
        stalled = (again_and_again(stall) for _ in range(STALLED))
        others = (
            again_and_again(partial(send, body, name))
            for name, body in (("malformed bodies", malformed), ("wrong records", wrong))
        )
        await asyncio.gather(*stalled, *others)

    return attack


# -- the webhook -------------------------------------------------------------------------------------------------------


async def serve_webhook(counts: Counts) -> int:
    """An endpoint that consents, then answers with bodies without an end, or byte by byte; returns its port."""
    bomb = gzip.compress(bytes(64 << 20))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, asyncio.CancelledError):
            request = await reader.readuntil(b"\r\n\r\n")
            if request.startswith(b"OPTIONS"):
                writer.write(b"HTTP/1.1 200 OK\r\nWebHook-Allowed-Origin: *\r\nContent-Length: 0\r\n\r\n")
            else:
                counts["webhook calls"] += 1
                await (drip(writer) if counts["webhook calls"] % 5 == 4 else explode(writer))
            await writer.drain()
        writer.close()

    async def explode(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"%x\r\n" % len(bomb) + bomb + b"\r\n")
            await writer.drain()

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.2)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


async def register_webhook(broker: str, token: str, port: int) -> None:
    import httpx

    async with httpx.AsyncClient(base_url=broker.replace("ws", "http", 1), timeout=30) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        body = {"channel": "Hot", "parameters": {"kind": "0"}}
        (await client.post("/v1/subscriptions", json=body)).raise_for_status()
        answer = await client.put("/v1/webhook", json={"url": f"http://127.0.0.1:{port}/hook"})
        answer.raise_for_status()


# -- the process -------------------------------------------------------------------------------------------------------


async def attack(task: dict[str, str]) -> Counts:
    """Attack until the input ends."""
    counts: Counts = Counter()
    port = await serve_webhook(counts)
    await register_webhook(task["broker"], task["webhook_token"], port)
    attackers = [
        asyncio.create_task(again_and_again(method))
        for method in (
            subscriber(task["broker"], task["subscriber_token"], counts),
            publisher(task["cluster"], task["publisher_token"], counts),
        )
    ]
    while not all(counts[method] for method in METHODS):
        await asyncio.sleep(0.05)
    print("attacking", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    with suppress(TimeoutError):  # on a busy machine the first result may come late
        async with asyncio.timeout(LATE_S):
            while not counts["webhook calls"]:
                await asyncio.sleep(0.05)
    for attacker in attackers:
        attacker.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)
    return counts


def take_lowest_priority() -> None:
    """Let every other process go first. Linux may schedule sessions as groups, inside which alone `nice` counts: then
    the group of this process needs the lowest priority too."""
    os.nice(19)
    with suppress(OSError):
        os.setsid()
        Path("/proc/self/autogroup").write_text("19", encoding="ascii")


if __name__ == "__main__":
    take_lowest_priority()
    print(json.dumps(asyncio.run(attack(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))), flush=True)
