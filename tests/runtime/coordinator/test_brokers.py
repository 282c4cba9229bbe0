"""Brokers of a running coordinator: failover, silence, drains, the grace period after a restart, reported loads."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.runtime.coordinator.harness import ADA, FakeBroker, coordinator, frontend
from tocsin.model.ids import SubscriberId
from tocsin.wire.link import (
    Accepting,
    Adopt,
    Changed,
    LoadReport,
    Prepare,
    Prepared,
    Register,
    Registered,
    Release,
    Released,
    Stored,
)


def test_subscribers_of_a_dead_broker_move_and_it_returns_on_probation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, probation_s=60) as running:
            first = await FakeBroker(running, "b1").connect()
            for name in ("ada", "bob", "eve"):
                await running.user(name)
                await running.place(name)
            for number, name in enumerate(("ada", "bob", "eve")):
                await first.send(Changed(number, SubscriberId(name), added=[frontend()]))
            while (await first.receive(Stored)).upto < 2:
                pass
            second = await FakeBroker(running, "b2").connect()
            await first.stop()
            adopted: set[str] = set()
            while len(adopted) < 3:
                adopted |= {state.subscriber for state in (await second.receive(Adopt)).subscribers}
            assert (await running.user_view("ada"))["broker"] == "b2"
            await running.until("/v1/brokers/b1", lambda answer: answer["state"] == "dead")
            # The broker was only paused and returns with its subscribers: it must release them and accept no new ones.
            back = FakeBroker(running, "b1", hosting=[ADA])
            await back.connect(register=False)
            await back.send(Register(back.id, **back.registration))
            assert not (await back.receive(Registered)).accepting
            assert (await back.receive(Release)).subscriber == "ada"
            assert (await running.admin.get("/v1/brokers/b1")).json()["state"] == "probation"
            for broker in (back, second):
                await broker.stop()

    asyncio.run(scenario())


def test_silent_broker_becomes_suspect_then_dead_despite_an_open_link(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            silent = await FakeBroker(running, "b1").connect(beat=False)
            await running.until("/v1/brokers/b1", lambda answer: answer["state"] == "suspect")
            await running.until("/v1/brokers/b1", lambda answer: answer["state"] == "dead")
            assert "register again" in (await silent.wait_closed())[1]
            await silent.stop()

    asyncio.run(scenario())


def test_drain_moves_all_subscribers_and_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            first = await FakeBroker(running, "b1").connect()
            for name in ("ada", "bob"):
                await running.user(name)
                await running.place(name)
            drained = await running.admin.post("/v1/brokers/b1/drain", json={"on": True})
            assert drained.json() == {"draining": True, "subscribers": 2}
            accepting = await first.receive(Accepting)
            assert accepting.draining and not accepting.accepting
            in_use = await running.admin.delete("/v1/brokers/b1")
            assert in_use.status_code == 409
            await first.stop()
        async with coordinator(tmp_path) as running:
            first = await FakeBroker(running, "b1", hosting=["ada", "bob"]).connect()
            assert (await first.receive(Accepting)).draining
            second = await FakeBroker(running, "b2").connect()
            for _ in range(2):  # the subscribers are offline, so preparation completes the migration
                await second.send(Prepared((await second.receive(Prepare)).migration))
            for _ in range(2):
                release = await first.receive(Release)
                await first.send(Released(release.subscriber, release.migration))
            await running.until("/v1/brokers/b1", lambda answer: not answer["subscribers"] + answer["migrations_out"])
            assert (await running.admin.delete("/v1/brokers/b1")).status_code == 202
            assert "dismissed" in (await first.wait_closed())[1]
            await running.until(
                "/v1/brokers", lambda answer: [broker["broker"] for broker in answer["brokers"]] == ["b2"]
            )
            for broker in (first, second):
                await broker.stop()

    asyncio.run(scenario())


def test_brokers_have_a_grace_period_after_a_coordinator_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            broker = await FakeBroker(running, "b1").connect()
            await running.user("ada")
            await running.place("ada")
            await broker.send(Changed(1, ADA, added=[frontend()]))
            await broker.receive(Stored)
            await broker.stop()
        async with coordinator(tmp_path, grace_s=1.5) as running:
            other = await FakeBroker(running, "b2").connect()
            assert (await running.admin.get("/v1/brokers/b1")).json()["state"] == "suspect"
            started_s = time.monotonic()
            await other.receive(Adopt)
            assert time.monotonic() - started_s > 0.8
            await other.stop()

    asyncio.run(scenario())


def test_status_shows_loads_and_their_coefficient_of_variation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            first, second = await FakeBroker(running, "b1").connect(), await FakeBroker(running, "b2").connect()
            await first.send(LoadReport(100.0, 200.0, {frontend().subscription: 100.0}, delivery_s_p95=0.01))
            await second.send(LoadReport(0.0, 100.0, {}))
            status = await running.until("/v1/status", lambda answer: answer["load_bytes_per_s"] == 400)
            assert [broker["load_bytes_per_s"] for broker in status["brokers"]] == [300, 100]
            assert status["cov"] == pytest.approx(0.5)
            metrics = (await running.admin.get("/metrics")).text
            assert 'tocsin_coordinator_broker_load_bytes_per_second{broker="b1"} 300.0' in metrics
            assert 'tocsin_coordinator_brokers{state="alive"} 2.0' in metrics
            for broker in (first, second):
                await broker.stop()

    asyncio.run(scenario())
