"""Logs in threads: group commit, order of operations, failures that are reported and survived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tocsin.broker.topics import effects, events
from tocsin.model.ids import TopicName
from tocsin.runtime.broker import topic_log
from tocsin.runtime.broker.topic_logs import TopicLogs, folder_name
from tocsin.wire.topic_log import Piece

T = TopicName("a/b")
KEY = (T, 1)


class LogsBench:
    def __init__(self, folder: Path) -> None:
        self.logs = TopicLogs(folder)
        self.events: list[events.Event] = []
        self.logs.report = self.events.append

    async def idle(self) -> None:
        while self.logs._tasks:
            await asyncio.sleep(0.005)

    def append(self, first: int, data: bytes = b"x") -> None:
        self.logs.perform(effects.AppendToLog(*KEY, Piece(1, first, [(7, first, data)])))


def run(folder: Path, test: Callable[[LogsBench], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        bench = LogsBench(folder)
        await test(bench)
        await bench.logs.stop()

    asyncio.run(whole())


def test_appends_that_wait_together_share_one_fsync(tmp_path: Path) -> None:
    async def test(bench: LogsBench) -> None:
        bench.logs.perform(effects.OpenLog(*KEY))
        await bench.idle()
        fsyncs = bench.logs.figures.fsyncs
        for number in range(1, 101):
            bench.append(number)
        await bench.idle()
        assert bench.logs.figures.appends == 100
        assert bench.logs.figures.fsyncs - fsyncs <= 3
        assert bench.events[-1] == events.LogStored(*KEY, 1, 100, 1)

    run(tmp_path, test)


def test_operations_of_a_log_are_reported_in_their_order(tmp_path: Path) -> None:
    async def test(bench: LogsBench) -> None:
        bench.append(1)
        bench.logs.perform(effects.AdoptEpoch(*KEY, 4, None))
        bench.append(2)
        bench.logs.perform(effects.ReadLog(*KEY, events.ConnectionId(3), 0, 2, 1000))
        await bench.idle()
        assert [type(event) for event in bench.events] == [
            events.LogStored,
            events.LogAdopted,
            events.LogStored,
            events.LogRead,
        ]

    run(tmp_path, test)


def test_refusing_disk_is_reported_and_the_log_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def test(bench: LogsBench) -> None:
        bench.append(1)
        await bench.idle()
        with monkeypatch.context() as patch:
            patch.setattr(topic_log, "write_durably", refuse)
            bench.append(2)
            await bench.idle()
        failed = bench.events[-1]
        assert isinstance(failed, events.LogFailed)
        assert "No space left on device" in failed.message
        bench.logs.perform(effects.OpenLog(*KEY))
        bench.append(2)
        await bench.idle()
        assert bench.events[-1] == events.LogStored(*KEY, 1, 2, 1)
        assert bench.logs.figures.failures == 1

    run(tmp_path, test)


def test_logs_that_are_not_kept_are_deleted(tmp_path: Path) -> None:
    for name in (folder_name(T, 1), folder_name(T, 2), folder_name(TopicName("c"), 3)):
        (tmp_path / name).mkdir()

    async def test(bench: LogsBench) -> None:
        bench.logs.perform(effects.OpenLog(TopicName("c"), 3))
        await bench.idle()
        bench.logs.perform(effects.KeepLogs([(T, 2)]))
        await bench.idle()
        assert {path.name for path in tmp_path.iterdir()} == {"a%b@2", "c@3"}
        bench.logs.perform(effects.DropLog(TopicName("c"), 3))
        await bench.idle()
        assert {path.name for path in tmp_path.iterdir()} == {"a%b@2"}

    run(tmp_path, test)
