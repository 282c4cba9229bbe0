"""`tocsin bench ingest`: durable acknowledgements a second over HTTP.

Timed: publishers in a process of their own post bodies of keyed emergency reports over several connections, from the
first request to the last acknowledgement. The server checks every field, removes repeats, appends, fsyncs and answers.
Compared with: plain parse-and-append, which parses the same bodies with the same JSON library and appends them to a
file, with exactly as many fsyncs as the server's feed log had for the same bodies. The fsyncs of the server's other
files (new segments, key index) are extra work of the server. Both run in one process, with the allocator of `tocsin
cluster`, and warm up for one round.
Checked by: the publishers, which count acknowledged records.
Prints: records per second and CPU time per record of both, the median and the worst ratio of the rounds, the rate with
one record per request, and the rate while Spark fills the dataset at the same time. CPU time is that of the server's
process, without publishers. With `--root`, see `shared/ingest_places.py`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from dataclasses import dataclass
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, declare, temporary_folder
from tocsin.benchmarks.shared.ingest_places import measure_places
from tocsin.benchmarks.shared.posting import IngestRound, post

APPLICATION = """
CREATE STREAM DATASET Reports (report_id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, message STRING,
  reported_at TIMESTAMP) KEY (report_id) RETAIN 7 DAYS;
"""


def ingest(
    records: Annotated[int, typer.Option(help="Records in each round.")] = 400_000,
    batch: Annotated[int, typer.Option(help="Records in a request.")] = 500,
    connections: Annotated[int, typer.Option(help="Requests in progress at the same time.")] = 8,
    rounds: Annotated[int, typer.Option(help="Measured rounds, after one that warms up.")] = 5,
    single_records: Annotated[int, typer.Option(help="Records of a last round with one record per request.")] = 20_000,
    root: Annotated[
        str | None,
        typer.Option(help="Compare a shared log below this root with the local one; s3://bucket/prefix, or a folder."),
    ] = None,
    s3_endpoint: Annotated[str | None, typer.Option(help="Server of that bucket, if it is not AWS.")] = None,
) -> dict[str, Any]:
    """Post records over HTTP and count durable acknowledgements."""
    from tocsin.cluster.server.memory import choose_allocator

    choose_allocator(os.environ)  # as `tocsin cluster` does, before anything imports Arrow

    from tocsin.runtime.http.listening import loop_factory
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        if root is None:
            return runner.run(measure(records, batch, connections, rounds, single_records))
        place = {"root": root, "s3_endpoint": s3_endpoint}
        return runner.run(measure_places(place, IngestRound(0, records, batch), connections, rounds))


register = command(ingest)


async def measure(
    records: int, batch: int, connections: int, rounds: int, single_records: int = 20_000
) -> dict[str, Any]:
    from unittest.mock import patch

    from tocsin.cluster.feed.feedlog import FeedLog
    from tocsin.cluster.server.server import ClusterServer
    from tocsin.cluster.server.settings import ClusterProcessSettings
    from tocsin.runtime.http.settings import load_settings

    syncs = 0
    write_durably = FeedLog._write_durably

    def counted_write(*args: Any) -> None:
        nonlocal syncs
        syncs += 1  # each is one fsync; a `FeedLog.sync` without new frames calls none
        write_durably(*args)

    started: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
    acknowledged: list[Measured] = []
    raw: list[Measured] = []
    with temporary_folder() as root, patch.object(FeedLog, "_write_durably", counted_write):
        # A backlog as large as the benchmark: it measures the gateway, not how fast two cores also fill the dataset.
        flags = {"root": root, "port": 0, "token_file": False, "backlog_bytes": 1 << 40}
        settings = load_settings(ClusterProcessSettings, flags, {})
        server = ClusterServer(settings, lambda *address_and_token: started.set_result(address_and_token))
        serving = asyncio.create_task(server.run())
        try:
            await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
            address, token = await started
            await asyncio.to_thread(declare, server.process.cluster, APPLICATION)
            # Ingestion would use the same cores: it is paused at first, so that only the gateway is measured.
            reports = server.process.cluster.dataset("Reports")
            reports.query = SimpleNamespace(failure=lambda: None, stop=lambda: None)  # type: ignore[assignment]
            for number in range(rounds + 1):
                syncs = 0
                work = IngestRound(number, records, batch)
                cpu_s = time.process_time()
                took_s = (await post(address, token or "", connections, work)).took_s
                ours = Measured(records / took_s, (time.process_time() - cpu_s) / records * 1e6)
                plain = await asyncio.to_thread(_parse_and_append, work, syncs, root)
                announce(f"acknowledged: {ours}; raw: {plain}; {syncs} fsyncs each")
                if number:
                    acknowledged.append(ours)
                    raw.append(plain)
            single = IngestRound(rounds + 1, single_records, 1)
            single_s = (await post(address, token or "", connections, single)).took_s
            announce(f"{single_records / single_s:,.0f} acknowledged records/s with one record per request")
            reports.query = None
            await asyncio.to_thread(server.process.cluster.datasets.start_ingestion, "Reports")
            busy_s = (await post(address, token or "", connections, IngestRound(rounds + 2, records, batch))).took_s
            announce(f"{records / busy_s:,.0f} acknowledged records/s while Spark fills the dataset")
        finally:
            server.stop()
            await serving
    # The ratios are of pairs measured within seconds of each other: the speed of a shared machine changes.
    ratios = [ours.records_per_s / plain.records_per_s for ours, plain in zip(acknowledged, raw, strict=True)]
    return {
        "acked_records_per_s": statistics.median(round.records_per_s for round in acknowledged),
        "raw_write_records_per_s": statistics.median(round.records_per_s for round in raw),
        "acked_cpu_us_per_record": statistics.median(round.cpu_us_per_record for round in acknowledged),
        "raw_write_cpu_us_per_record": statistics.median(round.cpu_us_per_record for round in raw),
        "ratio": statistics.median(ratios),
        "worst_ratio": min(ratios),
        "acked_single_records_per_s": single_records / single_s,
        "records_per_request": batch,
        "connections": connections,
        "acked_while_ingesting_records_per_s": records / busy_s,
    }


@dataclass(frozen=True, slots=True)
class Measured:
    """One round of the server, or of plain parse-and-append."""

    records_per_s: float
    cpu_us_per_record: float
    """User and system time of the process."""

    def __str__(self) -> str:
        return f"{self.records_per_s:,.0f} records/s, {self.cpu_us_per_record:.2f} µs of CPU time a record"


def _parse_and_append(work: IngestRound, syncs: int, root: str) -> Measured:
    """Decode each body and append it to a file, with this many fsyncs."""
    import msgspec

    bodies = work.bodies()
    unwritten = iter(bodies)
    groups = group_sizes(len(bodies), syncs)
    descriptor = os.open(f"{root}/raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    for size in groups:
        for body in islice(unwritten, size):
            msgspec.json.decode(body)
            os.write(descriptor, body)
        os.fdatasync(descriptor)
    took_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    os.close(descriptor)
    return Measured(work.records / took_s, cpu_s / work.records * 1e6)


def group_sizes(bodies: int, syncs: int) -> list[int]:
    """Split so many bodies into groups of equal size, as nearly as possible: one for each sync."""
    groups = max(1, min(syncs, bodies))
    ends = [bodies * number // groups for number in range(groups + 1)]
    return [end - start for start, end in pairwise(ends)]
