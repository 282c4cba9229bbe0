"""A live edge tree under load: nodes as processes, meters that publish over HTTP, a gateway that records results.

All clients are in this process, so that one clock times readings and results. Event time is the wall clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tocsin.client import EdgePublisher
from tocsin.demo.edge_gateway import RecordedResults, recording_gateway
from tocsin.demo.edge_meters import SCHEMA, STREAM, MeterGroup, Place
from tocsin.demo.edge_queries import LATENESS
from tocsin.demo.edge_tree import EdgeTree, TreeSettings
from tocsin.experiments.edge_rows import NOTHING, Comparison, EdgeSelect, Reference, compare, time_us
from tocsin.model.edge import EdgeNodeId

_LOOK_S: Final = 0.25
_DRAIN_S: Final = 60.0
_FIRST_US: Final = 250_000
"""Event time of the first batch of each publisher."""
_DEPLOY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class MeterLoad:
    meters: int = 4_000
    """In the whole tree, in equal parts at the leaves."""
    rate_per_s: float = 1.0
    """Readings per second and meter."""
    publishers: int = 2
    """Per leaf."""
    turn_s: float = 0.25
    """Time between two batches of a publisher. Batches have a size: at a higher rate they follow each other faster."""
    seed: int = 7


@dataclass(slots=True, eq=False)
class Feeder:
    """One publisher and its meters. It keeps all readings, for the reference."""

    leaf: str
    group: MeterGroup
    publisher: EdgePublisher
    turn_s: float
    raw: list[pa.RecordBatch] = field(default_factory=list)
    sent_us: int = 0
    """All readings before this event time have been handed to the publisher."""

    async def run(self) -> None:
        """Publish for ever, a batch each turn. A turn that comes late has more readings."""
        while True:
            await self.feed(time.time_ns() // 1_000)
            await asyncio.sleep(self.turn_s)

    def change_rate(self, factor: float) -> None:
        self.group.change_rate(factor)
        self.turn_s /= factor

    async def feed(self, until_us: int) -> asyncio.Future[int] | None:
        """The result is done when a node has the readings on disk; None if there are none."""
        batch, self.sent_us = self.group.readings(until_us), until_us
        if batch is None:
            return None
        self.raw.append(batch)
        return await self.publisher.enqueue(batch)

    @property
    def waiting_bytes(self) -> int:
        return self.publisher.waiting_bytes


@dataclass(frozen=True, slots=True)
class Look:
    """One node at one moment, as the root reports it."""

    at_s: float
    node: str
    state: str
    load_pct: float
    inbox_bytes: int
    operators: int
    generation: int


class EdgeWorld:
    def __init__(self, tree: EdgeTree, results: RecordedResults) -> None:
        self.tree = tree
        self.results = results
        self.feeders: list[Feeder] = []
        self.queries: list[EdgeSelect] = []
        self.looks: list[Look] = []
        self.others: dict[str, list[pa.RecordBatch]] = {}
        """Readings of other streams than the meters'."""
        self.late_rows = 0

    # -- load ----------------------------------------------------------------------------------------------------------

    async def deploy(self, queries: Sequence[EdgeSelect], lateness: str = LATENESS) -> None:
        """Return when the queries run: a query does not see readings that were released before."""
        for query in queries:
            await self.tree.apply(query.statement(lateness))
        await self.expect(queries)

    async def expect(self, queries: Sequence[EdgeSelect]) -> None:
        """Wait until the queries run. Their results count from then on."""
        async with asyncio.timeout(_DEPLOY_S):
            while not runs_queries(await self.tree.status(), [query.name for query in queries]):
                await asyncio.sleep(0.1)
        self.queries += queries

    async def open_meters(self, opened: AsyncExitStack, load: MeterLoad) -> None:
        """Connect a publisher for each group of meters. The queries must run already.

        All publishers are known to their entries before one of them goes on: an entry does not wait for a publisher
        of which it has never heard, and connecting takes seconds on a busy machine. The first batch of each is shorter
        than the lateness.
        """
        groups = len(self.tree.leaves) * load.publishers
        places: list[tuple[str, str, Place, EdgePublisher]] = []
        for number in range(groups):
            leaf = self.tree.leaves[number % len(self.tree.leaves)]
            place = Place(leaf, str(self.tree.tree.parents[EdgeNodeId(leaf)]))
            name = f"{leaf}-{number // len(self.tree.leaves) + 1}"
            publisher = await opened.enter_async_context(self.publisher(leaf, STREAM, name))
            places.append((leaf, name, place, publisher))
        start_us = time.time_ns() // 1_000
        for number, (leaf, name, place, publisher) in enumerate(places):
            group = MeterGroup(name, place, load.meters // groups, load.rate_per_s, start_us, load.seed + number)
            self.feeders.append(Feeder(leaf, group, publisher, load.turn_s))
        first = [await feeder.feed(start_us + _FIRST_US) for feeder in self.feeders]
        await asyncio.gather(*(stored for stored in first if stored is not None))

    def publisher(self, leaf: str, stream: str, name: str) -> EdgePublisher:
        return EdgePublisher(self.tree.path_up(leaf), stream, name, self.tree.token)

    async def backlog_s(self, leaf: str) -> float:
        """What waits at a leaf and before it, in seconds of the readings that its meters produce."""
        feeders = [feeder for feeder in self.feeders if feeder.leaf == leaf]
        rows_per_s = sum(len(feeder.group) * feeder.group.rate_per_s for feeder in feeders)
        rows = sum(sum(batch.num_rows for batch in feeder.raw[-8:]) for feeder in feeders)
        size = sum(sum(batch.nbytes for batch in feeder.raw[-8:]) for feeder in feeders)
        figures = await self.tree.metrics(leaf)
        inbox = figures["tocsin_edge_inbox_bytes"] + figures["tocsin_edge_backlog_bytes"]
        waiting = inbox + sum(feeder.waiting_bytes for feeder in feeders)
        return waiting / (rows_per_s * size / rows) if rows else 0.0

    async def watch(self) -> None:
        """Look at all nodes for ever."""
        while True:
            at_s = time.time()
            status = await self.tree.status()
            if status is not None:
                self.looks += [_look(at_s, status["generation"], node) for node in status["nodes"]]
            await asyncio.sleep(_LOOK_S)

    # -- results -------------------------------------------------------------------------------------------------------

    async def drain(self, until_us: Mapping[str, int]) -> bool:
        """Wait until the root has published the results of all windows that end by these times, per query; "" is for
        all others. False if it takes too long."""
        for _ in range(round(_DRAIN_S / _LOOK_S)):
            status = await self.tree.status()
            if status is not None:
                self.late_rows = sum(node.get("late_rows", 0) for node in status["nodes"])
                floors = {query["name"]: query["floor"] for query in status["queries"]}
                behind = [
                    query.name
                    for query in self.queries
                    if floor_us(floors.get(query.name)) < until_us.get(query.name, until_us[""])
                ]
                if not behind and not status["outbox"]:
                    return True
            await asyncio.sleep(_LOOK_S)
        return False

    def readings(self) -> dict[str, pa.Table]:
        """All raw readings by stream."""
        batches = [batch for feeder in self.feeders for batch in feeder.raw]
        tables = {STREAM: pa.Table.from_batches(batches, SCHEMA)}
        return tables | {stream: pa.Table.from_batches(own) for stream, own in self.others.items()}

    def compare(self, reference: Reference, until_us: Mapping[str, int]) -> Comparison:
        """Compare the published rows with those of the reference, per query up to a time of its stream."""
        expected = reference(self.queries, self.readings())
        total = NOTHING
        for query in self.queries:
            until = until_us.get(query.name, until_us[""])
            total += compare(query, self.results.of(query.name), expected[query.name], until)
        return total


def runs_queries(status: Mapping[str, Any] | None, names: Sequence[str]) -> bool:
    """True if the present generation runs and has operators of these queries."""
    if status is None or not status["running"]:
        return False
    operators = {operator.partition("/")[0] for node in status["nodes"] for operator in node.get("operators") or ()}
    return operators >= {*names}


def floor_us(floor: object) -> int:
    """The floor of a query in microseconds: the root reports a number, a time, or nothing yet."""
    if floor is None:
        return -(1 << 62)
    return time_us(floor) if isinstance(floor, str) else int(str(floor))


def load_pct(node: Mapping[str, Any]) -> float:
    usage = node.get("usage") or {}
    return max((float(usage.get(name) or 0.0) for name in ("memory_pct", "cpu_pct", "network_pct")), default=0.0)


def _look(at_s: float, generation: int, node: Mapping[str, Any]) -> Look:
    return Look(
        at_s,
        node["name"],
        node["state"],
        load_pct(node),
        int(node.get("inbox_bytes") or 0),
        len(node.get("operators") or ()),
        generation,
    )


@asynccontextmanager
async def edge_world(folder: Path, logs: Path, settings: Callable[[str], TreeSettings]) -> AsyncIterator[EdgeWorld]:
    """Start the nodes and the gateway. `settings` gets the gateway's address."""
    async with recording_gateway() as (gateway, results):
        tree = EdgeTree(settings(gateway), folder, logs)
        try:
            await tree.start()
            yield EdgeWorld(tree, results)
        finally:
            await tree.stop()
