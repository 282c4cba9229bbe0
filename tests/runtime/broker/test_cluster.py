"""The link to the data cluster: comparison of holds, and recovery from unexpected errors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.broker.running_broker import row, running_broker, until
from tests.runtime.broker.test_coordinator_link import ScriptedCoordinator
from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
from tocsin.runtime.broker import cluster as broker_cluster


def test_holds_of_an_earlier_run_are_released_after_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_cluster, "COMPARE_S", 0.5)

    async def scenario() -> None:
        coordinator = ScriptedCoordinator()
        async with EmulatedCluster("Reports") as cluster:
            cluster.held["b1"] = {"0" * 32}  # type: ignore[arg-type]
            async with (
                coordinator.running(),
                running_broker(tmp_path, cluster.url, coordinator=coordinator.url) as broker,
            ):
                await until(lambda: broker.core.linked)
                async with broker.session("ann") as ann:
                    identity = (await ann.subscribe())["subscription"]
                    await until(lambda: cluster.held["b1"] == {identity})

    asyncio.run(scenario())


def test_hold_released_elsewhere_is_detected_and_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_cluster, "COMPARE_S", 0.5)

    async def scenario() -> None:
        async with (
            EmulatedCluster("Reports") as cluster,
            running_broker(tmp_path, cluster.url) as broker,
            broker.session("ann") as ann,
        ):
            identity = (await ann.subscribe())["subscription"]
            await asyncio.sleep(1.2)
            assert cluster.requests.count("subscribe") == 1, "both sides agree"
            for number in (1, 3):  # twice
                cluster.held["b1"].clear()
                cluster.execute("Reports", {identity: [row(number)]})
                await until(lambda: cluster.held["b1"] == {identity})
                gap = await ann.push("gap")
                assert gap["subscription"] == identity
                cluster.execute("Reports", {identity: [row(number + 1)]})
                assert await ann.results(1) == [number + 1]
                await asyncio.sleep(1.2)

    asyncio.run(scenario())


@pytest.mark.parametrize("unexpected", [KeyError("Tocsin-Cursor"), OSError("the token's file is being replaced")])
def test_unexpected_error_stops_neither_orders_nor_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unexpected: Exception
) -> None:
    async def scenario() -> None:
        async with EmulatedCluster("Reports") as cluster, running_broker(tmp_path, cluster.url) as broker:
            failures = []

            def once(link: Any, name: str) -> None:
                method = getattr(link, name)

                async def fails(*arguments: object) -> object:
                    monkeypatch.setattr(link, name, method)
                    failures.append(name)
                    raise unexpected

                monkeypatch.setattr(link, name, fails)

            once(broker.server.cluster, "_post")
            once(broker.server.cluster.fetches, "_pull")
            async with broker.session("ann") as ann:
                identity = (await ann.subscribe())["subscription"]
                cluster.execute("Reports", {identity: [row(1)]})
                assert await ann.results(1) == [1]
            assert sorted(failures) == ["_post", "_pull"]

    asyncio.run(scenario())
