"""Watching a real coordinator: what happens is told, a slow watcher gets a picture, recordings are what was told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.coordinator.harness import ADA, FakeBroker, Running, coordinator, frontend
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.model.trace import Kind, TraceRow, from_json, from_table
from tocsin.model.trace_state import TraceState
from tocsin.runtime.coordinator.server import CoordinatorServer
from tocsin.runtime.http.event_streams import read_events
from tocsin.runtime.http.trace_recording import Recording, finish, part_path, read_trace, unused_path
from tocsin.runtime.http.trace_stream import FRAMES, TraceStream
from tocsin.wire.errors import TocsinError
from tocsin.wire.link import Changed, LoadReport, Prepare, Prepared, Release, Released, SessionOpened, Stored

PATIENT: dict[str, Any] = {"suspect_s": 20.0, "dead_s": 30.0}
"""No broker is called dead because this machine is busy."""
DRAINING = {"address": "ws://b1", "capacity": 1.0, "state": "draining", "accepting": False}


class Watched:
    """One connection to /v1/watch, and everything it was told."""

    def __init__(self, events: AsyncIterator[tuple[str, str]]) -> None:
        self._events = events
        self.rows: list[TraceRow] = []
        self.pictures = 0

    async def until(self, kind: str, **columns: Any) -> TraceRow:
        """The first row like this, of those told so far or to come."""
        looked_at = 0
        async with asyncio.timeout(20):
            while True:
                for row in self.rows[looked_at:]:
                    if row.kind == kind and all(getattr(row, name) == value for name, value in columns.items()):
                        return row
                looked_at = len(self.rows)
                event, data = await anext(self._events)
                self.pictures += event == "picture"
                self.rows += from_json(data)


@asynccontextmanager
async def watching(running: Running, query: str = "") -> AsyncIterator[Watched]:
    running.server.api.watch.frame_s = 0.05
    async with running.admin.stream("GET", f"/v1/watch{query}") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Watched(read_events(answer.aiter_bytes()))


def test_a_life_is_told_from_joining_to_leaving_and_recorded_as_it_was_told(tmp_path: Path) -> None:
    file = tmp_path / "trace.parquet"

    async def scenario() -> Watched:
        async with coordinator(tmp_path / "state", trace=str(file), balancing=False, **PATIENT) as running:
            async with watching(running) as seen:
                await seen.until(Kind.TICK)
                source = await FakeBroker(running, "b1", lat=60.0, lon=25.0).connect()
                await running.user("ada")
                await running.place("ada")
                await source.say(SessionOpened(ADA))
                await source.say(Changed(1, ADA, added=[frontend()]))
                await source.hears(Stored)
                target = await FakeBroker(running, "b2").connect()
                asked = await running.admin.post("/v1/migrations", json={"subscriber": "ada", "target": "b2"})
                assert asked.status_code == 202
                prepare = await target.hears(Prepare)
                await target.say(Prepared(prepare.migration))
                await target.say(SessionOpened(ADA, prepare.migration))
                await source.hears(Release)
                await source.say(Released(ADA, prepare.migration))
                assert (await seen.until(Kind.MOVED, subscriber="ada")).target == "b2"
                await running.admin.delete("/v1/users/ada")
                await target.hears(Release)
                await target.say(Released(ADA))
                await seen.until(Kind.LEAVE, subscriber="ada", broker="b2")
                await running.admin.post("/v1/brokers/b1/drain", json={"on": True})
                await seen.until(Kind.BROKER, broker="b1", detail=DRAINING)
                for broker in (source, target):
                    await broker.stop()
            return seen

    seen = asyncio.run(scenario())
    told = [(row.kind, row.broker, row.target) for row in seen.rows if row.subscriber == "ada"]
    assert told == [("join", "b1", None), ("move", "b1", "b2"), ("moved", "b1", "b2"), ("leave", "b2", None)]
    [moved] = [row for row in seen.rows if row.kind == Kind.MOVE]
    assert moved.note == "asked for"
    [plan] = [row for row in seen.rows if row.kind == Kind.PLAN]
    assert plan.moves == 1 and plan.detail is not None and plan.detail["taken"] == 1
    states = [(row.lat, (row.detail or {})["state"]) for row in seen.rows if (row.kind, row.broker) == ("broker", "b1")]
    assert states[:2] == [(60.0, "alive"), (60.0, "draining")]
    assert seen.pictures == 1
    times = [row.time_s for row in seen.rows]
    assert times == sorted(times)
    recorded = list(from_table(read_trace(file)))
    streamed = [row for row in seen.rows if row.kind not in (Kind.TICK, Kind.SAMPLE, Kind.BALANCE)]
    kinds = {row.kind for row in streamed}
    assert [row for row in recorded if row.kind in kinds][: len(streamed)] == streamed
    assert [row.time_s for row in recorded] == sorted(row.time_s for row in recorded)
    assert not part_path(file).exists()


def test_a_picture_says_where_everybody_is_and_positions_can_be_left_out(tmp_path: Path) -> None:
    streets = tmp_path / "streets.json"
    streets.write_text('{"type": "LineString", "coordinates": [[24.9, 60.1], [25.0, 60.2]]}', encoding="utf-8")

    async def scenario() -> None:
        async with coordinator(tmp_path / "state", streets=str(streets), **PATIENT) as running:
            broker = await FakeBroker(running, "b1").connect()
            for number in range(5):
                await running.user(f"u{number}")
                await running.place(f"u{number}")
            await broker.say(LoadReport(10.0, 20.0, {}))
            await running.until("/v1/brokers/b1", lambda found: found["out_bytes_per_s"] == 20.0)
            async with watching(running) as seen:
                await seen.until(Kind.TICK)
                present = TraceState()
                for row in seen.rows:
                    present.fold(row)
                assert present.homes == {f"u{number}": "b1" for number in range(5)}
                [street] = [row for row in seen.rows if row.kind == Kind.STREET]
                assert street.detail == {"line": [[60.1, 24.9], [60.2, 25.0]]}
                [sample] = [row for row in seen.rows if row.kind == Kind.SAMPLE]
                assert sample.subscribers == 5 and (sample.detail or {})["out_bytes_per_s"] == 20.0
                [balance] = [row for row in seen.rows if row.kind == Kind.BALANCE]
                assert balance.subscribers == 5 and (balance.detail or {})["placement"] == "nearest"
            async with watching(running, "?positions=false") as seen:
                await seen.until(Kind.TICK)
                assert not [row for row in seen.rows if row.kind == Kind.STREET]
            await broker.stop()

    asyncio.run(scenario())


def test_whom_and_what_a_broker_serves_is_listed_heaviest_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, **PATIENT) as running:
            broker = await FakeBroker(running, "b1").connect()
            for number, name in enumerate(("ada", "bob", "eve"), 1):
                await running.user(name)
                await running.place(name)
                added = [frontend(f"s{n}") for n in range(number)]
                await broker.say(Changed(number, SubscriberId(name), added=added))
            while (await broker.hears(Stored)).upto < 3:
                pass
            await broker.say(LoadReport(1.0, 2.0, {SubscriptionId("s1"): 40.0}))
            path = "/v1/brokers/b1/subscribers?limit=2"
            said = await running.until(path, lambda found: found["subscribers"][0]["load_bytes_per_s"] > 0)
            assert said["total"] == 3 and [one["subscriber"] for one in said["subscribers"]] == ["bob", "eve"]
            assert said["subscribers"][1] == {
                "subscriber": "eve", "online": False, "subscriptions": 3, "load_bytes_per_s": 40.0
            }  # fmt: skip
            said = (await running.admin.get("/v1/brokers/b1/subscriptions?limit=2")).json()
            assert said["total"] == 3
            found = [(one["subscription"], one["frontend"], one["rate_bytes_per_s"]) for one in said["subscriptions"]]
            assert found == [("s1", 2, 40.0), ("s0", 3, 0.0)]
            assert said["subscriptions"][0]["parameters"] == {"kind": "x"}
            assert (await running.admin.get("/v1/brokers/nobody/subscribers")).status_code == 404
            away = await running.admin.get("/v1/cluster/channels")
            assert away.status_code == 404 and "knows no data cluster" in away.json()["error"]["message"]
            await broker.stop()

    asyncio.run(scenario())


def test_only_readers_may_watch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            assert (await running.client(None).get("/v1/watch")).status_code == 401
            nobody = running.client(await running.token_for("register"))
            assert (await nobody.get("/v1/watch")).status_code == 403
            assert (await running.admin.get("/v1/replay")).status_code == 404, "by which the page knows that it is live"
            assert (await running.client(None).get("/")).status_code == 404, "no pages were given to it"

    asyncio.run(scenario())


def test_pages_are_for_everybody_and_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.html").write_text("<title>Tocsin</title>", encoding="utf-8")
    (pages / "app.js").write_text("1", encoding="utf-8")

    async def scenario() -> None:
        async with coordinator(tmp_path / "state", pages=pages) as running:
            stranger = running.client(None)
            index, script = await stranger.get("/"), await stranger.get("/static/app.js")
            assert index.text == "<title>Tocsin</title>" and script.status_code == 200
            for answer in (index, script):
                assert "default-src 'self'; connect-src 'self' ws: wss:" in answer.headers["content-security-policy"]
            assert (await stranger.get("/static/../state/admin-token")).status_code == 404
            assert (await stranger.get("/static/%2e%2e/state/admin-token")).status_code == 404

    asyncio.run(scenario())


def test_a_data_cluster_that_is_away_is_a_row_and_never_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, cluster="http://127.0.0.1:9") as running, watching(running) as seen:
            row = await seen.until(Kind.CLUSTER)
            assert row.detail is not None and row.detail["ready"] is False
            relayed = await running.admin.get("/v1/cluster/datasets")
            assert relayed.status_code == 503 and relayed.headers["retry-after"]

    asyncio.run(scenario())


# -- the stream by itself ----------------------------------------------------------------------------------------------


def test_a_watcher_that_falls_behind_gets_a_picture_instead_of_a_backlog() -> None:
    async def scenario() -> None:
        stream = TraceStream(lambda: [TraceRow(99.0, Kind.TICK)])
        events = read_events(stream.watch())
        assert (await anext(events))[0] == "picture"
        stream.send([TraceRow(1.0, Kind.TICK)])
        assert await anext(events) == ("rows", '[{"time_s":1.0,"kind":"tick"}]')
        for number in range(FRAMES + 2):
            stream.send([TraceRow(float(number), Kind.TICK)])
        assert await anext(events) == ("picture", '[{"time_s":99.0,"kind":"tick"}]')
        stream.send([TraceRow(3.0, Kind.TICK)])
        assert (await anext(events))[1] == '[{"time_s":3.0,"kind":"tick"}]'
        stream.close()
        assert [event async for event in events] == []
        assert stream.watchers == 0

    asyncio.run(scenario())


def test_a_slow_reader_holds_only_so_much_and_nobody_else_waits_for_it() -> None:
    async def scenario() -> None:
        stream = TraceStream(list)
        slow, quick = read_events(stream.watch()), read_events(stream.watch())
        await anext(slow), await anext(quick)
        note = "x" * (1 << 20)
        for number in range(40):
            stream.send([TraceRow(float(number), Kind.TICK, note=note)])
            assert (await anext(quick))[0] == "rows"
        assert (await anext(slow))[0] == "picture"
        stream.close()

    asyncio.run(scenario())


# -- recordings --------------------------------------------------------------------------------------------------------


def test_what_a_crash_left_of_a_recording_is_read_and_finished(tmp_path: Path) -> None:
    file = tmp_path / "run" / "trace.parquet"
    recording = Recording(file)
    rows = [TraceRow(float(number), Kind.JOIN, subscriber=f"u{number}", broker="b") for number in range(300)]
    recording.add(rows[:200], False)
    recording.flush()
    recording.add(rows[200:], False)
    recording.flush()
    crashed = file.with_name("crashed.parquet")
    part_path(crashed).write_bytes(part_path(file).read_bytes()[:-500])
    recording.close()
    assert list(from_table(read_trace(file))) == rows
    assert list(from_table(read_trace(crashed))) == rows[:200]
    with pytest.raises(TocsinError, match="a recording that crashed"):
        Recording(crashed)
    finish(crashed)
    assert list(from_table(read_trace(crashed))) == rows[:200] and not part_path(crashed).exists()
    with pytest.raises(TocsinError, match="not overwritten"):
        Recording(crashed)
    again = file.with_name("crashed-2.parquet")
    part_path(again).write_bytes(b"torn at once")
    assert unused_path(crashed).name == "crashed-3.parquet", "a restart after a second crash begins a third"
    assert read_trace(again).num_rows == 0


def test_a_picture_in_the_middle_is_marked_and_time_never_runs_back(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "trace.parquet")
    recording.add([TraceRow(1.0, Kind.TICK)], True)
    recording.add([TraceRow(5.0, Kind.JOIN, subscriber="ada", broker="b")], False)
    recording.add([TraceRow(2.0, Kind.EVENT, note="fire"), TraceRow(4.0, Kind.TICK)], True)
    recording.close()
    rows = list(from_table(read_trace(tmp_path / "trace.parquet")))
    assert [(row.time_s, row.kind) for row in rows] == [(1.0, "tick"), (5.0, "join"), (5.0, "picture"), (5.0, "tick")]


def test_streams_of_bytes_cut_anywhere_are_read_the_same() -> None:
    text = b': alive\n\nretry: 5\n\nid: 7\nevent: rows\ndata: [1,\ndata: 2]\n\nevent: x\ndata: {"a":"\xc3\xa9"}\n\n'

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(text), size):
            yield text[start : start + size]

    async def read(size: int) -> list[tuple[str, str]]:
        return [event async for event in read_events(pieces(size))]

    for size in (1, 2, 7, 1000):
        assert asyncio.run(read(size)) == [("rows", "[1,\n2]"), ("x", '{"a":"é"}')]


def test_streets_that_cannot_be_read_are_said_at_the_start(tmp_path: Path) -> None:
    from tocsin.runtime.coordinator.settings import CoordinatorSettings

    async def start() -> None:
        settings = CoordinatorSettings(state=str(tmp_path), port=0, streets=str(tmp_path / "none.json"))
        await CoordinatorServer(settings).run()

    with pytest.raises(TocsinError, match=r"streets: .*none\.json"):
        asyncio.run(start())
