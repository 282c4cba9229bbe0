"""One real server per test module: Spark, HTTP on a free port, a token of an administrator."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from tocsin.cluster.server.server import ClusterServer
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.cluster.spark.session import Session
from tocsin.runtime.http.logs import without_secrets
from tocsin.runtime.http.settings import load_settings

structlog.configure(
    processors=[structlog.processors.format_exc_info, without_secrets, structlog.processors.JSONRenderer()]
)

APPLICATION = """
CREATE STREAM DATASET Reports (report_id STRING, kind STRING, severity INT, seen_at TIMESTAMP)
  KEY (report_id) RETAIN 7 DAYS;
CREATE KEYED DATASET Places (user_id STRING, lat DOUBLE, lon DOUBLE) KEY (user_id);
CREATE CONTINUOUS CHANNEL ReportsOfKind (kind STRING) AS
  SELECT r.report_id, r.severity, r.kind FROM NEW Reports r WHERE r.kind = :kind;
CREATE REPETITIVE CHANNEL Counted (least INT) EVERY 1 HOUR AS
  SELECT count(*) AS reports FROM NEW Reports r WHERE r.severity >= :least;
"""


def until(holds: Callable[[], Any], limit_s: float = 120) -> Any:
    """Poll `holds` until it returns something true, and return that."""
    deadline_s = time.monotonic() + limit_s
    while not (outcome := holds()):
        assert time.monotonic() < deadline_s, f"not true within {limit_s} s"
        time.sleep(0.05)
    return outcome


class RunningServer:
    """A `ClusterServer` on a loop of its own, in a thread of this process."""

    def __init__(self, settings: ClusterProcessSettings, spark: Session) -> None:
        self._settings = settings
        self._spark = spark
        self._clients: list[httpx.Client] = []
        self._up: Future[tuple[str, str | None]] = Future()
        self._thread = threading.Thread(target=self._run, name="server")
        self._thread.start()
        self.url, first = self._up.result(240)
        self.token = first or ""
        self.admin = self.client(self.token)

    def _run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self.server = ClusterServer(self._settings, lambda *known: self._up.set_result(known), self._spark)
            await self.server.run()

        try:
            asyncio.run(main())
        except BaseException as error:
            if not self._up.done():
                self._up.set_exception(error)
            else:
                raise

    def client(self, token: str | None) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        client = httpx.Client(base_url=self.url, headers=headers, timeout=120)
        self._clients.append(client)
        return client

    def token_for(self, *scopes: str, days: float | None = None) -> str:
        made = self.admin.post("/v1/tokens", json={"name": "test", "scopes": list(scopes), "days": days})
        assert made.status_code == 201, made.text
        return str(made.json()["token"])

    def on_loop(self, work: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()
        self.loop.call_soon_threadsafe(lambda: done.set_result(work()))
        return done.result(10)

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self.loop.call_soon_threadsafe(self.server.stop)
        self._thread.join(120)
        assert not self._thread.is_alive()


StartServer = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def start_server(spark: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    running: list[RunningServer] = []

    def start(root: Path | None = None, **settings: Any) -> RunningServer:
        root = root or tmp_path_factory.mktemp("root")
        flags = {"root": str(root), "port": 0, "files": str(tmp_path_factory.getbasetemp())} | settings
        server = RunningServer(load_settings(ClusterProcessSettings, flags, {}), spark)
        running.append(server)
        return server

    yield start
    for server in running:
        if server._thread.is_alive():
            server.stop()


@pytest.fixture(scope="module")
def server(start_server: StartServer) -> RunningServer:
    """A server with `APPLICATION` applied."""
    running = start_server(heartbeat_s=0.5)
    applied = running.admin.post("/v1/applications", json={"text": APPLICATION})
    assert applied.status_code == 200, applied.text
    return running
