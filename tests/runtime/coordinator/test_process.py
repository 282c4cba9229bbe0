"""Failures of the store, the core and the loop of a running coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.runtime.coordinator.harness import FakeBroker, coordinator
from tocsin.coordinator.effects import StoredState, StoreEffect
from tocsin.runtime.coordinator.store import CoordinatorStore
from tocsin.wire.errors import TocsinError


def test_answers_wait_until_the_change_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store fails, answers wait and /readyz reports 503; later they continue."""
    broken = True
    commit = CoordinatorStore.commit

    def failing(self: CoordinatorStore, effects: Iterable[StoreEffect]) -> None:
        if broken:
            raise sa.exc.OperationalError("INSERT", {}, OSError("disk full"))
        commit(self, effects)

    async def scenario() -> None:
        nonlocal broken
        async with coordinator(tmp_path) as running:
            monkeypatch.setattr(CoordinatorStore, "commit", failing)
            request = asyncio.create_task(running.admin.post("/v1/users", json={"user": "ada"}))
            async with asyncio.timeout(5):
                while (await running.admin.get("/readyz")).status_code != 503:
                    await asyncio.sleep(0.02)
            assert not request.done()
            broken = False
            assert (await request).status_code == 201
            assert (await running.admin.get("/readyz")).status_code == 200

    asyncio.run(scenario())


def test_failed_core_is_loaded_again_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            await running.user("ada")
            broker = await FakeBroker(running, "b1").connect()
            core = running.server.process.core
            assert core is not None

            def broken(*_: Any) -> list[Any]:
                raise AssertionError("a broken invariant")

            monkeypatch.setattr(core, "handle", broken)
            assert "register again" in (await broker.wait_closed())[1]
            await running.until("/v1/users/ada", lambda answer: running.server.process.core is not core)
            assert (await running.user_view("ada"))["user"] == "ada"
            await broker.stop()

    asyncio.run(scenario())


def test_loading_a_new_core_is_retried_while_the_store_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable = True
    load = CoordinatorStore.load

    def failing(self: CoordinatorStore) -> StoredState:
        if unreadable:
            raise sa.exc.OperationalError("SELECT", {}, OSError("database is locked"))
        return load(self)

    def broken(*_: Any) -> list[Any]:
        raise AssertionError("a broken invariant")

    async def scenario() -> None:
        nonlocal unreadable
        async with coordinator(tmp_path) as running:
            monkeypatch.setattr("tocsin.runtime.coordinator.process.retry_delay_s", lambda failures, **bounds: 0.05)
            await running.user("ada")
            monkeypatch.setattr(CoordinatorStore, "load", failing)
            monkeypatch.setattr(running.server.process.core, "handle", broken)
            ready = await running.until("/readyz", lambda answer: not answer["ready"])
            assert ready["reasons"] == ["the store cannot be read: OperationalError"]
            refused = await running.admin.post("/v1/users", json={"user": "bob"})
            assert refused.status_code == 503, "requests are refused and do not wait"
            unreadable = False
            await running.until("/readyz", lambda answer: answer["ready"])
            assert (await running.admin.post("/v1/users", json={"user": "bob"})).status_code == 201
            assert (await running.user_view("ada"))["user"] == "ada"

    asyncio.run(scenario())


@pytest.mark.parametrize("breaks", ["_carry_out", "on_handled", "_commit"])
def test_failed_loop_ends_the_process_and_leaves_no_request_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    """A supervisor restarts a process that ended, but not one that stays up and does nothing."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("unforeseen")

    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            monkeypatch.setattr(running.server.process, breaks, broken)
            async with asyncio.timeout(10):
                request = running.admin.post("/v1/users", json={"user": "ada"})
                await asyncio.gather(request, return_exceptions=True)  # answered, or the connection is closed
                await running.server.process.ended.wait()

    with pytest.raises(TocsinError, match="ZeroDivisionError: unforeseen"):
        asyncio.run(scenario())
