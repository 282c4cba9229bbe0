"""The replay of a simulated trace: the player, and its stream over HTTP at any speed and from any time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tocsin.model.trace import Kind, TraceRow, from_json, from_table, to_table
from tocsin.model.trace_state import TraceState
from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy
from tocsin.runtime.http.event_streams import read_events
from tocsin.sim.balance.policy_coordinator import PolicyCoordinator
from tocsin.sim.balance.run import BalanceRun
from tocsin.sim.balance.scenario import parse
from tocsin.sim.balance.trace import Trace
from tocsin.sim.balance.world import draw
from tocsin.sim.kernel import Kernel
from tocsin.web.player import Player
from tocsin.web.replay_server import ReplayServer
from tocsin.wire.errors import TocsinError

CITY = """
name = "city"
length_s = 120
[brokers]
count = 3
crowd = [4, 1, 1]
[subscribers]
count = 60
subscriptions = [1, 3]
join_within_s = 60.0
subscribe_until_s = 70.0
[channels]
periods_s = [10]
subscriptions = 20
mean_bytes_per_s = 200
[[failures]]
broker = 1
at_s = 80.0
back_s = 100.0
"""


@pytest.fixture(scope="module")
def table() -> pa.Table:
    kernel, trace = Kernel(3), Trace()
    coordinator = PolicyCoordinator(PlacementPolicy.NEAREST, BalanceSettings(scheme="ldm", shuffle="none", hits=1))
    BalanceRun(kernel, draw(parse(CITY, "city"), kernel.stream), coordinator, trace).run()
    return trace.table()


def homes_at(table: pa.Table, at_s: float) -> dict[str, str]:
    present = TraceState()
    for row in from_table(table):
        if row.time_s <= at_s:
            present.fold(row)
    return present.homes


def homes_in(rows: list[TraceRow]) -> dict[str, str]:
    present = TraceState()
    for row in rows:
        present.fold(row)
    return present.homes


def test_playing_and_seeking_reach_the_same_state(table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.web.player._CHECKPOINT_ROWS", 40)  # many checkpoints, and several chunks
    monkeypatch.setattr("tocsin.web.player._CHUNK_ROWS", 37)
    player = Player(table, speed=10.0)
    rows = player.picture()
    for _ in range(4):
        frame = player.advance(1.0)
        rows = player.picture() if frame.jumped else rows + frame.rows
    assert player.at_s == 40.0 and homes_in(rows) == homes_at(table, 40.0) != {}
    for at_s in (90.0, 15.0, 119.0, 85.5, 0.0, 500.0):
        player.seek(at_s)
        assert homes_in(player.picture()) == homes_at(table, at_s)
    assert player.at_s == player.to_s == 120.0


def test_player_stops_at_the_end_and_restarts_when_played_again(table: pa.Table) -> None:
    player = Player(table, speed=1.0)
    player.seek(119.5)
    assert player.advance(1.0).rows[-1] == TraceRow(120.0, Kind.TICK)
    assert not player.playing and player.advance(1.0).rows == []
    assert player.play(True) and player.at_s == player.from_s and player.playing


def test_picture_row_in_a_recording_makes_watchers_start_over() -> None:
    rows = [
        TraceRow(0.0, Kind.JOIN, subscriber="ada", broker="b"),
        TraceRow(1.0, Kind.PICTURE),
        TraceRow(1.0, Kind.JOIN, subscriber="bob", broker="b"),
        TraceRow(2.0, Kind.TICK),
    ]
    player = Player(to_table(rows))
    assert player.advance(1.0).jumped
    assert homes_in(player.picture()) == {"bob": "b"}


@asynccontextmanager
async def replaying(path: Path, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = ReplayServer(path, port=0, ready=ready.set_result, **options)
    task = asyncio.create_task(server.run())
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    async with httpx.AsyncClient(base_url=await ready, timeout=10) as client:
        yield client
    server.stop()
    await task


def test_replay_server_streams_seeks_and_refuses_bad_requests(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(table, path)

    async def scenario() -> None:
        async with replaying(path, speed=50.0) as client, client.stream("GET", "/v1/watch") as answer:
            events = read_events(answer.aiter_bytes())
            event, data = await anext(events)
            picture = from_json(data)
            assert event == "picture" and {row.kind for row in picture} >= {"broker", "tick"}
            event, data = await anext(events)
            assert event == "rows" and from_json(data)[-1].kind == "tick"
            changed = (await client.put("/v1/replay", json={"at_s": 90.0, "playing": False, "speed": 2.0})).json()
            assert changed == {"from_s": 0.0, "to_s": 120.0, "at_s": 90.0, "speed": 2.0, "playing": False}
            async with asyncio.timeout(10):
                while event != "picture":
                    event, data = await anext(events)
            assert homes_in(from_json(data)) == homes_at(table, 90.0)
            assert (await client.get("/v1/replay")).json() == changed
            refused = await client.put("/v1/replay", json={"speed": 0})
            assert refused.status_code == 400 and "speed" in refused.json()["error"]["message"]
            assert (await client.put("/v1/replay", json={"at": 1})).status_code == 400
            assert (await client.get("/v1/status")).status_code == 404, "a replay has no live network"
            index = await client.get("/")
            assert index.status_code == 200 and "default-src 'self'" in index.headers["content-security-policy"]
            elsewhere = await client.get("/v1/replay", headers={"Host": "evil.example"})
            assert elsewhere.status_code == 400

    asyncio.run(scenario())


def test_unreadable_trace_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def start(path: Path) -> None:
        async with replaying(path):
            pass

    with pytest.raises(TocsinError, match="there is no file"):
        asyncio.run(start(tmp_path / "nothing.parquet"))
    (tmp_path / "text.parquet").write_text("no", encoding="utf-8")
    with pytest.raises(TocsinError, match="cannot be read"):
        asyncio.run(start(tmp_path / "text.parquet"))
    pq.write_table(to_table([]), tmp_path / "empty.parquet")
    with pytest.raises(TocsinError, match="without rows"):
        asyncio.run(start(tmp_path / "empty.parquet"))


def test_record_command_records_the_streamed_rows(table: pa.Table, tmp_path: Path) -> None:
    """`tocsin record` reads any /v1/watch. This test uses a replay, whose rows are known."""
    from typer.testing import CliRunner

    from tocsin.cli.main import make_app
    from tocsin.runtime.http.trace_recording import read_trace

    path, copy = tmp_path / "trace.parquet", tmp_path / "copy.parquet"
    pq.write_table(table, path)

    async def scenario() -> None:
        async with replaying(path, speed=0.01) as client:
            await client.put("/v1/replay", json={"at_s": 100.0, "playing": False})
            command = ["record", str(copy), "--seconds", "0.5", "--url", str(client.base_url), "--token", "-", "--json"]
            done = await asyncio.to_thread(CliRunner().invoke, make_app(), command)
            assert done.exit_code == 0, done.output
            printed = json.loads(done.stdout.splitlines()[-1])
            assert printed["rows"] == read_trace(copy).num_rows > 0

    asyncio.run(scenario())
    assert homes_in(list(from_table(read_trace(copy)))) == homes_at(table, 100.0)
