"""Group commit: few syncs for many requests; each answer reports the sync that included the request."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tocsin.cluster.feed.gateway import Accepted, FeedGateway, FeedLimits, RecordForm, Refused, Unavailable
from tocsin.cluster.server.group_commit import INLINE_BYTES, GroupCommit
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema


class SlowDisk(FeedGateway):
    """A gateway that counts its syncs and blocks them until `may_go_on` is set."""

    def __init__(self, folder: Path) -> None:
        dataset = Dataset(DatasetName("D"), DatasetKind.STREAM, Schema.of(id="INT", text="STRING"))
        super().__init__(dataset, folder, FeedLimits(), lambda: 1_000.0)
        self.syncs = 0
        self.may_go_on = threading.Event()
        write = self._log.sync

        def wait_and_write(upto: int | None = None) -> int:
            self.syncs += 1
            assert self.may_go_on.wait(10)
            return write(upto)

        self._log.sync = wait_and_write  # type: ignore[method-assign]

    def stored(self) -> list[int]:
        frames, _ = self._log.read(self._log.start, 1 << 30)
        return [json.loads(line)["id"] for frame in frames for line in frame.lines()]


def make(folder: Path) -> SlowDisk:
    folder.mkdir(exist_ok=True)
    return SlowDisk(folder)


async def store(commit: GroupCommit, body: bytes, key: str | None = None) -> Accepted | Refused:
    return await commit.store(body, RecordForm.JSON, key)


def test_waiting_requests_share_one_sync(tmp_path: Path) -> None:
    gateway = make(tmp_path / "d")

    async def main() -> None:
        commit = GroupCommit(gateway)
        waiting = [asyncio.create_task(store(commit, b'{"id": %d}' % index)) for index in range(100)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting), "no request is answered before its sync"
        gateway.may_go_on.set()
        assert all(isinstance(outcome, Accepted) for outcome in await asyncio.gather(*waiting))

    asyncio.run(main())
    assert gateway.syncs <= 2
    gateway.close()


def test_request_during_a_sync_waits_for_the_next_sync(tmp_path: Path) -> None:
    gateway = make(tmp_path / "d")

    async def main() -> None:
        commit = GroupCommit(gateway)
        first = asyncio.create_task(store(commit, b'{"id": 1}'))
        while not gateway.syncs:
            await asyncio.sleep(0.001)
        second = asyncio.create_task(store(commit, b'{"id": 2}'))
        await asyncio.sleep(0.02)
        gateway.may_go_on.set()
        await asyncio.gather(first, second)

    asyncio.run(main())
    assert gateway.syncs == 2
    assert gateway.durable_end == gateway._log.tail
    gateway.close()


def test_request_is_answered_although_later_ones_keep_the_thread_busy(tmp_path: Path) -> None:
    gateway = make(tmp_path / "d")
    gateway.may_go_on.set()

    async def main() -> None:
        commit = GroupCommit(gateway)
        numbers = itertools.count()

        async def publish() -> None:
            for number in itertools.islice(numbers, 30):
                assert isinstance(await store(commit, b'{"id": %d}' % number), Accepted)

        await asyncio.wait_for(asyncio.gather(*(publish() for _ in range(8))), 30)
        assert commit._waiting == {}

    asyncio.run(main())
    assert len(gateway.stored()) == 240
    gateway.close()


def test_exactly_the_acknowledged_requests_are_stored_when_syncs_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second sync fails while publishers send, also after a sync has started and before it reads the log."""
    gateway = make(tmp_path / "d")
    gateway.may_go_on.set()
    fdatasync, calls = os.fdatasync, itertools.count()

    def fails_now_and_then(fd: int) -> None:
        if next(calls) % 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", fails_now_and_then)

    async def main() -> dict[int, bool]:
        commit = GroupCommit(gateway)
        acknowledged: dict[int, bool] = {}

        async def publish(number: int) -> None:
            for _ in range(number % 4):
                await asyncio.sleep(0)
            acknowledged[number] = isinstance(await store(commit, b'{"id": %d}' % number), Accepted)

        for turn in range(60):
            await asyncio.gather(*(publish(40 * turn + number) for number in range(40)))
        return acknowledged

    acknowledged = asyncio.run(main())
    monkeypatch.undo()
    stored = gateway.stored()
    assert sorted(stored) == sorted(number for number, accepted in acknowledged.items() if accepted)
    assert 0 < len(stored) < len(acknowledged)
    gateway.close()


