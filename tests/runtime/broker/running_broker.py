"""A broker process on the test's own loop with an emulated data cluster, and subscribers that connect to it."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
from tocsin.runtime.broker.server import BrokerServer
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.http.settings import load_settings

SIGNER = Signer(Ed25519PrivateKey.generate())


def token(subscriber: str, *scopes: str, lifetime_s: float | None = 600, **more: Any) -> str:
    return SIGNER.sign(
        subscriber, scopes or ("subscribe",), now_s=time.time(), identity="test", lifetime_s=lifetime_s, **more
    )


def row(number: int, size_bytes: int = 0) -> bytes:
    return json.dumps({"n": number, "text": "x" * size_bytes}).encode()


class ConnectedSubscriber:
    """A subscriber with a connection. An answer carries the id of its request; a pushed message has none."""

    def __init__(self, socket: ClientConnection, *, msgpack: bool = False) -> None:
        self.socket = socket
        self._msgpack = msgpack
        self._numbers = itertools.count(1)
        self.pushed: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            data = await self.socket.recv()
        message: dict[str, Any] = msgspec.msgpack.decode(data) if isinstance(data, bytes) else json.loads(data)
        return message.get("data", message) if "specversion" in message else message

    async def send(self, **request: Any) -> int:
        number = request.setdefault("id", next(self._numbers))
        encoded = msgspec.msgpack.encode(request) if self._msgpack else json.dumps(request)
        await self.socket.send(encoded)
        return int(number)

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return its answer; keep the messages pushed in between."""
        number = await self.send(op=op, **fields)
        while True:
            message = await self.receive()
            if message.get("id") == number and message["type"] != "result":
                return message
            self.pushed.append(message)

    async def push(self, kind: str) -> dict[str, Any]:
        """Return the next pushed message of this kind and keep the others."""
        for index, message in enumerate(self.pushed):
            if message["type"] == kind:
                return self.pushed.pop(index)
        while True:
            message = await self.receive()
            if message["type"] == kind:
                return message
            self.pushed.append(message)

    async def results(self, count: int) -> list[int]:
        return [(await self.push("result"))["result"]["n"] for _ in range(count)]

    async def subscribe(self, kind: str = "fire", **more: Any) -> dict[str, Any]:
        answer = await self.ask("subscribe", channel="Reports", parameters={"kind": kind}, **more)
        assert answer["type"] == "subscribed", answer
        held: dict[str, Any] = answer["held"]
        return held


class RunningBroker:
    def __init__(self, server: BrokerServer, task: asyncio.Task[None]) -> None:
        self.server = server
        self.task = task
        self.address = server.address
        self.url = server.address.replace("ws", "http", 1)

    @asynccontextmanager
    async def connection(self, *, protocol: str | None = None, **options: Any) -> AsyncIterator[ConnectedSubscriber]:
        protocols = None if protocol is None else [Subprotocol(protocol)]
        async with connect(
            f"{self.address}/v1/session", subprotocols=protocols, compression=None, close_timeout=1, **options
        ) as socket:
            yield ConnectedSubscriber(socket, msgpack=protocol == "tocsin.msgpack")

    @asynccontextmanager
    async def session(
        self, name: str, *, protocol: str | None = None, **login: Any
    ) -> AsyncIterator[ConnectedSubscriber]:
        async with self.connection(protocol=protocol) as subscriber:
            answer = await subscriber.ask("login", token=token(name), **login)
            assert answer["type"] == "logged_in", answer
            yield subscriber

    @property
    def core(self) -> Any:
        return self.server.process.core


@asynccontextmanager
async def running_broker(folder: Path, cluster: str, **settings: Any) -> AsyncIterator[RunningBroker]:
    keys = folder / "keys.json"
    keys.write_text(json.dumps(SIGNER.jwks()), encoding="utf-8")
    given: dict[str, Any] = {"id": "b1", "port": 0, "cluster": cluster, "state": str(folder), "stop_s": 1} | settings
    if "coordinator" not in given:
        given["keys"] = str(keys)
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = BrokerServer(load_settings(BrokerSettings, given, {}), started.set_result)
    task = asyncio.create_task(server.run())
    await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    try:
        yield RunningBroker(server, task)
    finally:
        server.stop()
        await task


@asynccontextmanager
async def broker_with_emulated_cluster(
    folder: Path, **settings: Any
) -> AsyncIterator[tuple[RunningBroker, EmulatedCluster]]:
    async with EmulatedCluster("Reports") as cluster, running_broker(folder, cluster.url, **settings) as broker:
        yield broker, cluster


async def until(condition: Any, limit_s: float = 10) -> Any:
    """Wait until the condition is true and return its value; fail after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, "the condition did not become true in time"
        await asyncio.sleep(0.01)
    return value
