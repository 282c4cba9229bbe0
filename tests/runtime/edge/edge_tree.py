"""A tree of real edge processes on loopback, with publishers that keep their batches until they are durable."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from tocsin.runtime.stack.edges import EdgeNodes
from tocsin.runtime.stack.supervisor import free_ports

SECRET = "a-secret-of-the-tree"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW_S = 10
STATEMENTS = f"""
CREATE EDGE STREAM Readings (meter STRING, ts TIMESTAMP, kwh DOUBLE) TIME ts;
CREATE EDGE QUERY PerMeter LATENESS 1 SECONDS AS
SELECT meter, window.start AS since, SUM(kwh) AS total, COUNT(*) AS n
FROM Readings GROUP BY meter, WINDOW(ts, '{WINDOW_S} seconds') ORDER BY since, meter;
CREATE EDGE QUERY Everything LATENESS 1 SECONDS INTO AllMeters AS
SELECT window.start AS since, SUM(kwh) AS total, COUNT(*) AS n
FROM Readings GROUP BY WINDOW(ts, '{WINDOW_S} seconds');
"""

Reading = tuple[str, int, float]
"""Meter, seconds since `BEGIN`, kWh."""
Row = tuple[object, ...]


def json_rows(readings: Iterable[Reading]) -> list[dict[str, Any]]:
    return [
        {"meter": meter, "ts": (BEGIN + timedelta(seconds=at_s)).isoformat(), "kwh": kwh}
        for meter, at_s, kwh in readings
    ]


def expected_rows(readings: Iterable[Reading]) -> dict[str, list[Row]]:
    """The results of `STATEMENTS`, computed directly."""
    per_meter: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
    whole: defaultdict[int, list[float]] = defaultdict(list)
    for meter, at_s, kwh in readings:
        window = at_s // WINDOW_S * WINDOW_S
        per_meter[window, meter].append(kwh)
        whole[window].append(kwh)
    return {
        "PerMeter": sorted((_since(window), meter, sum(k), len(k)) for (window, meter), k in per_meter.items()),
        "Everything": sorted((_since(window), sum(k), len(k)) for window, k in whole.items()),
    }


def _since(window_s: int) -> str:
    return (BEGIN + timedelta(seconds=window_s)).isoformat().replace("+00:00", "Z")


@dataclass
class RunningTree:
    nodes: EdgeNodes
    parents: Mapping[str, str]
    root: str
    client: httpx.AsyncClient

    def address(self, node: str) -> str:
        return str(self.nodes.children[node].announcement["address"])

    def signal(self, node: str, number: int) -> None:
        assert self.nodes.children[node].signal(number)

    async def status(self) -> dict[str, Any]:
        reply = await self.client.get(f"{self.address(self.root)}/v1/edge")
        described: dict[str, Any] = reply.raise_for_status().json()
        return described

    async def until(self, condition: Callable[[dict[str, Any]], bool], limit_s: float = 30.0) -> dict[str, Any]:
        """Wait until the tree's status meets the condition."""
        deadline_s = time.monotonic() + limit_s
        status: dict[str, Any] = {}
        while time.monotonic() < deadline_s:
            try:
                status = await self.status()
                if condition(status):
                    return status
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.1)
        raise AssertionError(f"not within {limit_s} s: {status}")

    async def until_running(self, alive: int, after: int = 0) -> dict[str, Any]:
        def runs(status: dict[str, Any]) -> bool:
            states = [node["state"] for node in status["nodes"]]
            return status["running"] and status["generation"] > after and states.count("alive") == alive

        return await self.until(runs)

    async def apply(self, text: str = STATEMENTS) -> None:
        reply = await self.client.post(f"{self.address(self.root)}/v1/edge/statements", json={"text": text})
        reply.raise_for_status()

    async def end(self, nodes: Iterable[str]) -> None:
        """No reading enters at these nodes any more."""
        for node in nodes:
            while True:
                reply = await self.client.post(f"{self.address(node)}/v1/streams/Readings/watermark", json={})
                if reply.is_success:
                    break
                await asyncio.sleep(0.1)

    async def results(self) -> dict[str, list[Row]]:
        """All rows in the outbox."""
        rows: defaultdict[str, list[Row]] = defaultdict(list)
        after = 0
        while True:
            url = f"{self.address(self.root)}/v1/edge/results"
            reply = await self.client.get(url, params={"after": after, "limit": 1_000})
            entries = reply.raise_for_status().json()["entries"]
            if not entries:
                return {query: sorted(found, key=str) for query, found in rows.items()}
            for entry in entries:
                after = entry["number"]
                for row in entry["rows"]:
                    names = ("since", "meter", "total", "n") if "meter" in row else ("since", "total", "n")
                    rows[entry["query"]].append(tuple(row[name] for name in names))

    async def until_results(self, expected: Mapping[str, Sequence[Row]], limit_s: float = 40.0) -> None:
        """Wait until the outbox has as many rows as expected; then all of them must be the expected ones."""
        wanted = {query: len(rows) for query, rows in expected.items()}

        def complete(status: dict[str, Any]) -> bool:
            return all(query["rows"] >= wanted[query["name"]] for query in status["queries"])

        await self.until(complete, limit_s)
        assert await self.results() == {query: sorted(rows, key=str) for query, rows in expected.items()}


