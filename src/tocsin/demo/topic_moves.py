"""`tocsin experiment epulsar-migration --live`: moves topics between real brokers at emulated distances.

Experiments may not start processes: this module runs them and hands the rows to `experiments.epulsar_migration_live`.
Each topic has one publisher and one subscriber with connections of their own. The publisher sends every 10 ms while all
topics move to the other broker at once; the subscriber records when each message arrives.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from tocsin.client import TopicMessage, Topics
from tocsin.experiments import runner
from tocsin.experiments.epulsar_migration_live import LiveMigration
from tocsin.experiments.runner import Row
from tocsin.runtime.stack.distance import EmulatedDistance
from tocsin.runtime.stack.stack import SUBSCRIBERS, Stack, StackSettings

WORKFLOWS: Final = ("pulsar", "epulsar", "tocsin")
CLIENT_MS: Final = 5.0
"""One-way delay between clients and brokers."""
SPACING_S: Final = 0.01
_MOVED_S: Final = 180.0
_SETTLE_S: Final = 60.0


def run_live(options: Mapping[str, str], topics: int, out: Path, report_progress: Callable[[str], None]) -> Any:
    """Measure every workflow, number of executors and distance, and return the report."""
    known = {"workflows": ",".join(WORKFLOWS), "executors": "1,4,16", "wan_ms": "10,40,80"}
    if unknown := sorted(options.keys() - known.keys()):
        raise ValueError(f"epulsar-migration --live has the options {', '.join(known)}, not {', '.join(unknown)}")
    chosen = {name: options.get(name, default).split(",") for name, default in known.items()}
    if not set(chosen["workflows"]) <= set(WORKFLOWS):
        raise ValueError(f"workflows are some of {', '.join(WORKFLOWS)}, separated by commas")
    rows: list[Row] = []
    for wan_ms in map(float, chosen["wan_ms"]):
        for workflow in chosen["workflows"]:
            # Pulsar moves one topic at a time, whatever the number of executors.
            for executors in map(int, chosen["executors"] if workflow != "pulsar" else ["1"]):
                rows += asyncio.run(measure(workflow, executors, wan_ms, topics))
                report_progress(f"{workflow}, {executors} executors, {wan_ms:g} ms: {rows[-1]}")
    command = f"tocsin experiment epulsar-migration --live --topics {topics}"
    command += "".join(f" --set {name}={value}" for name, value in options.items())
    return runner.finish(LiveMigration(), 1, runner.table_of(rows), out, command)


async def measure(workflow: str, executors: int, wan_ms: float, topics: int) -> list[Row]:
    """One network, in which all topics move once. Returns a row per topic and one for the whole run."""
    with tempfile.TemporaryDirectory(prefix="tocsin-moves-") as folder:
        async with EmulatedDistance() as distance:
            await _place(distance, wan_ms)
            flags = {"topic-workflow": workflow, "topic-moves": str(executors), "topic-prefixes": "move/"}
            settings: dict[str, Any] = {
                "free_ports": True,
                "data_cluster": False,
                "logs": Path(folder),
                "via": distance.via,
            }
            stack = Stack(StackSettings(Path(folder), 2, coordinator=flags, **settings))
            try:
                await distance.open_routes()
                await stack.start()
                port = urlsplit(stack.coordinator_url).port
                assert port is not None
                host, route = await distance.route("coordinator", port, SUBSCRIBERS)
                run = _Run(stack, f"http://{host}:{route}", [f"move/{number}" for number in range(topics)])
                rows = await run.run()
                error = await distance.report()
            finally:
                await stack.stop()
    labels: Row = {"workflow": workflow, "executors": executors, "wan_ms": wan_ms, "topics": topics}
    labels |= {"emulator_p99_ms": 1e3 * error.p99_s, "valid": error.is_valid, "client_rtt_ms": 2 * CLIENT_MS}
    return [labels | row for row in rows]


async def _place(distance: EmulatedDistance, wan_ms: float) -> None:
    nodes = ("coordinator", "broker-1", "broker-2", SUBSCRIBERS)
    for one, other in combinations(nodes, 2):
        await distance.set_delay(one, other, 1e-3 * (wan_ms if one == "coordinator" else CLIENT_MS))
    for node in nodes:
        await distance.place(node, node)


class _Run:
    def __init__(self, stack: Stack, coordinator: str, topics: Sequence[str]) -> None:
        self._stack = stack
        self._coordinator = coordinator
        self._topics = topics
        self._sent: list[asyncio.Future[Any]] = []
        self._arrivals: dict[str, list[tuple[float, int]]] = {topic: [] for topic in topics}
        self._rounds = 0
        self._stopped = False

    async def run(self) -> list[Row]:
        headers = {"Authorization": f"Bearer {self._stack.admin_token()}"}
        async with AsyncExitStack() as stack:
            http = httpx.AsyncClient(base_url=self._stack.coordinator_url, headers=headers, timeout=30.0)
            self._http = await stack.enter_async_context(http)
            for topic in self._topics:
                answer = await self._http.post("/v1/topics", json={"topic": topic})
                answer.raise_for_status()
            clients = [await stack.enter_async_context(self._client()) for _ in range(2 * len(self._topics))]
            publishers, readers = clients[::2], clients[1::2]
            tasks = []
            for topic, reader in zip(self._topics, readers, strict=True):
                subscription = await stack.enter_async_context(reader.subscribe(topic))
                tasks.append(asyncio.create_task(self._read(topic, subscription)))
            publishing = asyncio.create_task(self._publish(publishers))
            await asyncio.sleep(1.0)
            took_s = await self._move_all()
            await asyncio.sleep(1.0)
            self._stopped = True
            await publishing
            await asyncio.gather(*self._sent)
            async with asyncio.timeout(_SETTLE_S):
                while any(len(arrived) < self._rounds for arrived in self._arrivals.values()):
                    await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [self._row(topic, took_s[topic], max(took_s.values())) for topic in self._topics]

    def _client(self) -> Topics:
        return Topics(self._coordinator, token=self._stack.admin_token())

    async def _publish(self, publishers: Sequence[Topics]) -> None:
        while not self._stopped:
            for topic, publisher in zip(self._topics, publishers, strict=True):
                self._sent.append(publisher.send(topic, b"%d" % self._rounds))
            self._rounds += 1
            await asyncio.sleep(SPACING_S)

    async def _read(self, topic: str, subscription: Any) -> None:
        async for item in subscription:
            if isinstance(item, TopicMessage):
                self._arrivals[topic].append((time.perf_counter(), int(item.data)))

    async def _homes(self) -> dict[str, tuple[str | None, str | None]]:
        answer = await self._http.get("/v1/topics", params={"pattern": "move/#"})
        answer.raise_for_status()
        return {entry["topic"]: (entry["home"], entry["moving_to"]) for entry in answer.json()["topics"]}

    async def _move_all(self) -> dict[str, float]:
        """Move every topic to the other broker. Returns the seconds from the request to the end of each move."""
        homes, began_s = await self._homes(), time.perf_counter()
        targets = {topic: "broker-2" if home == "broker-1" else "broker-1" for topic, (home, _) in homes.items()}
        moves = [{"topic": topic, "target": target} for topic, target in targets.items()]
        for answer in await asyncio.gather(*(self._http.post("/v1/topics/move", json=move) for move in moves)):
            answer.raise_for_status()
        took_s: dict[str, float] = {}
        async with asyncio.timeout(_MOVED_S):
            while len(took_s) < len(targets):
                for topic, where in (await self._homes()).items():
                    if where == (targets[topic], None):
                        took_s.setdefault(topic, time.perf_counter() - began_s)
                await asyncio.sleep(0.02)
        return took_s

    def _row(self, topic: str, took_s: float, all_s: float) -> Row:
        arrivals = self._arrivals[topic]
        longest_s = max(later - earlier for (earlier, _), (later, _) in pairwise(arrivals))
        numbers = [number for _, number in arrivals]
        return {
            "downtime_ms": 1e3 * max(0.0, longest_s - SPACING_S),
            "per_topic_ms": 1e3 * took_s,
            "all_ms": 1e3 * all_s,
            "lost": self._rounds - len(set(numbers)),
            "reordered": sum(later <= earlier for earlier, later in pairwise(numbers)),
        }
