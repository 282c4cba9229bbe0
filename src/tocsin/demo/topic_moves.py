"""`tocsin experiment epulsar-migration --live`: moves topics between real brokers at emulated distances.

Experiments may not start processes: this module runs them and hands the rows to `experiments.epulsar_migration_live`.
`moving_topics` has the clients. One network per workflow and number of executors serves all distances to the
coordinator: all topics move to the other broker, then the distance changes and they move back.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from tocsin.coordinator.planning import compile_policies
from tocsin.demo.moving_topics import FAST_S, MovingTopics
from tocsin.experiments import runner
from tocsin.experiments.epulsar_migration_live import LiveMigration
from tocsin.experiments.runner import Row
from tocsin.runtime.http.listening import loop_factory
from tocsin.runtime.stack.distance import EmulatedDistance
from tocsin.runtime.stack.stack import SUBSCRIBERS, Stack, StackSettings

WORKFLOWS: Final = ("pulsar", "epulsar", "tocsin")
CLIENT_MS: Final = 5.0
"""One-way delay between clients and brokers, and between the two brokers."""
MOST_LAG_MS: Final = 5.0
"""A run is invalid if the clients' event loop was later than this in one of a hundred turns."""
_ATTEMPTS: Final = 3
"""An invalid run is repeated: something else had the machine for a moment. The last attempt counts."""
_AHEAD: Final = 4
"""Moves that are ordered before an executor is free."""
_SPACING_S: Final = 0.025
"""Between two orders: two cores cannot carry out more than some 50 moves per second, with their clients. The executors
must not start together either, or all their clients connect at the same moment."""
_NEAR_MS: Final = 1.0
"""To the coordinator while the network starts."""
_MOVED_S: Final = 300.0
_SETTLE_S: Final = 1.0


def run_live(options: Mapping[str, str], topics: int, out: Path, report_progress: Callable[[str], None]) -> Any:
    """Measure every workflow, number of executors and distance, and return the report."""
    known = {"workflows": ",".join(WORKFLOWS), "executors": "1,4,16", "wan_ms": "10,40,80"}
    if unknown := sorted(options.keys() - known.keys()):
        raise ValueError(f"epulsar-migration --live has the options {', '.join(known)}, not {', '.join(unknown)}")
    chosen = {name: options.get(name, default).split(",") for name, default in known.items()}
    if not set(chosen["workflows"]) <= set(WORKFLOWS):
        raise ValueError(f"workflows are some of {', '.join(WORKFLOWS)}, separated by commas")
    compile_policies()  # once, for all coordinators: while one compiles, it answers late
    rows: list[Row] = []
    for workflow in chosen["workflows"]:
        # Pulsar moves one topic at a time, whatever the number of executors.
        for executors in map(int, chosen["executors"] if workflow != "pulsar" else ["1"]):
            wans_ms = [float(wan_ms) for wan_ms in chosen["wan_ms"]]
            with asyncio.Runner(loop_factory=loop_factory()) as loop:
                runs = loop.run(measure(workflow, executors, wans_ms, topics))
            for run in runs:
                report_progress(_summary(run))
                rows += run
    command = f"tocsin experiment epulsar-migration --live --topics {topics}"
    command += "".join(f" --set {name}={value}" for name, value in options.items())
    return runner.finish(LiveMigration(), 1, runner.table_of(rows), out, command)


def _summary(run: Sequence[Row]) -> str:
    downtimes, row = sorted(row["downtime_ms"] for row in run), run[0]
    what = f"{row['workflow']}, {row['executors']} executors, {row['wan_ms']:g} ms"
    times = f"downtime {downtimes[len(downtimes) // 2]:.0f} ms, at most {downtimes[-1]:.0f} ms"
    errors = f"emulator {row['emulator_p99_ms']:.1f} ms late, clients {row['lag_p99_ms']:.1f} ms"
    return f"{what}: {times}, all in {row['all_ms'] / 1e3:.1f} s; {errors}{'' if row['valid'] else ': invalid'}"


async def measure(workflow: str, executors: int, wans_ms: Sequence[float], topics: int) -> list[list[Row]]:
    """One network, in which all topics move once for each distance. Returns a row per topic for each of them."""
    with tempfile.TemporaryDirectory(prefix="tocsin-moves-") as folder:
        async with EmulatedDistance() as distance:
            await _place(distance, _NEAR_MS)
            flags = {"topic-workflow": workflow, "topic-moves": str(executors), "topic-prefixes": "move/"}
            settings: dict[str, Any] = {"free_ports": True, "data_cluster": False, "via": distance.via}
            stack = Stack(StackSettings(Path(folder), 2, coordinator=flags, logs=Path(folder), **settings))
            try:
                await distance.open_routes()
                await stack.start()
                port = urlsplit(stack.coordinator_url).port
                assert port is not None
                host, route = await distance.route("coordinator", port, SUBSCRIBERS)
                names = [f"move/{number}" for number in range(topics)]
                async with _Orders(stack, executors) as orders:
                    for name in names:
                        await orders.create(name)
                    address, token = f"http://{host}:{route}", stack.admin_token()
                    clients = MovingTopics(address, token, names, workflow, executors)
                    async with clients:
                        runs = [await _attempts(distance, wan_ms, clients, orders) for wan_ms in wans_ms]
            finally:
                await stack.stop()
            moved = _times(Path(folder) / "coordinator.log")
    labels: Row = {"workflow": workflow, "executors": executors, "topics": topics, "client_rtt_ms": 2 * CLIENT_MS}
    timed = [
        [[row | {"per_topic_ms": 1e3 * next(moved[topic])} for topic, row in zip(names, attempt, strict=True)]
         for attempt in attempts]
        for attempts in runs
    ]  # fmt: skip
    return [[labels | row for row in last_attempt(attempts)] for attempts in timed]