class KeepingPublisher:
    """Sends its batches in order, keeps them until they are durable, and continues at another node when one is down."""

    def __init__(self, tree: RunningTree, name: str, path: Sequence[str]) -> None:
        """`path`: the nodes that the publisher uses, the first one while it answers."""
        self._tree = tree
        self._name = name
        self._path = list(path)
        self._kept: dict[int, list[dict[str, Any]]] = {}
        self._next = 1
        self.durable_through = 0

    async def send(self, readings: Sequence[Reading]) -> None:
        """Return when the batch is acknowledged."""
        self._kept[self._next] = json_rows(readings)
        self._next += 1
        await self._deliver(self._next - 1)

    async def _deliver(self, number: int) -> None:
        failures = 0
        while True:
            try:
                if await self._post(self._path[0], number):
                    return
            except httpx.HTTPError:
                failures += 1
            if failures >= 3 and len(self._path) > 1:
                failures = 0
                self._path.pop(0)
                for kept in sorted(self._kept):
                    if kept < number:
                        await self._deliver(kept)
            await asyncio.sleep(0.2)

    async def _post(self, node: str, number: int) -> bool:
        reply = await self._tree.client.post(
            f"{self._tree.address(node)}/v1/streams/Readings/readings",
            json=self._kept[number],
            headers={"Tocsin-Publisher": self._name, "Tocsin-Number": str(number)},
        )
        if reply.status_code in (429, 503, 421):
            return False
        reply.raise_for_status()
        answered = reply.json()
        assert answered["stored_through"] >= number > 0
        self.durable_through = max(self.durable_through, answered["durable_through"])
        for kept in [kept for kept in self._kept if kept <= self.durable_through]:
            del self._kept[kept]
        return True


@asynccontextmanager
async def running_tree(
    folder: Path, parents: Mapping[str, str], entries: Sequence[str], *, root_more: str = "", **settings: object
) -> AsyncIterator[RunningTree]:
    """`parents`: the parent of every node but the root. `root_more` is added to the root's file."""
    root = next(parent for parent in parents.values() if parent not in parents)
    names = [root, *parents]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    (folder / "secret").write_text(SECRET)
    files = []
    for name in names:
        lines = ["[node]", f'name = "{name}"', f"port = {ports[name]}", f'data = "{name}"', 'token_file = "secret"']
        if name in parents:
            lines += [f'parent = "{parents[name]}"', f'root = "http://127.0.0.1:{ports[root]}"']
        if name in entries:
            lines.append('streams = ["Readings"]')
        options: dict[str, object] = {"publisher_idle_s": 8.0, "period_s": 1.0} | settings
        lines += [f"{key} = {_toml(value)}" for key, value in options.items()]
        file = folder / f"{name}.toml"
        file.write_text("\n".join(lines) + "\n" + (root_more if name == root else ""))
        files.append((name, file))
    nodes = EdgeNodes(files, logs=folder)
    limits = httpx.Timeout(10.0, connect=1.0)
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with httpx.AsyncClient(timeout=limits, headers=headers) as client:
        try:
            await nodes.start()
            yield RunningTree(nodes, parents, root, client)
        finally:
            await nodes.stop()


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
