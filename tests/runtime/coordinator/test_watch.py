"""The live watch of a real coordinator: rows, pictures, recordings, and the pages that show them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.coordinator.harness import ADA, FakeBroker, WatchReader, coordinator, frontend, watching
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.model.trace import Kind, from_table
from tocsin.model.trace_state import TraceState
from tocsin.runtime.coordinator.server import CoordinatorServer
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.trace_recording import part_path, read_trace
from tocsin.wire.errors import TocsinError
from tocsin.wire.link import Changed, LoadReport, Prepare, Prepared, Release, Released, SessionOpened, Stored

LONG_TIMEOUTS: dict[str, Any] = {"suspect_s": 20.0, "dead_s": 30.0}
"""Time-outs so long that no broker becomes dead because this machine is busy."""
DRAINING = {"address": "ws://b1", "capacity": 1.0, "state": "draining", "accepting": False}


def test_watch_and_recording_show_join_migration_and_leave(tmp_path: Path) -> None:
    file = tmp_path / "trace.parquet"

    async def scenario() -> WatchReader:
        async with coordinator(tmp_path / "state", trace=str(file), balancing=False, **LONG_TIMEOUTS) as running:
            async with watching(running) as reader:
                await reader.until(Kind.TICK)
                source = await FakeBroker(running, "b1", lat=60.0, lon=25.0).connect()
                await running.user("ada")
                await running.place("ada")
                await source.send(SessionOpened(ADA))
                await source.send(Changed(1, ADA, added=[frontend()]))
                await source.receive(Stored)
                target = await FakeBroker(running, "b2").connect()
                answer = await running.admin.post("/v1/migrations", json={"subscriber": "ada", "target": "b2"})
                assert answer.status_code == 202
                prepare = await target.receive(Prepare)
                await target.send(Prepared(prepare.migration))
                await target.send(SessionOpened(ADA, prepare.migration))
                await source.receive(Release)
                await source.send(Released(ADA, prepare.migration))
                assert (await reader.until(Kind.MOVED, subscriber="ada")).target == "b2"
                await running.admin.delete("/v1/users/ada")
                await target.receive(Release)
                await target.send(Released(ADA))
                await reader.until(Kind.LEAVE, subscriber="ada", broker="b2")
                await running.admin.post("/v1/brokers/b1/drain", json={"on": True})
                await reader.until(Kind.BROKER, broker="b1", detail=DRAINING)
                for broker in (source, target):
                    await broker.stop()
            return reader

    reader = asyncio.run(scenario())
    changes = [(row.kind, row.broker, row.target) for row in reader.rows if row.subscriber == "ada"]
    assert changes == [("join", "b1", None), ("move", "b1", "b2"), ("moved", "b1", "b2"), ("leave", "b2", None)]
    [moved] = [row for row in reader.rows if row.kind == Kind.MOVE]
    assert moved.note == "asked for"
    [plan] = [row for row in reader.rows if row.kind == Kind.PLAN]
    assert plan.moves == 1 and plan.detail is not None and plan.detail["taken"] == 1
    states = [
        (row.lat, (row.detail or {})["state"]) for row in reader.rows if (row.kind, row.broker) == ("broker", "b1")
    ]
    assert states[:2] == [(60.0, "alive"), (60.0, "draining")]
    assert reader.pictures == 1
    times = [row.time_s for row in reader.rows]
    assert times == sorted(times)
    recorded = list(from_table(read_trace(file)))
    streamed = [row for row in reader.rows if row.kind not in (Kind.TICK, Kind.SAMPLE, Kind.BALANCE)]
    kinds = {row.kind for row in streamed}
    assert [row for row in recorded if row.kind in kinds][: len(streamed)] == streamed
    assert [row.time_s for row in recorded] == sorted(row.time_s for row in recorded)
    assert not part_path(file).exists()


def test_picture_has_every_home_and_positions_can_be_left_out(tmp_path: Path) -> None:
    streets = tmp_path / "streets.json"
    streets.write_text('{"type": "LineString", "coordinates": [[24.9, 60.1], [25.0, 60.2]]}', encoding="utf-8")

    async def scenario() -> None:
        async with coordinator(tmp_path / "state", streets=str(streets), **LONG_TIMEOUTS) as running:
            broker = await FakeBroker(running, "b1").connect()
            for number in range(5):
                await running.user(f"u{number}")
                await running.place(f"u{number}")
            await broker.send(LoadReport(10.0, 20.0, {}))
            await running.until("/v1/brokers/b1", lambda answer: answer["out_bytes_per_s"] == 20.0)
            async with watching(running) as reader:
                await reader.until(Kind.TICK)
                present = TraceState()
                for row in reader.rows:
                    present.fold(row)
                assert present.homes == {f"u{number}": "b1" for number in range(5)}
                [street] = [row for row in reader.rows if row.kind == Kind.STREET]
                assert street.detail == {"line": [[60.1, 24.9], [60.2, 25.0]]}
                [sample] = [row for row in reader.rows if row.kind == Kind.SAMPLE]
                assert sample.subscribers == 5 and (sample.detail or {})["out_bytes_per_s"] == 20.0
                [balance] = [row for row in reader.rows if row.kind == Kind.BALANCE]
                assert balance.subscribers == 5 and (balance.detail or {})["placement"] == "nearest"
            async with watching(running, "?positions=false") as reader:
                await reader.until(Kind.TICK)
                assert not [row for row in reader.rows if row.kind == Kind.STREET]
            await broker.stop()

    asyncio.run(scenario())


def test_subscribers_and_subscriptions_of_a_broker_are_listed_heaviest_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, **LONG_TIMEOUTS) as running:
            broker = await FakeBroker(running, "b1").connect()
            for number, name in enumerate(("ada", "bob", "eve"), 1):
                await running.user(name)
                await running.place(name)
                added = [frontend(f"s{n}") for n in range(number)]
                await broker.send(Changed(number, SubscriberId(name), added=added))
            while (await broker.receive(Stored)).upto < 3:
                pass
            await broker.send(LoadReport(1.0, 2.0, {SubscriptionId("s1"): 40.0}))
            path = "/v1/brokers/b1/subscribers?limit=2"
            answer = await running.until(path, lambda answer: answer["subscribers"][0]["load_bytes_per_s"] > 0)
            assert answer["total"] == 3 and [view["subscriber"] for view in answer["subscribers"]] == ["bob", "eve"]
            assert answer["subscribers"][1] == {
                "subscriber": "eve",
                "online": False,
                "subscriptions": 3,
                "load_bytes_per_s": 40.0,
            }
            answer = (await running.admin.get("/v1/brokers/b1/subscriptions?limit=2")).json()
            assert answer["total"] == 3
            held = answer["subscriptions"]
            rates = [(view["subscription"], view["frontend"], view["rate_bytes_per_s"]) for view in held]
            assert rates == [("s1", 2, 40.0), ("s0", 3, 0.0)]
            assert answer["subscriptions"][0]["parameters"] == {"kind": "x"}
            assert (await running.admin.get("/v1/brokers/unknown/subscribers")).status_code == 404
            no_cluster = await running.admin.get("/v1/cluster/channels")
            assert no_cluster.status_code == 404 and "knows no data cluster" in no_cluster.json()["error"]["message"]
            await broker.stop()

    asyncio.run(scenario())


def test_watch_requires_the_scope_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            assert (await running.client(None).get("/v1/watch")).status_code == 401
            unprivileged = running.client(await running.token_for("register"))
            assert (await unprivileged.get("/v1/watch")).status_code == 403
            assert (await running.admin.get("/v1/replay")).status_code == 404, (
                "the page recognises a live coordinator by this"
            )
            assert (await running.client(None).get("/")).status_code == 404, "no folder of pages is set"

    asyncio.run(scenario())


def test_pages_need_no_token_and_load_nothing_from_other_servers(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.html").write_text("<title>Tocsin</title>", encoding="utf-8")
    (pages / "app.js").write_text("1", encoding="utf-8")

    async def scenario() -> None:
        async with coordinator(tmp_path / "state", pages=pages) as running:
            anonymous = running.client(None)
            index, script = await anonymous.get("/"), await anonymous.get("/static/app.js")
            assert index.text == "<title>Tocsin</title>" and script.status_code == 200
            for answer in (index, script):
                assert "default-src 'self'; connect-src 'self' ws: wss:" in answer.headers["content-security-policy"]
            assert (await anonymous.get("/static/../state/admin-token")).status_code == 404
            assert (await anonymous.get("/static/%2e%2e/state/admin-token")).status_code == 404

    asyncio.run(scenario())


def test_unreachable_data_cluster_becomes_a_row_and_no_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, cluster="http://127.0.0.1:9") as running, watching(running) as reader:
            row = await reader.until(Kind.CLUSTER)
            assert row.detail is not None and row.detail["ready"] is False
            relayed = await running.admin.get("/v1/cluster/datasets")
            assert relayed.status_code == 503 and relayed.headers["retry-after"]

    asyncio.run(scenario())


def test_unreadable_file_of_streets_fails_the_start(tmp_path: Path) -> None:
    async def start() -> None:
        settings = CoordinatorSettings(state=str(tmp_path), port=0, streets=str(tmp_path / "none.json"))
        await CoordinatorServer(settings).run()

    with pytest.raises(TocsinError, match=r"streets: .*none\.json"):
        asyncio.run(start())
