"""Watches a running city from outside: processes, missed ticks, when reports enter their dataset, and pulls.

`watched_day` runs a day with it. It reads the counters of the processes, `GET /v1/channels` and the catalog's
SQLite file every few seconds, and runs a `PullProbe` once the first report is published.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import numpy.typing as npt

from tocsin.benchmarks.shared.city_deliveries import PROBED, CityDeliveries
from tocsin.benchmarks.shared.pull_probe import PullProbe
from tocsin.benchmarks.shared.stages import Executions
from tocsin.benchmarks.shared.usage import Usage, server_processes, usage_of
from tocsin.demo.deliveries import Seconds
from tocsin.demo.run import DemoOutcome, DemoRun
from tocsin.sim.city.subscriptions import KINDS

SAMPLE_S = 2.0
_PROBED_PEOPLE = 20
"""Subscriptions to the continuous channel that the probe holds too."""
_REPORTS = "EmergencyReports"
_MOST_EXECUTIONS = 10_000


class CityWatch:
    def __init__(self, run: DemoRun, root: Path, *, probes: bool = True) -> None:
        """`root` is the data root of the network."""
        self._run = run
        self._root = root
        headers = {"Authorization": f"Bearer {run.stack.admin_token()}"}
        self._client = httpx.AsyncClient(base_url=run.stack.cluster_url, headers=headers, timeout=60.0)
        self._probe = PullProbe(run.stack.cluster_url, self._client, _probed(run)) if probes else None
        self.usage: list[Usage] = []
        self._missed: list[tuple[float, Mapping[str, int]]] = []
        """(wall time, missed ticks so far by channel)."""
        self._stored_s: dict[int, float] = {}
        """Version of the dataset of reports → when it was committed."""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._sample())]
        if self._probe is not None:
            self._tasks.append(asyncio.create_task(self._run_probe(self._probe)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _run_probe(self, probe: PullProbe) -> None:
        while not self._run.account.published:
            await asyncio.sleep(0.2)
        await probe.run()

    async def _sample(self) -> None:
        processes = server_processes(self._run.stack)
        while True:
            self.usage.append(usage_of(processes))
            await asyncio.to_thread(self._read_versions)
            with suppress(httpx.HTTPError):  # a busy machine: the next sample is near
                answer = (await self._client.get("/v1/channels")).raise_for_status().json()
                missed = {channel["name"]: channel["missed_ticks"] for channel in answer["channels"]}
                self._missed.append((time.time(), missed))
            await asyncio.sleep(SAMPLE_S)

    def _read_versions(self) -> None:
        """Note when new versions were committed. Merging replaces small files by larger ones, so this runs often."""
        query = "SELECT first, at_s FROM files WHERE owner = ? AND first = last AND generation = 0"
        for version, at_s in self._rows(query, f"dataset:{_REPORTS}"):
            self._stored_s.setdefault(version, at_s)

    def _rows(self, query: str, owner: str) -> list[Any]:
        catalog = (self._root / "state" / "catalog.sqlite").absolute().as_uri()
        connection = sqlite3.connect(f"{catalog}?mode=ro", uri=True, timeout=10)
        try:
            return connection.execute(query, (owner,)).fetchall()
        finally:
            connection.close()

    # -- after the day -------------------------------------------------------------------------------------------------

    def missed_between(self, from_s: float, to_s: float) -> int:
        """Missed ticks of all channels between two moments."""
        inside = [sum(missed.values()) for at_s, missed in self._missed if from_s <= at_s <= to_s]
        return inside[-1] - inside[0] if inside else 0

    async def deliveries(self, outcome: DemoOutcome) -> CityDeliveries:
        """The deliveries of the finished day. Call it before the network stops."""
        executions = {channel["name"]: await self._executions(channel["name"]) for channel in outcome.channels}
        stored_s = await asyncio.to_thread(self._stored_times_s, len(outcome.account.published))
        return CityDeliveries(outcome, executions, stored_s, {} if self._probe is None else self._probe.pulls)

    async def _executions(self, channel: str) -> Executions:
        query: dict[str, str | int] = {"channel": channel, "limit": _MOST_EXECUTIONS}
        answer = (await self._client.get("/v1/executions", params=query)).raise_for_status().json()
        return Executions.of(answer["executions"])

    def _stored_times_s(self, reports: int) -> Seconds:
        """When each report was in the dataset, by its number; NaN where unknown. Reads the dataset's files."""
        times_s = np.full(reports, np.nan)
        versions = np.array(sorted(self._stored_s), np.int64)
        if not len(versions):
            return times_s
        committed_s = np.array([self._stored_s[version] for version in versions.tolist()])
        numbers, held = self._versions_of_reports()
        # A version whose file was merged before it was seen takes the time of the next one that was seen.
        places = np.minimum(np.searchsorted(versions, held), len(versions) - 1)
        inside = numbers < reports
        times_s[numbers[inside]] = committed_s[places[inside]]
        return times_s

    def _versions_of_reports(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(number, version) of each stored report."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from tocsin.cluster.sql.result_columns import VERSION

        paths = self._rows("SELECT path FROM files WHERE owner = ?", f"dataset:{_REPORTS}")
        parts = [pq.read_table(self._root / path, columns=["report_id", VERSION]) for (path,) in paths]
        table = pa.concat_tables(parts)
        pairs = [
            (int(name.removeprefix("report-")), version)
            for name, version in zip(table["report_id"].to_pylist(), table[VERSION].to_pylist(), strict=True)
            if name.startswith("report-")
        ]
        numbers = np.array(pairs, np.int64).reshape(-1, 2)
        return numbers[:, 0], numbers[:, 1]


async def watched_day(
    run: DemoRun, root: Path, *, probes: bool = True
) -> tuple[DemoOutcome, CityWatch, CityDeliveries]:
    """Run the day of a started demo under watch. `root` is the data root of its network."""
    async with CityWatch(run, root, probes=probes) as watch:
        outcome = await run.run_day()
        return outcome, watch, await watch.deliveries(outcome)


def _probed(run: DemoRun) -> dict[str, list[dict[str, Any]]]:
    people = [
        dict(subscription.parameters)
        for person in run.crowd.people
        for subscription in person.subscriptions
        if subscription.channel == PROBED["continuous"]
    ]
    kinds = [{"kind": kind} for kind in KINDS]
    wanted = {PROBED["repetitive"]: kinds, PROBED["continuous"]: people[:_PROBED_PEOPLE]}
    return {channel: sets for channel, sets in wanted.items() if sets}
