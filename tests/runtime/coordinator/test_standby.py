"""Two coordinators on one PostgreSQL store: one leads, the other refuses requests and takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tests import postgresql
from tests.runtime.coordinator.harness import FakeBroker, RunningCoordinator, coordinator
from tocsin.leaders.clients import leading_client
from tocsin.wire.errors import STANDBY_HEADER, TocsinError

LEASE_S = 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    yield from postgresql.running_or_skipped()


@pytest.fixture
def pair(server: str) -> dict[str, Any]:
    postgresql.make_empty(server)
    return {"store": server, "standby": True, "lease_s": LEASE_S, "token_file": True}


async def until_ready(running: RunningCoordinator) -> None:
    async with asyncio.timeout(10):
        while (await running.admin.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.05)


def both(first: RunningCoordinator, second: RunningCoordinator) -> httpx.AsyncClient:
    """A client that knows the standby's address first."""
    return leading_client(f"{second.url},{first.url}", headers=first.admin.headers, timeout=10.0)


def test_standby_names_the_leader_and_clients_follow(tmp_path: Path, pair: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path / "one", **pair) as first:
            (tmp_path / "two").mkdir()
            (tmp_path / "two" / "admin-token").write_text("none")
            async with coordinator(tmp_path / "two", **pair) as second:
                refused = await second.admin.get("/v1/status")
                assert refused.status_code == 503 and refused.headers[STANDBY_HEADER] == first.url
                assert first.url in refused.json()["error"]["message"]
                assert (await second.admin.get("/healthz")).status_code == 200
                assert (await second.admin.get("/readyz")).status_code == 503
                async with both(first, second) as client:
                    assert (await client.post("/v1/users", json={"user": "ada"})).status_code == 201
                with pytest.raises(Exception, match="503"):
                    await FakeBroker(second, "b1").connect(first.token)

    asyncio.run(scenario())


def test_standby_takes_over_with_the_keys_when_the_leader_stops(tmp_path: Path, pair: dict[str, Any]) -> None:
    async def scenario() -> None:
        (tmp_path / "two").mkdir()
        (tmp_path / "two" / "admin-token").write_text("none")
        first_running = coordinator(tmp_path / "one", **pair)
        first = await first_running.__aenter__()
        async with coordinator(tmp_path / "two", **pair) as second:
            user = await first.user("ada")
            rotated = await first.admin.post("/v1/keys/rotate", json={})
            assert rotated.status_code == 200
            client = both(first, second)
            token = user.headers["Authorization"]
            await first_running.__aexit__(None, None, None)
            await until_ready(second)
            answer = await client.get("/v1/users/ada", headers={"Authorization": token})
            assert answer.status_code == 200, "a token of the former leader, signed with a retired key, is valid"
            assert (await client.get("/v1/status")).status_code == 200
            await client.aclose()

    asyncio.run(scenario())


def test_leader_cut_off_from_its_store_is_followed_and_ends(
    tmp_path: Path, pair: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        (tmp_path / "two").mkdir()
        (tmp_path / "two" / "admin-token").write_text("none")
        async with coordinator(tmp_path / "one", **pair) as first:
            await first.user("ada")
            lease = first.server.leadership.lease
            with monkeypatch.context() as cut:
                cut.setattr(lease._table, "renew", unreachable)
                async with coordinator(tmp_path / "two", **pair) as second:
                    await until_ready(second)
                    assert not lease.is_held()
                    refused = await first.admin.post("/v1/users", json={"user": "bob"})
                    assert refused.status_code == 503 and STANDBY_HEADER in refused.headers
                    second.admin.headers["Authorization"] = first.admin.headers["Authorization"]
                    assert (await second.user_view("ada"))["user"] == "ada"
                    cut.undo()
                    async with asyncio.timeout(10):
                        await first.server.process.ended.wait()
                    assert (await second.admin.post("/v1/users", json={"user": "bob"})).status_code == 201

    with pytest.raises(TocsinError, match="taken over"):
        asyncio.run(scenario())


def unreachable(*_: object) -> bool:
    raise sa.exc.OperationalError("renew", None, Exception("no route to the server"))
