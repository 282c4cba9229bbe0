"""A clock and an adversarial network for the processes of a live tree.

Every message has its own delay. Within one direction of one connection messages keep their order, as TCP does; no order
holds between connections. A process that is stopped for a while receives everything when it continues.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pyarrow as pa

from tests.edge.edge_readings import SECOND, STREAMS, alarms, readings
from tests.edge.edge_tree_processes import Disk, NodeProcess, Publisher, Request, RootProcess
from tocsin.edge import tree_control as control
from tocsin.edge.generations import SourceSpec
from tocsin.edge.node import Event as NodeEvent
from tocsin.model.edge import EdgeNodeId, Tree

QUERIES = (
    "CREATE EDGE QUERY Use LATENESS 5 SECONDS AS SELECT meter, window.start AS since, SUM(kwh) AS total, COUNT(*) AS n "
    "FROM Readings GROUP BY meter, WINDOW(ts, '10 seconds', '5 seconds')",
    "CREATE EDGE QUERY Sorted LATENESS 5 SECONDS AS SELECT ts, meter, kwh FROM Readings WHERE zone = 1 "
    "ORDER BY ts, meter, kwh",
    "CREATE EDGE QUERY Near LATENESS 5 SECONDS AS SELECT a.at, r.ts, r.meter, r.kwh, a.level FROM Readings r "
    "JOIN Alarms a ON r.meter = a.meter AND a.at BETWEEN r.ts - INTERVAL 2 SECONDS AND r.ts + INTERVAL 6 SECONDS "
    "ORDER BY a.at, r.ts, r.kwh",
)
END_S = 1_000.0
"""The event time of the last reading of each publisher. It completes everything before."""
Row = tuple[Any, ...]


class Link:
    """The connections of one child in one generation."""

    def __init__(self, child: NodeProcess, parent: NodeProcess, number: int) -> None:
        self.child, self.parent, self.number = child, parent, number
        self.is_open = True


class TreeWorld:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self._queue: list[tuple[float, int, object, Callable[..., Any], tuple[Any, ...]]] = []
        self._numbers = count()
        self._arrivals: dict[tuple[object, ...], float] = {}
        """When the last message of each direction of a connection arrives."""
        self.home = Tree.perfect_binary(7)
        self.leaves = [EdgeNodeId(f"n{k}") for k in (4, 5, 6, 7)]
        self.source = SourceSpec("meters", "Readings", "file", "meters.csv")
        self.source_home = EdgeNodeId("n6")
        self.links: dict[EdgeNodeId, Link] = {}
        self.replayed = self.ordered = 0
        self.source_chunks = self._readings("source")
        self.root = RootProcess(self)
        self.processes = {node: NodeProcess(self, node, Disk(), 1) for node in self.home.nodes}
        self.publishers = [Publisher(self, f"p{leaf}", leaf, "Readings", self._readings(leaf)) for leaf in self.leaves]
        self.publishers.append(Publisher(self, "alarms", self.leaves[0], "Alarms", self._alarms()))
        self.root.start()
        for name, stream in STREAMS.items():
            self.root.handle(control.StreamDeclared(name, stream))
        for text in QUERIES:
            assert not self.root.handle(control.QueryDeployed(text))
        for process in self.processes.values():
            process.start()
        for publisher in self.publishers:
            self.after(self.chance.uniform(0, 1), None, publisher.send)

    # Time.

    def at(self, time_s: float, owner: object, work: Callable[..., Any], *arguments: Any) -> None:
        heapq.heappush(self._queue, (max(time_s, self.now_s), next(self._numbers), owner, work, arguments))

    def after(self, delay_s: float, owner: object, work: Callable[..., Any], *arguments: Any) -> None:
        self.at(self.now_s + delay_s, owner, work, *arguments)

    def run(self, until_s: float, is_done: Callable[[], bool] = lambda: False) -> None:
        while self._queue and self._queue[0][0] <= until_s and not is_done():
            time_s, number, owner, work, arguments = heapq.heappop(self._queue)
            self.now_s = time_s
            if isinstance(owner, NodeProcess):
                if owner.is_dead:
                    continue
                if owner.paused_until_s > time_s:
                    heapq.heappush(self._queue, (owner.paused_until_s, number, owner, work, arguments))
                    continue
            work(*arguments)
        if not is_done():
            self.now_s = max(self.now_s, until_s)

    def _in_order(self, *channel: object) -> float:
        """The arrival of the next message of a channel."""
        delay_s = self.chance.choice((0.001, 0.005, 0.02, 0.1))
        self._arrivals[channel] = max(self._arrivals.get(channel, 0.0) + 1e-6, self.now_s + delay_s)
        return self._arrivals[channel]

    # Control connections.

    def send_to_root(self, process: NodeProcess, event: control.Event) -> None:
        connection, current = process.connection, process.connected_to

        def arrive() -> None:
            if process.is_dead or connection != process.connection:
                return
            if current is not None and current is self.root.control:
                self.root.on_event(process, connection, event)
            else:  # the root that had the connection is dead
                process.connection += 1
                self.after(self.chance.uniform(0.1, 0.5), process, process.register)

        self.at(self._in_order("up", process, connection), None, arrive)

    def to_node(self, process: NodeProcess, connection: int, work: Callable[..., Any], *arguments: Any) -> None:
        def arrive() -> None:
            if connection == process.connection:
                work(*arguments)

        self.at(self._in_order("down", process, connection), process, arrive)

    # Connections between neighbours.

    def parent_now(self, process: NodeProcess) -> EdgeNodeId | None:
        generation = process.member.generation
        return None if generation is None else generation.tree.parents.get(process.node)

    def open_link(self, child: NodeProcess, parent: EdgeNodeId, number: int) -> None:
        link = self.links[child.node] = Link(child, self.processes[parent], number)

        def arrive() -> None:
            if not link.is_open or not link.parent.child_opened(child.node, number):
                self.break_link(link)

        if link.parent.is_dead:
            self.break_link(link)
        self.at(self._in_order(link, "up data"), link.parent, arrive)

    def send_up(self, child: NodeProcess, event: NodeEvent, kind: str) -> None:
        link = self.links.get(child.node)
        if link is not None and link.child is child and link.is_open:
            at_s = self._in_order(link, f"up {kind}")
            self.at(max(at_s, self._arrivals[link, "up data"]), link.parent, self._deliver, link, link.parent, event)

    def send_down(self, parent: NodeProcess, child: EdgeNodeId, event: NodeEvent, kind: str) -> None:
        link = self.links.get(child)
        if link is not None and link.parent is parent and link.is_open:
            self.at(self._in_order(link, f"down {kind}"), link.child, self._deliver, link, link.child, event)

    def _deliver(self, link: Link, receiver: NodeProcess, event: NodeEvent) -> None:
        if link.is_open:
            receiver.inner(link.number, event)

    def break_link(self, link: Link) -> None:
        if not link.is_open:
            return
        link.is_open = False
        for end, peer in ((link.child, link.parent), (link.parent, link.child)):
            if not end.is_dead:
                delay_s = self.chance.uniform(0, 0.3)
                self.after(delay_s, end, end.to_root, control.LinkLost(end.node, link.number, peer.node))

    def close_links(self, process: NodeProcess, number: int) -> None:
        for link in self.links.values():
            if link.number == number and process in (link.child, link.parent):
                self.break_link(link)

    # Publishers.

    def request(self, process: NodeProcess, request: Request) -> None:
        self.at(self._in_order(process, request.publisher), process, process.on_request, request)

    def answer(self, request: Request, durable_through: int | None) -> None:
        publisher = next(item for item in self.publishers if item.name == request.publisher)
        self.after(self.chance.uniform(0, 0.05), None, publisher.on_answer, request, durable_through)

    # Faults.

    def kill(self, node: EdgeNodeId, loses_disk: bool, down_s: float) -> None:
        process = self.processes[node]
        if process.is_dead:
            return
        process.is_dead = True
        self.after(self.chance.uniform(0, 0.3), None, self.root.on_lost, node, process.run)
        for link in list(self.links.values()):
            if process in (link.child, link.parent):
                self.break_link(link)
        disk = Disk() if loses_disk else process.disk
        self.after(down_s, None, self._restart, node, disk, process.run + 1)
        if node == self.home.root:
            self.root.stop()

    def _restart(self, node: EdgeNodeId, disk: Disk, run: int) -> None:
        if node == self.home.root:
            self.root.start()
        self.processes[node] = NodeProcess(self, node, disk, run)
        self.processes[node].start()

    def pause(self, node: EdgeNodeId, length_s: float) -> None:
        self.processes[node].paused_until_s = self.now_s + length_s

    def harm(self) -> None:
        """One fault."""
        chance = self.chance
        others = [node for node in self.home.nodes if node != self.home.root]
        match chance.choice(("kill", "kill", "pause", "link", "connection", "root", "publisher")):
            case "kill":
                self.kill(chance.choice(others), chance.random() < 0.3, chance.uniform(0.2, 9))
            case "pause":
                self.pause(chance.choice(others), chance.uniform(0.5, 9))
            case "link":
                self.break_link(chance.choice(list(self.links.values())))
            case "connection":
                process = self.processes[chance.choice(others)]
                if not process.is_dead:
                    process.connection += 1
                    self.after(0.2, process, process.register)
            case "root":
                self.kill(self.home.root, chance.random() < 0.3, chance.uniform(0.2, 5))
            case "publisher":
                chance.choice(self.publishers).move()

    # Data.

    def _readings(self, name: str) -> list[pa.RecordBatch]:
        """Batches of readings up to 5 s out of order; the values are eighths, so that sums are exact."""
        chance, newest_s = self.chance, 0.0
        batches: list[pa.RecordBatch] = []
        for _ in range(16):
            newest_s += chance.uniform(0, 5)
            times = [newest_s, *(max(0.0, newest_s - chance.uniform(0, 4.9)) for _ in range(2))]
            rows = [(at_s, chance.choice("ab"), chance.randrange(1, 80) / 8, chance.choice((1, 2))) for at_s in times]
            batches.append(readings(*rows))
        return [*batches, readings((END_S, f"end of {name}", 1.0, 1))]

    def _alarms(self) -> list[pa.RecordBatch]:
        chance = self.chance
        times = sorted(chance.uniform(0, 45) for _ in range(12))
        return [*(alarms((at_s, chance.choice("ab"), chance.randrange(3))) for at_s in times), alarms((END_S, "", 0))]

    # The check.

    def is_complete(self) -> bool:
        return all(publisher.is_done for publisher in self.publishers) and all(
            self.root.floors_us.get(query, 0) > 900e6 for query in ("Use", "Sorted", "Near")
        )

    def acknowledged(self, stream: str) -> list[Row]:
        batches = [batch for item in self.publishers if item.stream == stream for batch in item.batches]
        return in_microseconds(batches + (self.source_chunks if stream == "Readings" else []))

    def results(self, query: str) -> list[Row]:
        """The rows of the outbox, without those of the last readings."""
        rows = in_microseconds([batch for name, batch in self.root.outbox if name == query])
        return [row for row in rows if not any(isinstance(value, str) and value.startswith("end") for value in row)]

    def expected(self, query: str) -> Counter[Row]:
        """A direct computation over all acknowledged readings."""
        rows = [row for row in self.acknowledged("Readings") if not str(row[1]).startswith("end")]
        if query == "Sorted":
            return Counter((ts, meter, kwh) for ts, meter, kwh, zone in rows if zone == 1)
        if query == "Near":
            return Counter(
                (at, ts, meter, kwh, level)
                for ts, meter, kwh, _ in rows
                for at, other, level in self.acknowledged("Alarms")
                if meter == other and -2 * SECOND <= at - ts <= 6 * SECOND
            )
        windows: dict[tuple[Any, int], list[Any]] = {}
        for ts, meter, kwh, _ in rows:
            newest = ts - ts % (5 * SECOND)
            for start in (newest, newest - 5 * SECOND):
                windows.setdefault((meter, start), []).append(kwh)
        return Counter((meter, start, sum(values), len(values)) for (meter, start), values in windows.items())


def in_microseconds(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        columns = [
            column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()
            for column in batch.columns
        ]
        rows += zip(*columns, strict=True)
    return rows
