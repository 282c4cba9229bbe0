"""Release of a forgotten broker's subscriptions at the data cluster, unless the broker comes back first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tocsin.coordinator.events import BrokerReleased
from tocsin.model.ids import BrokerId
from tocsin.runtime.coordinator.cluster import ClusterReleases, cluster_state
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.credentials import Signer

B1 = BrokerId("b1")


class FakeDataCluster:
    """Lists the subscriptions of one broker, one a page, and releases them on request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *held: str) -> None:
        self.held = list(held)
        self.is_down = False
        self.released: Callable[[], None] = lambda: None
        """Called after each release."""
        client = httpx.AsyncClient

        def connected(**options: Any) -> httpx.AsyncClient:
            return client(**options | {"transport": httpx.MockTransport(self.answer)})

        monkeypatch.setattr(httpx, "AsyncClient", connected)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)  # a network also yields to the loop
        if self.is_down:
            raise httpx.ConnectError("down")
        if request.method == "GET":
            page = [{"channel": "C", "id": subscription} for subscription in self.held[:1]]
            return httpx.Response(200, json={"subscriptions": page})
        body = json.loads(request.content)
        assert body["unless_listening"], "the broker may be alive and only the coordinator disconnected"
        removed = body["subscriptions"]
        self.held = [subscription for subscription in self.held if subscription not in removed]
        self.released()
        return httpx.Response(200, json={"released": len(removed)})


@pytest.fixture
def releases(tmp_path: Path) -> ClusterReleases:
    settings = CoordinatorSettings(state=str(tmp_path), cluster="http://cluster")
    return ClusterReleases(settings, Signer.load_or_create(tmp_path / "key.pem"))


async def run_pending_tasks() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def test_returned_broker_keeps_subscriptions_that_are_not_released_yet(
    releases: ClusterReleases, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        cluster = FakeDataCluster(monkeypatch, "old-1", "old-2")
        done: list[BrokerReleased] = []
        releases.done = done.append

        def broker_returns() -> None:
            releases.keep(B1)
            cluster.held.append("new")

        cluster.released = broker_returns
        releases.release(B1)
        await run_pending_tasks()
        assert cluster.held == ["old-2", "new"] and done == [], "the broker was back after the first page"
        cluster.released = lambda: None
        releases.release(B1)  # dismissed once more
        await run_pending_tasks()
        assert cluster.held == [] and done == [BrokerReleased(B1)]
        await releases.stop()

    asyncio.run(scenario())


def test_broker_that_returns_before_the_data_cluster_loses_nothing(
    releases: ClusterReleases, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("tocsin.runtime.coordinator.cluster.retry_delay_s", lambda failures: 0.0)
        cluster = FakeDataCluster(monkeypatch, "old")
        cluster.is_down = True
        releases.release(B1)
        await run_pending_tasks()
        releases.keep(B1)
        cluster.held, cluster.is_down = ["new"], False
        await run_pending_tasks()
        assert cluster.held == ["new"]
        await releases.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("response", "ready", "reason"),
    [
        (httpx.Response(200, json={"ready": True, "reasons": [], "late": [], "spark": {}}), True, ""),
        (
            httpx.Response(503, json={"error": {"code": "not_ready", "message": "still starting"}}),
            False,
            "still starting",
        ),
        (httpx.Response(200, content=b"not JSON"), False, "does not answer"),
        (None, False, "does not answer (ConnectError)"),
    ],
)
def test_state_of_the_data_cluster_is_known_or_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, response: httpx.Response | None, ready: bool, reason: str
) -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        if response is None:
            raise httpx.ConnectError("down")
        return response

    client = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **o: client(**o | {"transport": httpx.MockTransport(answer)}))
    settings = CoordinatorSettings(state=str(tmp_path), cluster="http://cluster")
    state = asyncio.run(cluster_state(settings, Signer.load_or_create(tmp_path / "key.pem")))
    assert state is not None and state["ready"] is ready and reason in "".join(state["reasons"]) and state["late"] == []


def test_coordinator_without_a_data_cluster_has_no_state_of_it(tmp_path: Path) -> None:
    signer = Signer.load_or_create(tmp_path / "key.pem")
    assert asyncio.run(cluster_state(CoordinatorSettings(state=str(tmp_path)), signer)) is None
