"""`tocsin bench fanout`: one hot subscription, many sessions; the same deliveries through nats-server and mosquitto.

The broker is the real process. Results of about 300 bytes come in bursts: for the broker one execution each, announced
and pulled as from the data cluster (an emulation answers from memory: what Spark costs is not the question); for the
other two the same number of messages in one write. All three are kept equally far ahead of the same sink, which counts
the same mark in each result. CPU time is the server process's own, user and system.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import typer

PUBLISH_AHEAD = 4
"""Bursts on their way: enough to keep a server busy, too few to fill its buffers."""
WARM_UP = 0.1
"""Share of the results that is delivered before the clock starts."""
_TICK_S = 0.01
"""The kernel counts CPU time in these."""
_DIRECTORIES = ("/usr/sbin", "/usr/local/sbin")


def register(app: typer.Typer) -> None:
    @app.command("fanout")
    def fanout(
        sessions: int = typer.Option(1000, help="Subscribers of the one subscription."),
        results: int = typer.Option(2000, help="Results each of them gets."),
        burst: int = typer.Option(20, help="Results in one execution, messages in one publisher's write."),
        size_bytes: int = typer.Option(300, help="Bytes of a result."),
        as_json: bool = typer.Option(False, "--json", help="End with one JSON object."),
    ) -> None:
        """Deliveries per CPU second of a broker, nats-server and mosquitto."""
        from tocsin.benchmarks.shared.harness import finish

        finish(asyncio.run(measure(sessions, results, burst, size_bytes)), as_json)


async def measure(sessions: int, results: int, burst: int, size_bytes: int) -> dict[str, Any]:
    from tocsin.benchmarks.shared.harness import announce

    work = Work(sessions, results, burst, size_bytes)
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        own = await _broker(work, Path(folder))
        announce(_line("broker", own))
        peers: dict[str, dict[str, Any]] = {}
        for name, run in (("nats", _nats), ("mosquitto", _mosquitto)):
            found = await run(work, Path(folder))
            if found is None:
                announce(f"{name}: not installed")
                continue
            peers[name] = found
            announce(
                f"{name}: {found['deliveries_per_cpu_s']:,.0f} deliveries/CPU s, {found['deliveries_per_s']:,.0f}/s"
            )
    ratios = {
        f"ratio_{name}": own["deliveries_per_cpu_s"] / peers[name]["deliveries_per_cpu_s"] if name in peers else None
        for name in ("nats", "mosquitto")
    }
    return own | {"peers": peers} | ratios | {
        "sessions": sessions, "results": results, "burst": burst, "result_bytes": len(work.row(0)), "correct": True,
    }  # fmt: skip


def _line(name: str, measured: dict[str, Any]) -> str:
    return f"{name}: {measured['deliveries_per_cpu_s']:,.0f} deliveries/CPU s, {measured['deliveries_per_s']:,.0f}/s"


class Work:
    """The same for every server."""

    def __init__(self, sessions: int, results: int, burst: int, size_bytes: int) -> None:
        self.sessions = sessions
        self.bursts = max(1, results // burst)
        self.burst = burst
        self._filling = "x" * max(0, size_bytes - 33)

    def row(self, number: int) -> bytes:
        return b'{"mark":"%010d","text":"%b"}' % (number, self._filling.encode())

    def rows(self, burst: int) -> list[bytes]:
        return [self.row(burst * self.burst + place) for place in range(self.burst)]

    async def run(
        self, process: int, delivered: Callable[[], int], publish: Callable[[int], Awaitable[None]]
    ) -> dict[str, Any]:
        """Publish as fast as the sink counts, and time what comes after the warm-up."""
        import psutil

        server = psutil.Process(process)
        first = max(1, int(self.bursts * WARM_UP))
        started_s = cpu_s = 0.0
        before = 0
        for burst in range(self.bursts):
            if burst == first:
                await self._until(delivered, first * self.burst * self.sessions)
                started_s, cpu_s, before = time.perf_counter(), _cpu_s(server), delivered()
            await self._until(delivered, max(0, burst - PUBLISH_AHEAD) * self.burst * self.sessions)
            await publish(burst)
        await self._until(delivered, self.bursts * self.burst * self.sessions)
        taken_s, count = time.perf_counter() - started_s, delivered() - before
        used_s = max(_TICK_S, _cpu_s(server) - cpu_s)
        return {
            "deliveries_per_cpu_s": count / used_s,
            "deliveries_per_s": count / taken_s,
            "cpu_s": used_s,
            "deliveries": count,
        }

    async def _until(self, delivered: Callable[[], int], count: int) -> None:
        deadline_s = time.perf_counter() + 120
        while (now := delivered()) < count:
            if time.perf_counter() > deadline_s:
                raise RuntimeError(f"only {now:,} of {count:,} deliveries arrived")
            await asyncio.sleep(0.0005)


def _cpu_s(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@asynccontextmanager
async def sink(folder: Path, **given: Any) -> AsyncIterator[Callable[[], int]]:
    """A sink whose sockets are connected; yields what it has counted."""
    file = folder / "counter"
    file.write_bytes(bytes(8))
    with file.open("r+b") as opened:
        counter = mmap.mmap(opened.fileno(), 8)
    order = folder / "sink.json"
    order.write_text(json.dumps(given | {"counter": str(file)}), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tocsin.benchmarks.shared.sink", str(order),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    if (await process.stdout.readline()).strip() != b"ready":
        raise RuntimeError("the sink could not connect")
    try:
        yield lambda: int(struct.unpack("<q", counter[:8])[0])
        if process.returncode is not None:
            raise RuntimeError("the sink found something wrong")
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def broker_process(folder: Path, cluster_url: str, **settings: Any) -> AsyncIterator[tuple[int, int]]:
    """`tocsin broker` with a key of the benchmark's own; yields its process id and port."""
    given = {"cluster": cluster_url, "keys": folder / "keys.json", "state": folder} | settings
    flags = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from tocsin.cli.main import main; main()", "broker", "--port", "0", "--json",
        "--log-level", "warning", *flags, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        started = json.loads(await process.stdout.readline())
        yield process.pid, int(started["address"].rpartition(":")[2])
    finally:
        process.terminate()
        await process.wait()


