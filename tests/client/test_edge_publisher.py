"""The publisher of the edge tier: numbers, retention, and the change to another node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pyarrow as pa
import pytest

from tocsin.client import EdgePublisher, RequestRefused, SessionEnded

BATCH = pa.RecordBatch.from_pydict({"meter": ["m1"], "kwh": [0.5]})
OWN, PARENT = "own", "parent"
Tried = list[tuple[str, int]]


class Nodes:
    """Two nodes that store what they get, unless they are dead or refuse."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.joining: set[str] = set()
        """Nodes that answer and run no generation."""
        self.stored: dict[str, int] = {}
        self.durable = 0
        self.tried: Tried = []
        self.requests = 0
        self.bad: set[int] = set()
        """Batches that the node refuses for good."""
        self.refusals: list[httpx.Response] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        node = request.url.host
        if node in self.dead:
            raise httpx.ConnectError("refused", request=request)
        if request.url.path == "/healthz":
            return httpx.Response(200, json={"ok": True, "generation": 0 if node in self.joining else 7})
        number = int(request.headers["Tocsin-Number"])
        last = number + int(request.headers.get("Tocsin-Batches", "1")) - 1
        self.requests += 1
        self.tried += [(node, each) for each in range(number, last + 1)]
        if self.refusals:
            return self.refusals.pop(0)
        if self.bad & {*range(number, last + 1)}:
            return httpx.Response(400, json={"code": "bad_records", "message": "no"})
        body = pa.BufferReader(request.content)
        for _ in range(number, last + 1):
            assert pa.ipc.open_stream(body).read_all().to_batches() == [BATCH]
        assert body.tell() == len(request.content)
        assert request.url.path == "/v1/streams/Readings/readings"
        assert request.headers["Tocsin-Publisher"] == "p"
        self.stored[node] = last
        return httpx.Response(200, json={"stored_through": last, "durable_through": self.durable})


