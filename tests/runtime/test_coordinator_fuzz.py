"""Whatever is sent to the coordinator's API, by its own description and beyond, the answer is never a 5xx of its own.

503 with `Retry-After` is an answer too: there may be no broker to give.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tocsin.runtime.coordinator_server import CoordinatorServer
from tocsin.runtime.coordinator_settings import CoordinatorSettings


class InThread:
    """A coordinator on a loop of its own: schemathesis does not speak asyncio."""

    def __init__(self, folder: Path) -> None:
        self._up: Future[tuple[str, str | None]] = Future()
        self._settings = CoordinatorSettings(state=str(folder), port=0, tick_s=0.05, log_level="error")
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        self.url, token = self._up.result(30)
        self.headers = {"Authorization": f"Bearer {token}"}

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = CoordinatorServer(self._settings, lambda *known: self._up.set_result(known))
        await self._server.run()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InThread]:
    running = InThread(tmp_path_factory.mktemp("fuzzed"))
    yield running
    running.stop()


def operations(server: InThread) -> list[Any]:
    document = httpx.get(f"{server.url}/v1/openapi.json", headers=server.headers).json()
    results = schemathesis.openapi.from_dict(document).get_all_operations()
    found: list[Any] = [cast("Any", result).ok() for result in results]
    assert len(found) >= 18, found
    return found


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fitting", "not fitting"])
def test_no_request_makes_it_fail(server: InThread, mode: GenerationMode) -> None:
    """By schemathesis' own strategies; its pytest plugin does not run on this pytest."""
    sent = 0
    with httpx.Client(base_url=server.url, headers=server.headers, timeout=10) as client:
        for operation in operations(server):
            try:
                cases = operation.as_strategy(generation_mode=mode)
            except Unsatisfiable:  # nothing about it can be wrong
                continue

            @settings(
                max_examples=5, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=cases)
            def try_it(case: Any) -> None:
                nonlocal sent
                sent += 1
                answer = case.call(base_url=server.url, headers=server.headers, timeout=10)
                told_to_wait = answer.status_code == 503 and "Retry-After" in {one.title() for one in answer.headers}
                assert answer.status_code < 500 or told_to_wait, (answer.status_code, answer.text)

            with suppress(Unsatisfiable):
                try_it()
        assert client.get("/readyz").status_code == 200
    assert sent >= 20