def write_tokens(folder: Path, count: int) -> Path:
    """One for each subscriber, and the key to check them with."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from tocsin.runtime.http.credentials import Signer

    signer = Signer(Ed25519PrivateKey.generate())
    (folder / "keys.json").write_text(json.dumps(signer.jwks()), encoding="utf-8")
    path = folder / "tokens"
    now_s = time.time()
    tokens = (
        signer.sign(f"s{number}", ["subscribe"], now_s=now_s, identity=str(number), lifetime_s=7200)
        for number in range(count)
    )
    path.write_text("\n".join(tokens), encoding="utf-8")
    return path


async def _broker(work: Work, folder: Path) -> dict[str, Any]:
    from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
    from tocsin.benchmarks.shared.sink import TOPIC

    tokens = write_tokens(folder, work.sessions)
    wanted = {"channel": TOPIC, "parameters": {"kind": "hot"}}
    async with (
        EmulatedCluster(TOPIC) as cluster,
        broker_process(folder, cluster.url, id="bench") as (process, port),
        sink(folder, kind="broker", port=port, tokens=str(tokens), subscriptions=[[wanted]]) as delivered,
    ):
        [subscription] = cluster.held["bench"]

        async def publish(burst: int) -> None:
            cluster.execute(TOPIC, {subscription: work.rows(burst)})

        return await work.run(process, delivered, publish)


@asynccontextmanager
async def _server(name: str, *arguments: str) -> AsyncIterator[int | None]:
    path = shutil.which(name) or next((f"{one}/{name}" for one in _DIRECTORIES if Path(one, name).exists()), None)
    if path is None:
        yield None
        return
    process = await asyncio.create_subprocess_exec(
        path, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


async def _connected(port: int) -> asyncio.StreamWriter:
    for _ in range(200):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.transport.set_write_buffer_limits(high=1 << 20)
        _discarding.add(task := asyncio.create_task(_discard(reader)))
        task.add_done_callback(_discarding.discard)
        return writer
    raise RuntimeError(f"nothing listens on port {port}")


_discarding: set[asyncio.Task[None]] = set()


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


async def _nats(work: Work, folder: Path) -> dict[str, Any] | None:
    from tocsin.benchmarks.shared.sink import TOPIC

    port = _free_port()
    async with _server("nats-server", "-a", "127.0.0.1", "-p", str(port)) as process:
        if process is None:
            return None
        publisher = await _connected(port)
        publisher.write(b'CONNECT {"verbose":false}\r\n')
        async with sink(folder, kind="nats", port=port, sessions=work.sessions) as delivered:

            async def publish(burst: int) -> None:
                for row in work.rows(burst):
                    publisher.write(b"PUB %b %d\r\n%b\r\n" % (TOPIC.encode(), len(row), row))
                await publisher.drain()

            measured = await work.run(process, delivered, publish)
        publisher.close()
        return measured


async def _mosquitto(work: Work, folder: Path) -> dict[str, Any] | None:
    from tocsin.benchmarks.shared.sink import TOPIC

    port = _free_port()
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nlog_type none\n", encoding="utf-8"
    )
    async with _server("mosquitto", "-c", str(configuration)) as process:
        if process is None:
            return None
        publisher = await _connected(port)
        publisher.write(b"\x10\x0f\0\x04MQTT\x04\x02\0\0\0\x03pub")
        async with sink(folder, kind="mosquitto", port=port, sessions=work.sessions) as delivered:

            async def publish(burst: int) -> None:
                for row in work.rows(burst):
                    body = struct.pack("!H", len(TOPIC)) + TOPIC.encode() + row
                    publisher.write(b"\x30" + _length(len(body)) + body)
                await publisher.drain()

            measured = await work.run(process, delivered, publish)
        publisher.close()
        return measured


def _length(size: int) -> bytes:
    """MQTT's variable length."""
    found = b""
    while True:
        size, digit = divmod(size, 128)
        found += bytes((digit | (0x80 if size else 0),))
        if not size:
            return found


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
