"""The servers of `bench topics`: a coordinator with one broker, nats-server and mosquitto, all idle until measured.

Persistent topics have servers of their own: a broker whose topic has one replica, and nats-server with JetStream that
calls fsync before every acknowledgement (`sync_interval: always`, since version 2.10).
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from tocsin.benchmarks.shared.machine import find_program
from tocsin.benchmarks.shared.peers import await_port, free_port
from tocsin.benchmarks.shared.processes import child_process
from tocsin.benchmarks.shared.topic_clients import JetStreamClient

TOPIC = "bench/hot"
STORED = "bench/stored"
START_S = 30.0


@dataclass(frozen=True, slots=True)
class TopicServer:
    """A running server; its fields are those of a task of `topic_load`."""

    server: str
    process: int
    """The process whose CPU time counts."""
    port: int
    topic: str
    token: str = ""


@asynccontextmanager
async def topic_servers(folder: Path) -> AsyncIterator[list[TopicServer]]:
    """All servers that are installed, the broker first."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(_tocsin(folder / "tocsin"))]
        for peer in (_nats(folder), _mosquitto(folder)):
            server = await stack.enter_async_context(peer)
            servers += [] if server is None else [server]
        yield servers


@asynccontextmanager
async def persistent_servers(folder: Path) -> AsyncIterator[list[TopicServer]]:
    """The broker, and JetStream if nats-server is installed in a version that can fsync every message."""
    options = {"persistent": True, "replicas": 1, "quorum": 1}
    async with _tocsin(folder / "stored", STORED, options) as broker, _jetstream(folder) as peer:
        yield [broker] if peer is None else [broker, peer]


@asynccontextmanager
async def matching_broker(folder: Path, topics: Sequence[str]) -> AsyncIterator[TopicServer]:
    """The broker alone, home of these topics."""
    async with _tocsin(folder, topics[0], more=topics[1:]) as server:
        yield server


@asynccontextmanager
async def _tocsin(
    folder: Path,
    topic: str = TOPIC,
    options: Mapping[str, Any] = MappingProxyType({}),
    more: Sequence[str] = (),
) -> AsyncIterator[TopicServer]:
    import httpx

    from tocsin.runtime.stack.stack import Stack, StackSettings

    folder.mkdir()
    flags = {"topic-rate-per-s": "1000000"}  # a window of 100 messages passes the default limit of one connection
    own = StackSettings(folder, 1, free_ports=True, data_cluster=False, logs=folder, restart=False, broker=flags)
    stack = Stack(own)
    try:
        await stack.start()
        headers = {"Authorization": f"Bearer {stack.admin_token()}"}
        async with httpx.AsyncClient(base_url=stack.coordinator_url, headers=headers, timeout=START_S) as http:
            async with asyncio.timeout(START_S):
                # A persistent topic needs a broker that has reported its logs.
                while (created := await http.post("/v1/topics", json={"topic": topic, **options})).status_code == 503:
                    await asyncio.sleep(0.2)
            created.raise_for_status()
            for name in more:
                (await http.post("/v1/topics", json={"topic": name, **options})).raise_for_status()
            scopes = [f"{right}:{name}" for right in ("send", "receive") for name in (topic, *more)]
            granted = await http.post("/v1/tokens", json={"subject": "bench", "scopes": scopes})
            token = granted.raise_for_status().json()["token"]
            async with asyncio.timeout(START_S):
                while True:
                    [entry] = (await http.get("/v1/topics", params={"pattern": topic})).json()["topics"]
                    if entry["home"] is not None:
                        break
                    await asyncio.sleep(0.05)
        port = urlsplit(entry["address"]).port
        assert port is not None
        await asyncio.sleep(1.0)  # the home requests its lease
        process = stack.brokers[entry["home"]].pid
        assert process is not None
        yield TopicServer("tocsin", process, port, topic, token)
    finally:
        await stack.stop()


@asynccontextmanager
async def _nats(_folder: Path) -> AsyncIterator[TopicServer | None]:
    port = free_port()
    async with _peer("nats-server", "-a", "127.0.0.1", "-p", str(port)) as process:
        if process is not None:
            await _await_port(port)
        yield None if process is None else TopicServer("nats", process, port, "bench.hot")


@asynccontextmanager
async def _jetstream(folder: Path) -> AsyncIterator[TopicServer | None]:
    port = free_port()
    configuration = folder / "jetstream.conf"
    store = f'jetstream {{ store_dir: "{folder / "jetstream"}", sync_interval: always }}'
    configuration.write_text(f"listen: 127.0.0.1:{port}\n{store}\n", encoding="utf-8")
    path = find_program("nats-server")
    checked = None if path is None else subprocess.run((path, "-t", "-c", configuration), capture_output=True)
    if checked is None or checked.returncode:
        yield None
        return
    async with _peer("nats-server", "-c", str(configuration)) as process:
        assert process is not None
        await _await_port(port)
        server = TopicServer("jetstream", process, port, "bench.stored")
        JetStreamClient(asdict(server)).create_stream()
        yield server


@asynccontextmanager
async def _mosquitto(folder: Path) -> AsyncIterator[TopicServer | None]:
    port = free_port()
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nlog_type none\nset_tcp_nodelay true\n"
        "max_queued_messages 0\nmax_inflight_messages 0\n",
        encoding="utf-8",
    )
    async with _peer("mosquitto", "-c", str(configuration)) as process:
        if process is not None:
            await _await_port(port)
        yield None if process is None else TopicServer("mosquitto", process, port, TOPIC)


async def _await_port(port: int) -> None:
    _, writer = await await_port(port)
    writer.close()
    await writer.wait_closed()


@asynccontextmanager
async def _peer(program: str, *arguments: str) -> AsyncIterator[int | None]:
    """The process id of a running peer; None if it is not installed."""
    path = find_program(program)
    if path is None:
        yield None
        return
    quiet = asyncio.subprocess.DEVNULL
    async with child_process(path, *arguments, stdout=quiet, stderr=quiet) as process:
        yield process.pid