def test_closing_the_gateway_answers_every_publisher(tmp_path: Path) -> None:
    """As when a dataset is dropped: no publisher waits for ever, and every acknowledged record is stored."""
    for turn in range(5):
        gateway = make(tmp_path / f"d{turn}")
        gateway.may_go_on.set()
        acknowledged: list[int] = []

        async def main(gateway: SlowDisk = gateway, acknowledged: list[int] = acknowledged) -> None:
            commit, numbers = GroupCommit(gateway), itertools.count()

            async def publish() -> None:
                for number in numbers:
                    outcome = await store(commit, b'{"id": %d}' % number, f"key-{number}")
                    if not isinstance(outcome, Accepted):
                        assert isinstance(outcome, Unavailable)
                        return
                    acknowledged.append(number)

            publishing = [asyncio.create_task(publish()) for _ in range(40)]
            await asyncio.sleep(0.1)
            await asyncio.to_thread(gateway.close)
            await asyncio.wait_for(asyncio.gather(*publishing), 10)

        asyncio.run(main())
        again = make(tmp_path / f"d{turn}")
        assert acknowledged and set(acknowledged) <= set(again.stored())
        again.close()


def test_publisher_that_disconnects_does_not_disturb_others(tmp_path: Path) -> None:
    gateway = make(tmp_path / "d")

    async def main() -> None:
        commit = GroupCommit(gateway)
        leaves = asyncio.create_task(store(commit, b'{"id": 1}'))
        stays = asyncio.create_task(store(commit, b'{"id": 2}'))
        await asyncio.sleep(0.02)
        leaves.cancel()
        gateway.may_go_on.set()
        assert isinstance(await stays, Accepted)

    asyncio.run(main())
    gateway.close()


def test_large_body_is_checked_in_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = make(tmp_path / "d")
    gateway.may_go_on.set()
    threads: list[int] = []
    append = gateway.append

    def noted(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return append(*arguments)

    monkeypatch.setattr(gateway, "append", noted)

    async def main() -> int:
        commit = GroupCommit(gateway)
        await store(commit, b'{"id": 1}')
        await store(commit, b'[{"id": 1, "text": "%s"}]' % (b"x" * 100) + b" " * INLINE_BYTES)
        return threading.get_ident()

    loop_thread = asyncio.run(main())
    assert threads[0] == loop_thread and threads[1] != loop_thread
    gateway.close()


class BusyUpkeep(FeedGateway):
    """A gateway with room for ten keys in memory, whose upkeep blocks until `may_go_on` is set."""

    def __init__(self, folder: Path) -> None:
        dataset = Dataset(DatasetName("D"), DatasetKind.STREAM, Schema.of(id="INT", text="STRING"), key=("id",))
        super().__init__(dataset, folder, FeedLimits(memory_keys=10), lambda: 1_000.0)
        self.may_go_on = threading.Event()
        self.started = threading.Event()
        self.failure: OSError | None = None
        self.upkeeps = 0

    def maintain(self) -> None:
        self.upkeeps += 1
        self.started.set()
        assert self.may_go_on.wait(10)
        if self.failure is not None:
            raise self.failure
        super().maintain()


def rows(start: int, end: int) -> bytes:
    return json.dumps([{"id": number} for number in range(start, end)]).encode()


def test_publishers_do_not_wait_for_upkeep_of_a_full_key_table(tmp_path: Path) -> None:
    gateway = BusyUpkeep(tmp_path / "d")

    async def main() -> None:
        commit = GroupCommit(gateway)
        assert isinstance(await store(commit, rows(0, 10)), Accepted)
        assert await asyncio.to_thread(gateway.started.wait, 10)
        answer = await store(commit, rows(5, 15))  # while the upkeep is blocked
        assert isinstance(answer, Accepted)
        assert (answer.accepted, answer.duplicates) == (5, 5)
        assert gateway.upkeeps == 1
        gateway.may_go_on.set()
        upkeep = commit._upkeep
        if upkeep is not None:
            await upkeep
        assert gateway._store.index.keys_in_memory == 0
        answer = await store(commit, rows(0, 16))
        assert isinstance(answer, Accepted)
        assert (answer.accepted, answer.duplicates) == (1, 15)

    asyncio.run(main())
    gateway.close()


def test_failed_upkeep_is_not_repeated_at_once(tmp_path: Path) -> None:
    gateway = BusyUpkeep(tmp_path / "d")
    gateway.failure = OSError(errno.ENOSPC, "No space left on device")
    gateway.may_go_on.set()

    async def main() -> None:
        commit = GroupCommit(gateway)
        for start in (0, 10, 11, 12):
            assert isinstance(await store(commit, rows(start, start + 1 if start else 10)), Accepted)
            assert await asyncio.to_thread(gateway.started.wait, 10)
        assert gateway.upkeeps == 1

    asyncio.run(main())
    gateway.close()
