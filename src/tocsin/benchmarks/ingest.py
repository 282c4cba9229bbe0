"""`tocsin bench ingest`: durable acknowledgements a second over HTTP, beside plain parse-and-append.

Publishers in a process of their own post bodies of keyed emergency reports over several connections; the server checks
every field, removes repeats, appends, fsyncs and answers. The measure beside it parses the same bodies with the same
JSON library, appends them to a file and calls fsync as often as the server did for the same bodies.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from typing import Any

import typer

APPLICATION = """
CREATE STREAM DATASET Reports (report_id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, message STRING,
  reported_at TIMESTAMP) KEY (report_id) RETAIN 7 DAYS;
"""


def register(app: typer.Typer) -> None:
    @app.command("ingest")
    def ingest(
        records: int = typer.Option(400_000, help="Records in each round."),
        batch: int = typer.Option(500, help="Records in a request."),
        connections: int = typer.Option(8, help="Requests on their way at the same time."),
        rounds: int = typer.Option(5, help="Measured rounds, after one that warms up."),
        as_json: bool = typer.Option(False, "--json", help="End with one JSON object."),
    ) -> None:
        """Post records over HTTP and count durable acknowledgements."""
        from tocsin.benchmarks.shared.harness import finish
        from tocsin.runtime.http.listening import loop_factory
        from tocsin.runtime.http.logs import configure_logs

        configure_logs("error")
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            finish(runner.run(measure(records, batch, connections, rounds)), as_json)


async def measure(records: int, batch: int, connections: int, rounds: int) -> dict[str, Any]:
    from tocsin.benchmarks.shared.harness import announce, declare
    from tocsin.cluster.feed.feedlog import FeedLog
    from tocsin.cluster.server.server import ClusterServer
    from tocsin.cluster.server.settings import ClusterProcessSettings
    from tocsin.runtime.http.settings import load_settings

    syncs = 0
    original = FeedLog.sync

    def counted(self: FeedLog, *args: Any) -> int:
        nonlocal syncs
        syncs += 1
        return original(self, *args)

    up: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
    acked: list[float] = []
    raw: list[float] = []
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as root:
        # A backlog as large as the benchmark: it measures the gateway, not how fast two cores also fill the dataset.
        flags = {"root": root, "port": 0, "token_file": False, "backlog_bytes": 1 << 40}
        settings = load_settings(ClusterProcessSettings, flags, {})
        server = ClusterServer(settings, lambda *known: up.set_result(known))
        serving = asyncio.create_task(server.run())
        try:
            await asyncio.wait((serving, up), return_when=asyncio.FIRST_COMPLETED)
            address, token = await up
            await asyncio.to_thread(declare, server.process.cluster, APPLICATION)
            setattr(FeedLog, "sync", counted)  # noqa: B010  a method is replaced on purpose
            # Ingestion competes for the same cores: it is held back at first, so that the gateway is what is measured.
            live = server.process.cluster.dataset("Reports")
            live.query = _Held()  # type: ignore[assignment]
            for number in range(rounds + 1):
                syncs = 0
                took_s = await _post(address, token or "", number, records, batch, connections)
                raw_s = await asyncio.to_thread(_parse_and_append, number, records, batch, max(1, syncs), root)
                announce(f"{records / took_s:,.0f} acknowledged, {records / raw_s:,.0f} raw records/s, {syncs} syncs")
                if number:
                    acked.append(records / took_s)
                    raw.append(records / raw_s)
            live.query = None
            await asyncio.to_thread(server.process.cluster.datasets.start_ingestion, "Reports")
            busy_s = await _post(address, token or "", rounds + 1, records, batch, connections)
            announce(f"{records / busy_s:,.0f} acknowledged records/s while Spark fills the dataset")
        finally:
            setattr(FeedLog, "sync", original)  # noqa: B010
            server.stop()
            await serving
    return {
        "acked_records_per_s": statistics.median(acked),
        "raw_write_records_per_s": statistics.median(raw),
        # Of pairs measured within seconds of each other: a machine that is shared changes its speed.
        "ratio": statistics.median(ours / plain for ours, plain in zip(acked, raw, strict=True)),
        "records_per_request": batch,
        "connections": connections,
        "acked_while_ingesting_records_per_s": records / busy_s,
    }


class _Held:
    def failure(self) -> None:
        return None

    def stop(self) -> None:
        return None


def _bodies(number: int, records: int, batch: int) -> list[bytes]:
    import msgspec

    return [
        msgspec.json.encode(
            [
                {
                    "report_id": f"{number}-{index}",
                    "kind": ("fire", "flood", "storm", "crash")[index % 4],
                    "severity": index % 5 + 1,
                    "lat": 60.1 + index % 1000 / 10_000,
                    "lon": 24.9 + index % 997 / 10_000,
                    "message": "m" * 120,
                    "reported_at": "2026-11-15T18:00:00Z",
                }
                for index in range(start, min(records, start + batch))
            ]
        )
        for start in range(0, records, batch)
    ]


async def _post(address: str, token: str, number: int, records: int, batch: int, connections: int) -> float:
    """Seconds from the first request to the last acknowledgement, as another process saw them."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, address, token, number, records, batch, connections)
    publisher = context.Process(target=_publisher, args=arguments, daemon=True)
    publisher.start()
    took_s: float = await asyncio.to_thread(ours.recv)
    publisher.join()
    if took_s < 0:
        raise RuntimeError("the server did not acknowledge every record")
    return took_s


def _publisher(pipe: Any, address: str, token: str, number: int, records: int, batch: int, connections: int) -> None:
    pipe.send(asyncio.run(_publish_all(address, token, _bodies(number, records, batch), records, connections)))


async def _publish_all(address: str, token: str, bodies: list[bytes], records: int, connections: int) -> float:
    """Plain HTTP/1.1 on raw sockets: a publisher that costs little, so that the server is what is measured."""
    import msgspec

    host, _, port = address.removeprefix("http://").partition(":")
    head = f"POST /v1/datasets/Reports/records HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
    waiting = iter(bodies)
    acknowledged = 0

    async def post_some() -> None:
        nonlocal acknowledged
        reader, writer = await asyncio.open_connection(host, int(port))
        for body in waiting:
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            status = await reader.readline()
            length = 0
            while (line := await reader.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            answer = msgspec.json.decode(await reader.readexactly(length))
            if b" 200 " in status:
                acknowledged += answer["accepted"]
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(post_some() for _ in range(connections)))
    took_s = time.perf_counter() - began
    return took_s if acknowledged == records else -1.0


def _parse_and_append(number: int, records: int, batch: int, syncs: int, root: str) -> float:
    import msgspec

    bodies = _bodies(number, records, batch)
    every = max(1, len(bodies) // syncs)
    descriptor = os.open(f"{root}/raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    began = time.perf_counter()
    for index, body in enumerate(bodies, 1):
        msgspec.json.decode(body)
        os.write(descriptor, body)
        if index % every == 0:
            os.fdatasync(descriptor)
    os.fdatasync(descriptor)
    took_s = time.perf_counter() - began
    os.close(descriptor)
    return took_s
