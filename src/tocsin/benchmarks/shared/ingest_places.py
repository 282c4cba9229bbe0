"""`tocsin bench ingest --root`: the shared log below a root beside the local log, in one process.

Timed: publishers post the same bodies to two datasets that differ only in their log, in turns: with many records in a
request, and with one. Ingestion is paused, so that only the gateways are measured. The catalog is SQLite in a
temporary folder, or the one of `TOCSIN_CATALOG`.
Checked by: the publishers, which count acknowledged records.
Prints: acknowledged records per second and the times of acknowledgements of both logs, and their ratio.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tocsin.benchmarks.shared.harness import announce, declare, temporary_folder
from tocsin.benchmarks.shared.posting import IngestRound, Posted, post

_APPLICATION = """
CREATE STREAM DATASET {name} (report_id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, message STRING,
  reported_at TIMESTAMP) KEY (report_id) RETAIN 7 DAYS;
"""
LOGS = ("local", "shared")
SINGLE_SHARE = 20
"""A round with one record in a request has one in so many records."""


async def measure_places(place: dict[str, Any], work: IngestRound, connections: int, rounds: int) -> dict[str, Any]:
    from unittest.mock import patch

    from tocsin.cluster.server.server import ClusterServer
    from tocsin.cluster.server.settings import ClusterProcessSettings
    from tocsin.cluster.settings import ClusterSettings
    from tocsin.runtime.http.settings import load_settings

    started: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
    measured: dict[tuple[str, int], list[Posted]] = {}
    with temporary_folder() as state:
        flags = {"state": state, "port": 0, "token_file": False, "backlog_bytes": 1 << 40, **place}
        if "TOCSIN_CATALOG" in os.environ:
            flags["catalog"] = os.environ["TOCSIN_CATALOG"]
        settings = load_settings(ClusterProcessSettings, flags, {})
        server = ClusterServer(settings, lambda *address_and_token: started.set_result(address_and_token))
        serving = asyncio.create_task(server.run())
        try:
            await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving  # raises the reason
            address, token = await started
            for log in LOGS:
                with patch.object(ClusterSettings, "shares_logs", lambda _, log=log: log == "shared"):
                    await asyncio.to_thread(declare, server.process.cluster, _APPLICATION.format(name=log))
                paused = SimpleNamespace(failure=lambda: None, stop=lambda: None)
                server.process.cluster.dataset(log).query = paused  # type: ignore[assignment]
            for number in range(rounds + 1):
                for log in LOGS:
                    for batch in {work.batch, 1}:
                        records = work.records if batch > 1 else max(connections, work.records // SINGLE_SHARE)
                        one = replace(work, number=number * 2 + (batch == 1), dataset=log, batch=batch, records=records)
                        posted = await post(address, token or "", connections, one)
                        rate = records / posted.took_s
                        p99_ms = posted.quantile_s(0.99) * 1000
                        announce(f"{log} log, {batch} a request: {rate:,.0f} records/s, p99 {p99_ms:.1f} ms")
                        if number:
                            measured.setdefault((log, batch), []).append(posted)
        finally:
            server.stop()
            await serving
    return _figures(measured, work, rounds) | {"records_per_request": work.batch, "connections": connections}


def _figures(measured: dict[tuple[str, int], list[Posted]], work: IngestRound, rounds: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for (log, batch), all_posted in measured.items():
        name = log if batch == work.batch else f"{log}_single"
        rates = [len(posted.acknowledged_s) * batch / posted.took_s for posted in all_posted]
        figures[f"{name}_acked_records_per_s"] = statistics.median(rates)
        for share in (50, 99):
            times_s = [posted.quantile_s(share / 100) for posted in all_posted]
            figures[f"{name}_p{share}_ms"] = statistics.median(times_s) * 1000
    # The ratios are of pairs measured within seconds of each other: the speed of a shared machine changes.
    pairs = [zip(measured["shared", batch], measured["local", batch], strict=True) for batch in (work.batch, 1)]
    for name, pair in zip(("ratio", "single_ratio"), pairs, strict=True):
        figures[name] = statistics.median(local.took_s / shared.took_s for shared, local in pair)
    return figures
