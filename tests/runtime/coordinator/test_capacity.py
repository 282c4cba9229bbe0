"""The capacity of brokers for topics: ordered over REST, stored, sent to brokers, shown with their loads."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.runtime.coordinator.harness import FakeBroker, coordinator
from tocsin.model.ids import TopicName
from tocsin.wire.site_link import Capacity, SetCapacity, SiteLoad, TopicLoad

PATH = "/v1/brokers/b1/capacity"


def test_ordered_capacity_reaches_the_broker_and_survives_restarts(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = Capacity(matched_per_s=500.0)
        async with coordinator(tmp_path) as running:
            broker = await FakeBroker(running, "b1", topics=True, limits=limits).connect()
            shown = (await running.admin.get("/v1/brokers/b1")).json()["topic_capacity"]
            assert (shown["matched_per_s"], shown["out_bytes_per_s"], shown["ordered"]) == (500.0, None, False)
            changed = await running.admin.put(PATH, json={"out_bytes_per_s": 2e5})
            assert changed.status_code == 200, changed.text
            assert (changed.json()["out_bytes_per_s"], changed.json()["ordered"]) == (2e5, True)
            expected = Capacity(None, 2e5, 500.0)
            assert (await broker.receive(SetCapacity)).capacity == expected
            await broker.stop()
        async with coordinator(tmp_path) as running:
            broker = await FakeBroker(running, "b1", topics=True, limits=limits).connect()
            assert (await broker.receive(SetCapacity)).capacity == expected
            shown = (await running.admin.get("/v1/brokers/b1")).json()["topic_capacity"]
            assert (shown["out_bytes_per_s"], shown["ordered"]) == (2e5, True)
            assert shown["configured"]["matched_per_s"] == 500.0
            await running.admin.put(PATH, json={"out_bytes_per_s": None, "matched_per_s": 7})
            assert (await broker.receive(SetCapacity)).capacity == Capacity(None, None, 7.0)
            await broker.stop()

    asyncio.run(scenario())


def test_capacity_needs_an_administrator_and_sensible_numbers(tmp_path: Path) -> None:
    async def scenario() -> None:
        audit = tmp_path / "audit.jsonl"
        async with coordinator(tmp_path, audit=str(audit)) as running:
            broker = await FakeBroker(running, "b1").connect()
            reader = running.client(await running.token_for("read"))
            assert (await reader.put(PATH, json={"out_bytes_per_s": 1})).status_code == 403
            for body in ({"out_bytes_per_s": 0}, {"matched_per_s": -1}, {"out": 5}, {"in_bytes_per_s": "x"}):
                assert (await running.admin.put(PATH, json=body)).status_code == 400, body
            missing = await running.admin.put("/v1/brokers/b9/capacity", json={"matched_per_s": 1})
            assert missing.status_code == 404
            assert (await running.admin.put(PATH, json={"matched_per_s": 9})).status_code == 200
            await broker.stop()
        lines = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
        recorded = [line["outcome"] for line in lines if line["object"] == PATH]
        assert recorded == ["forbidden", "refused", "refused", "refused", "refused", "ok"]

    asyncio.run(scenario())


def test_loads_are_shown_with_their_state_and_as_metrics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            broker = await FakeBroker(running, "b1", topics=True, limits=Capacity(1e4, 1e5, 100.0)).connect()
            assert (await running.admin.get("/v1/brokers/b1")).json()["topic_load"] is None
            await broker.send(SiteLoad([TopicLoad(TopicName("t"), 5e3, 1.5e5, 50.0, 30, 1)], 4_000, 3, 1e5))
            view = await running.until("/v1/brokers/b1", lambda answer: answer["topic_load"] is not None)
            load = view["topic_load"]
            assert (load["state"], load["Ui"], load["Uo"], load["Um"]) == ("OVERLOAD", 0.5, 1.5, 0.5)
            assert (load["waiting_bytes"], load["waiting_messages"], load["topics"]) == (4_000, 3, 1)
            metrics = (await running.admin.get("/metrics")).text
            assert 'tocsin_coordinator_broker_topic_utilisation{broker="b1",metric="Uo"} 1.5' in metrics
            assert 'tocsin_coordinator_broker_topic_load_state{broker="b1"} 2.0' in metrics
            await broker.stop()

    asyncio.run(scenario())