def last_attempt(attempts: Sequence[list[Row]]) -> list[Row]:
    """Its rows, with the lost and reordered messages of all attempts: a busy machine does not excuse those."""
    counted = [
        {name: sum(row[name] for row in topic) for name in ("lost", "reordered")}
        for topic in zip(*attempts, strict=True)
    ]
    return [row | counts | {"attempts": len(attempts)} for row, counts in zip(attempts[-1], counted, strict=True)]


async def _place(distance: EmulatedDistance, wan_ms: float) -> None:
    nodes = ("coordinator", "broker-1", "broker-2", SUBSCRIBERS)
    for one, other in combinations(nodes, 2):
        await distance.set_delay(one, other, 1e-3 * (wan_ms if one == "coordinator" else CLIENT_MS))
    for node in nodes:
        await distance.place(node, node)


async def _attempts(
    distance: EmulatedDistance, wan_ms: float, clients: MovingTopics, orders: _Orders
) -> list[list[Row]]:
    attempts = [await _run(distance, wan_ms, clients, orders)]
    while len(attempts) < _ATTEMPTS and not attempts[-1][0]["valid"]:
        attempts.append(await _run(distance, wan_ms, clients, orders))
    return attempts


async def _run(distance: EmulatedDistance, wan_ms: float, clients: MovingTopics, orders: _Orders) -> list[Row]:
    await _place(distance, wan_ms)
    await asyncio.sleep(_SETTLE_S)
    await distance.report()
    targets = await orders.targets()
    clients.begin()
    began_s = time.perf_counter()
    async with asyncio.timeout(_MOVED_S):
        for number, topic in enumerate(clients.topics):
            await clients.wait_until_moved(number - orders.executors - _AHEAD)
            await orders.move(topic, targets[topic])
            await asyncio.sleep(max(_SPACING_S, 4e-3 * wan_ms / orders.executors))
        await clients.wait_until_moved(len(clients.topics))
        all_s = time.perf_counter() - began_s
        await orders.wait_until_done()
        await clients.settle()
    error = await distance.report()
    lag_ms = 1e3 * clients.lag_p99_s()
    labels: Row = {"wan_ms": wan_ms, "all_ms": 1e3 * all_s, "emulator_p99_ms": 1e3 * error.p99_s, "lag_p99_ms": lag_ms}
    labels["spacing_ms"] = 1e3 * FAST_S
    rows = [clients.row(topic) for topic in clients.topics]
    valid = error.is_valid and lag_ms <= MOST_LAG_MS and all(row.pop("observed") for row in rows)
    return [labels | {"valid": valid} | row for row in rows]


def _times(log: Path) -> dict[str, Iterator[float]]:
    """Topic → seconds from the start of each of its moves to the target's confirmation, as the coordinator counts."""
    found: dict[str, list[float]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        if '"topic moved"' in line:
            note = json.loads(line)
            found.setdefault(note["topic"], []).append(note["took_s"])
    return {topic: iter(times_s) for topic, times_s in found.items()}


class _Orders:
    """The administrator, beside the coordinator."""

    def __init__(self, stack: Stack, executors: int) -> None:
        headers = {"Authorization": f"Bearer {stack.admin_token()}"}
        self._http = httpx.AsyncClient(base_url=stack.coordinator_url, headers=headers, timeout=30.0)
        self.executors = executors

    async def __aenter__(self) -> _Orders:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def _post(self, path: str, body: Mapping[str, str]) -> None:
        (await self._http.post(path, json=dict(body))).raise_for_status()

    async def create(self, topic: str) -> None:
        await self._post("/v1/topics", {"topic": topic})

    async def move(self, topic: str, target: str) -> None:
        await self._post("/v1/topics/move", {"topic": topic, "target": target})

    async def _entries(self) -> list[dict[str, Any]]:
        answer = await self._http.get("/v1/topics", params={"pattern": "move/#"})
        answer.raise_for_status()
        return list(answer.json()["topics"])

    async def targets(self) -> dict[str, str]:
        """Topic → the broker that is not its home."""
        other = {"broker-1": "broker-2", "broker-2": "broker-1"}
        return {entry["topic"]: other[entry["home"]] for entry in await self._entries()}

    async def wait_until_done(self) -> None:
        while any(entry["moving_to"] is not None for entry in await self._entries()):
            await asyncio.sleep(0.1)
