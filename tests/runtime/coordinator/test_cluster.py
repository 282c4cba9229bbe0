"""What a forgotten broker held is let go at the data cluster, unless it comes back before that is done."""

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
from tocsin.runtime.coordinator.cluster import ClusterReleases
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.credentials import Signer

B1 = BrokerId("b1")


class DataCluster:
    """Shows what one broker holds, one subscription a page, and lets go of what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *held: str) -> None:
        self.held = list(held)
        self.is_away = False
        self.let_go: Callable[[], None] = lambda: None
        """Called each time a subscription was let go."""
        client = httpx.AsyncClient

        def connected(**options: Any) -> httpx.AsyncClient:
            return client(**options | {"transport": httpx.MockTransport(self.answer)})

        monkeypatch.setattr(httpx, "AsyncClient", connected)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)  # as any network would
        if self.is_away:
            raise httpx.ConnectError("away")
        if request.method == "GET":
            page = [{"channel": "C", "id": one} for one in self.held[:1]]
            return httpx.Response(200, json={"subscriptions": page})
        asked = json.loads(request.content)
        assert asked["unless_listening"], "it may be us whom nobody reaches"
        gone = asked["subscriptions"]
        self.held = [one for one in self.held if one not in gone]
        self.let_go()
        return httpx.Response(200, json={"released": len(gone)})


@pytest.fixture
def releases(tmp_path: Path) -> ClusterReleases:
    settings = CoordinatorSettings(state=str(tmp_path), cluster="http://cluster")
    return ClusterReleases(settings, Signer.load_or_create(tmp_path / "key.pem"))


async def calm() -> None:
    """Everything that waits for nobody has been done."""
    for _ in range(200):
        await asyncio.sleep(0)


def test_a_broker_that_is_back_keeps_what_was_not_let_go_yet(
    releases: ClusterReleases, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        cluster = DataCluster(monkeypatch, "old-1", "old-2")
        done: list[BrokerReleased] = []
        releases.done = done.append

        def returns() -> None:
            releases.keep(B1)
            cluster.held.append("new")

        cluster.let_go = returns
        releases.release(B1)
        await calm()
        assert cluster.held == ["old-2", "new"] and done == [], "it was back after the first page"
        cluster.let_go = lambda: None
        releases.release(B1)  # dismissed once more
        await calm()
        assert cluster.held == [] and done == [BrokerReleased(B1)]
        await releases.stop()

    asyncio.run(scenario())


def test_a_broker_that_is_back_before_the_data_cluster_is_loses_nothing(
    releases: ClusterReleases, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("tocsin.runtime.coordinator.cluster.retry_delay_s", lambda failures: 0.0)
        cluster = DataCluster(monkeypatch, "old")
        cluster.is_away = True
        releases.release(B1)
        await calm()
        releases.keep(B1)
        cluster.held, cluster.is_away = ["new"], False
        await calm()
        assert cluster.held == ["new"]
        await releases.stop()

    asyncio.run(scenario())
