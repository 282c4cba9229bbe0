"""Trace streams to watchers, recordings of traces, and reading of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tocsin.model.trace import Kind, TraceRow, from_table
from tocsin.runtime.http.event_streams import read_events
from tocsin.runtime.http.trace_recording import Recording, finish, part_path, read_trace, unused_path
from tocsin.runtime.http.trace_stream import FRAMES, TraceStream
from tocsin.wire.errors import TocsinError


def test_watcher_that_falls_behind_gets_a_picture_instead_of_a_backlog() -> None:
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


def test_slow_watcher_has_a_bounded_queue_and_delays_no_other_watcher() -> None:
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


def test_recording_left_by_a_crash_can_be_read_and_finished(tmp_path: Path) -> None:
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
    assert unused_path(crashed).name == "crashed-3.parquet", "a restart after a second crash begins a third recording"
    assert read_trace(again).num_rows == 0


def test_recording_marks_later_pictures_and_keeps_times_in_order(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "trace.parquet")
    recording.add([TraceRow(1.0, Kind.TICK)], True)
    recording.add([TraceRow(5.0, Kind.JOIN, subscriber="ada", broker="b")], False)
    recording.add([TraceRow(2.0, Kind.EVENT, note="fire"), TraceRow(4.0, Kind.TICK)], True)
    recording.close()
    rows = list(from_table(read_trace(tmp_path / "trace.parquet")))
    assert [(row.time_s, row.kind) for row in rows] == [(1.0, "tick"), (5.0, "join"), (5.0, "picture"), (5.0, "tick")]


def test_events_are_read_the_same_however_the_bytes_are_cut() -> None:
    text = b': alive\n\nretry: 5\n\nid: 7\nevent: rows\ndata: [1,\ndata: 2]\n\nevent: x\ndata: {"a":"\xc3\xa9"}\n\n'

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(text), size):
            yield text[start : start + size]

    async def read(size: int) -> list[tuple[str, str]]:
        return [event async for event in read_events(pieces(size))]

    for size in (1, 2, 7, 1000):
        assert asyncio.run(read(size)) == [("rows", "[1,\n2]"), ("x", '{"a":"é"}')]
