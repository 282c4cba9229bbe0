"""The outbox publishes every result once, also if the gateway refuses, loses its answer or is away."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.runtime.edge.edge_root import running_root
from tests.runtime.edge.test_http import FIRST, LATER, QUERY, STREAM, WINDOW
from tocsin.runtime.edge.outbox import OutboxPublisher
from tocsin.runtime.edge.root_store import Results, RootStore


class UnreliableGateway:
    """Stores batches by their Idempotency-Key, as the data cluster does, and fails on order."""

    def __init__(self) -> None:
        self.stored: dict[str, list[Any]] = {}
        self.datasets: list[str] = []
        self.faults = ["unavailable", "answer lost"]
        """What happens to the next requests."""
        self.unknown: set[str] = set()
        """Datasets that do not exist."""
        self.requests = 0
        self.url = ""

    def rows(self) -> list[Any]:
        return [row for rows in self.stored.values() for row in rows]


@contextmanager
def serving(gateway: UnreliableGateway) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            gateway.requests += 1
            body = self.rfile.read(int(self.headers["Content-Length"]))
            fault = gateway.faults.pop(0) if gateway.faults else None
            if fault == "unavailable":
                self._answer(503, {"error": {"code": "not_ready", "message": "starting"}})
                return
            if self.path.split("/")[3] in gateway.unknown:
                self._answer(404, {"error": {"code": "unknown_dataset", "message": "there is no such dataset"}})
                return
            key = self.headers["Idempotency-Key"]
            replayed = key in gateway.stored
            gateway.stored.setdefault(key, [json.loads(line) for line in body.splitlines()])
            gateway.datasets.append(self.path.split("/")[3])
            if fault == "answer lost":
                self.close_connection = True
                self.connection.close()
                return
            self._answer(200, {"accepted": len(gateway.stored[key]), "refused_total": 0, "replayed": replayed})

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def handle(self) -> None:
            with suppress(OSError, ValueError):  # the connection was closed on purpose
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    gateway.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_results_reach_the_gateway_once_through_its_faults(tmp_path: Path) -> None:
    async def run(gateway: UnreliableGateway) -> None:
        async with running_root(tmp_path, f'[sink]\ngateway = "{gateway.url}"\n') as root:
            await root.apply(STREAM + QUERY)
            await root.publish([{**FIRST, "kwh": 1.75}])
            await root.publish([LATER])
            await root.end()
            await root.until(lambda status: status["queries"][0]["rows"] == 2 and status["outbox"] == 0)

    gateway = UnreliableGateway()
    with serving(gateway):
        asyncio.run(run(gateway))
    assert [row["total"] for row in gateway.rows()] == [1.75, 4.0] and gateway.rows()[0] == WINDOW
    assert gateway.requests >= 3 and set(gateway.datasets) == {"Uses"}


def test_results_wait_for_the_gateway_across_a_restart(tmp_path: Path) -> None:
    async def before(sink: str) -> None:
        async with running_root(tmp_path, sink) as root:
            await root.apply(STREAM + QUERY)
            await root.publish([{**FIRST, "kwh": 1.75}])
            await root.publish([LATER])
            await root.until(lambda status: status["outbox"] == 1)

    async def after(sink: str) -> None:
        async with running_root(tmp_path, sink) as root:
            await root.until(lambda status: status["outbox"] == 0)

    asyncio.run(before('[sink]\ngateway = "http://127.0.0.1:9"\n'))
    gateway = UnreliableGateway()
    with serving(gateway):
        asyncio.run(after(f'[sink]\ngateway = "{gateway.url}"\n'))
    assert gateway.rows() == [WINDOW]


class FullDisk(RootStore):
    """Its next changes fail."""

    faults = 2

    def delete(self, number: int) -> None:
        if self.faults:
            self.faults -= 1
            raise sa.exc.OperationalError("DELETE", {}, Exception("database or disk is full"))
        super().delete(number)


def test_outbox_goes_on_after_the_database_refused_a_change(tmp_path: Path) -> None:
    async def run(gateway: UnreliableGateway, store: RootStore) -> None:
        store.accept([Results("Use", "Uses", [b'{"n":1}', b'{"n":2}'], 2, 5)])
        published = 0
        both = asyncio.Event()

        def count(_number: int) -> None:
            nonlocal published
            published += 1
            if published == 2:
                both.set()

        publisher = OutboxPublisher(store, gateway.url, None, count)
        publisher.start()
        try:
            async with asyncio.timeout(10):
                await both.wait()
        finally:
            await publisher.stop()

    gateway = UnreliableGateway()
    gateway.faults = []
    store = FullDisk(tmp_path / "root.sqlite")
    with serving(gateway):
        asyncio.run(run(gateway, store))
    assert gateway.rows() == [{"n": 1}, {"n": 2}] and store.outbox_size() == 0
    store.close()


def test_missing_dataset_holds_up_its_own_results_only(tmp_path: Path) -> None:
    async def run(gateway: UnreliableGateway, store: RootStore) -> None:
        for number in range(3):
            for dataset in ("Missing", "Uses"):
                row = f'{{"n":{number}}}'.encode()
                store.accept([Results(dataset, dataset, [row], 1, number)])
        numbers: list[int] = []
        publisher = OutboxPublisher(store, gateway.url, None, numbers.append)
        publisher.start()
        try:
            async with asyncio.timeout(10):
                while len(numbers) < 3:
                    await asyncio.sleep(0.01)
                assert set(gateway.datasets) == {"Uses"}
                gateway.unknown = set()
                while len(numbers) < 6:
                    await asyncio.sleep(0.01)
        finally:
            await publisher.stop()
        assert numbers == [2, 4, 6, 1, 3, 5]

    gateway = UnreliableGateway()
    gateway.faults, gateway.unknown = [], {"Missing"}
    store = RootStore(tmp_path / "root.sqlite")
    with serving(gateway):
        asyncio.run(run(gateway, store))
    assert store.outbox_size() == 0
    store.close()