def run(nodes: Nodes, use: Callable[[EdgePublisher], Awaitable[None]], repeat_s: float = 60.0) -> None:
    """Use a publisher whose clock only its pauses advance."""
    now_s = 0.0

    async def sleep(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s
        await asyncio.sleep(0)

    async def main() -> None:
        async with EdgePublisher(
            ["http://own", "http://parent"],
            "Readings",
            "p",
            transport=httpx.MockTransport(nodes),
            sleep=sleep,
            clock_s=lambda: now_s,
            return_s=0.0,
            repeat_s=repeat_s,
        ) as publisher:
            await use(publisher)

    asyncio.run(main())


def test_batches_are_numbered_and_dropped_when_durable() -> None:
    nodes = Nodes()

    async def use(publisher: EdgePublisher) -> None:
        assert [await publisher.send(BATCH) for _ in range(3)] == [1, 2, 3]
        assert (publisher.kept, publisher.stored_through, publisher.durable_through) == (3, 3, 0)
        nodes.durable = 2
        await publisher.send(BATCH)
        assert (publisher.kept, publisher.durable_through, publisher.waiting_bytes) == (2, 2, 0)

    run(nodes, use)
    assert nodes.tried == [(OWN, 1), (OWN, 2), (OWN, 3), (OWN, 4)]


def test_publisher_sends_all_undurable_batches_again_at_the_parent() -> None:
    nodes = Nodes()
    nodes.durable = 1

    async def use(publisher: EdgePublisher) -> None:
        for _ in range(3):
            await publisher.send(BATCH)
        nodes.dead = {OWN}
        await publisher.send(BATCH)
        assert publisher.address == "http://parent" and publisher.changes == 1

    run(nodes, use)
    assert nodes.tried[3:] == [(PARENT, 2), (PARENT, 3), (PARENT, 4)], "batch 1 is durable"


def test_batches_that_wait_together_share_a_request() -> None:
    nodes = Nodes()

    async def use(publisher: EdgePublisher) -> None:
        for _ in range(100):
            await publisher.enqueue(BATCH)
        assert await publisher.send(BATCH) == 101
        assert nodes.requests <= 4, "at most 64 batches each, the first perhaps alone"
        requests = nodes.requests
        nodes.dead = {OWN}
        await publisher.send(BATCH)
        assert nodes.requests == requests + 2, "102 batches again at the parent"

    run(nodes, use)
    assert nodes.tried == [*((OWN, number) for number in range(1, 102)), *((PARENT, n) for n in range(1, 103))]


def test_large_batches_do_not_share_a_request() -> None:
    nodes = Nodes()

    async def use(publisher: EdgePublisher) -> None:
        large = [await publisher.enqueue(pa.table({"text": ["x" * (700 << 10)]})) for _ in range(3)]
        nodes.refusals = [httpx.Response(200, json={"stored_through": number}) for number in (1, 2, 3)]
        assert [await stored for stored in large] == [1, 2, 3]

    run(nodes, use)
    assert nodes.requests == 3


def test_refused_batch_does_not_fail_those_in_front_of_it() -> None:
    nodes = Nodes()
    nodes.bad = {3}

    async def use(publisher: EdgePublisher) -> None:
        stored = [await publisher.enqueue(BATCH) for _ in range(4)]
        assert [await stored[0], await stored[1]] == [1, 2]
        for refused in stored[2:]:
            with pytest.raises(RequestRefused):
                await refused

    run(nodes, use)
    assert nodes.stored == {OWN: 2}


def test_publisher_returns_to_its_own_node() -> None:
    nodes = Nodes()

    async def use(publisher: EdgePublisher) -> None:
        nodes.dead = {OWN}
        await publisher.send(BATCH)
        nodes.dead = set()
        nodes.durable = 1
        await publisher.send(BATCH)
        assert publisher.address == "http://own"

    run(nodes, use)
    assert nodes.tried == [(PARENT, 1), (OWN, 1), (OWN, 2)], "batch 1 was not known to be durable"


def test_publisher_returns_only_when_its_own_node_runs_in_the_tree() -> None:
    nodes = Nodes()

    async def use(publisher: EdgePublisher) -> None:
        nodes.dead = {OWN}
        await publisher.send(BATCH)
        nodes.dead, nodes.joining = set(), {OWN}
        await publisher.send(BATCH)
        assert publisher.address == "http://parent"
        nodes.joining = set()
        await publisher.send(BATCH)
        assert publisher.address == "http://own"

    run(nodes, use)


def test_publisher_without_new_readings_notices_the_death_of_its_node() -> None:
    nodes = Nodes()

    async def use(publisher: EdgePublisher) -> None:
        for _ in range(3):
            await publisher.send(BATCH)
        nodes.dead = {OWN}
        async with asyncio.timeout(10):
            while nodes.stored.get(PARENT) != 3:
                await asyncio.sleep(0.005)

    run(nodes, use, repeat_s=0.01)
    moved = [number for node, number in nodes.tried if node == PARENT]
    assert moved[:3] == [1, 2, 3], "all batches that are not durable"


def test_publisher_without_new_readings_learns_that_all_are_durable() -> None:
    nodes = Nodes()

    async def use(publisher: EdgePublisher) -> None:
        for _ in range(3):
            await publisher.send(BATCH)
        nodes.durable = 3
        async with asyncio.timeout(10):
            while publisher.kept:
                await asyncio.sleep(0.005)

    run(nodes, use, repeat_s=0.01)
    assert {number for _, number in nodes.tried[3:]} == {3}


def test_publisher_stays_at_its_node_through_a_short_outage() -> None:
    nodes = Nodes()
    nodes.refusals = [httpx.Response(503, json={"error": {"code": "not_ready", "message": "wait"}}) for _ in range(9)]

    async def use(publisher: EdgePublisher) -> None:
        await publisher.send(BATCH)
        assert publisher.changes == 0 and publisher.retries == 9

    run(nodes, use)
    assert nodes.tried == [(OWN, 1)] * 10


def test_publisher_continues_where_the_node_says() -> None:
    nodes = Nodes()

    async def use(publisher: EdgePublisher) -> None:
        await publisher.send(BATCH)
        await publisher.send(BATCH)
        nodes.refusals = [httpx.Response(409, json={"stored_through": 0})]  # the node has lost its disk
        await publisher.send(BATCH)

    run(nodes, use)
    assert nodes.tried[2:] == [(OWN, 3), (OWN, 1), (OWN, 2), (OWN, 3)]


def test_refused_batch_fails_and_so_do_later_ones() -> None:
    nodes = Nodes()
    nodes.refusals = [httpx.Response(400, json={"error": {"code": "bad_records", "message": "no column ts"}})]

    async def use(publisher: EdgePublisher) -> None:
        for _ in range(2):
            with pytest.raises(RequestRefused, match="no column ts"):
                await publisher.send(BATCH)

    run(nodes, use)
    assert nodes.tried == [(OWN, 1)]


def test_unsent_batch_fails_when_the_publisher_closes() -> None:
    nodes = Nodes()
    nodes.dead = {OWN, PARENT}

    async def use(publisher: EdgePublisher) -> None:
        stored = await publisher.enqueue(BATCH)
        await publisher.close()
        with pytest.raises(SessionEnded):
            await stored

    run(nodes, use)
