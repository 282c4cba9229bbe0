"""Generated requests, valid and invalid by the OpenAPI description, never make the coordinator fail with a 5xx.

503 with `Retry-After` is allowed: there may be no broker to assign.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import httpx
import pytest
from schemathesis import GenerationMode

from tests.runtime.http.fuzzing import MODES, operations, told_to_wait, try_all
from tocsin.runtime.coordinator.server import CoordinatorServer
from tocsin.runtime.coordinator.settings import CoordinatorSettings


class ThreadedCoordinator:
    """A coordinator with its own loop in a thread, because schemathesis does not use asyncio."""

    def __init__(self, folder: Path) -> None:
        self._ready: Future[tuple[str, str | None]] = Future()
        self._settings = CoordinatorSettings(state=str(folder), port=0, tick_s=0.05, log_level="error")
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        self.url, token = self._ready.result(30)
        self.headers = {"Authorization": f"Bearer {token}"}

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = CoordinatorServer(
            self._settings, lambda *address_and_token: self._ready.set_result(address_and_token)
        )
        await self._server.run()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedCoordinator]:
    running = ThreadedCoordinator(tmp_path_factory.mktemp("fuzzed"))
    yield running
    running.stop()


@pytest.mark.parametrize("mode", MODES, ids=["fitting", "not fitting"])
def test_no_generated_request_makes_the_coordinator_fail(server: ThreadedCoordinator, mode: GenerationMode) -> None:
    tested = operations(server.url, server.headers, ["/v1/watch"])
    assert len(tested) >= 26, [operation.label for operation in tested]
    assert try_all(server.url, server.headers, mode, tested, told_to_wait) >= 20
    assert httpx.get(f"{server.url}/readyz").status_code == 200
