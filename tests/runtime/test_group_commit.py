"""Many requests, few syncs; an answer only after a sync that began after the records were accepted."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from tocsin.cluster.feed.feedlog import FeedLogWriteFailed
from tocsin.cluster.feed.gateway import Accepted, FeedGateway, FeedLimits, RecordForm, Unavailable
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema
from tocsin.runtime.group_commit import INLINE_BYTES, GroupCommit


class SlowDisk(FeedGateway):
    """Counts its syncs; each waits until it is let go."""

    def __init__(self, folder: Path) -> None:
        dataset = Dataset(DatasetName("D"), DatasetKind.STREAM, Schema.of(id="INT", text="STRING"))
        super().__init__(dataset, folder, FeedLimits(), lambda: 1_000.0)
        self.syncs = 0
        self.fails = False
        self.may_go_on = threading.Event()

    def sync(self) -> int:
        self.syncs += 1
        assert self.may_go_on.wait(10)
        if self.fails:
            raise FeedLogWriteFailed("disk full")
        return super().sync()


def make(folder: Path) -> SlowDisk:
    folder.mkdir(exist_ok=True)
    return SlowDisk(folder)


async def store(commit: GroupCommit, body: bytes) -> Unavailable | None:
    outcome = await commit.accept(body, RecordForm.JSON, None)
    assert isinstance(outcome, Accepted)
    return await commit.durable()


def test_requests_that_wait_share_one_sync(tmp_path: Path) -> None:
    gateway = make(tmp_path / "d")

    async def main() -> None:
        commit = GroupCommit(gateway)
        waiting = [asyncio.create_task(store(commit, b'{"id": %d}' % index)) for index in range(100)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting), "nobody is answered before its sync"
        gateway.may_go_on.set()
        assert await asyncio.gather(*waiting) == [None] * 100

    asyncio.run(main())
    assert gateway.syncs <= 2
    gateway.close()


def test_a_request_that_comes_during_a_sync_waits_for_the_next(tmp_path: Path) -> None:
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


def test_a_failed_sync_is_told_to_everybody_who_counted_on_it(tmp_path: Path) -> None:
    gateway = make(tmp_path / "d")
    gateway.fails = True
    gateway.may_go_on.set()

    async def main() -> None:
        commit = GroupCommit(gateway)
        told = await asyncio.gather(*(store(commit, b'{"id": 1}') for _ in range(5)))
        assert all(isinstance(one, Unavailable) for one in told)
        gateway.fails = False
        assert await store(commit, b'{"id": 1}') is None

    asyncio.run(main())
    gateway.close()


def test_a_publisher_that_leaves_does_not_disturb_the_others(tmp_path: Path) -> None:
    gateway = make(tmp_path / "d")

    async def main() -> None:
        commit = GroupCommit(gateway)
        leaves = asyncio.create_task(store(commit, b'{"id": 1}'))
        stays = asyncio.create_task(store(commit, b'{"id": 2}'))
        await asyncio.sleep(0.02)
        leaves.cancel()
        gateway.may_go_on.set()
        assert await stays is None

    asyncio.run(main())
    gateway.close()


def test_a_large_body_is_checked_beside_the_event_loop(tmp_path: Path) -> None:
    gateway = make(tmp_path / "d")
    gateway.may_go_on.set()
    threads: list[int] = []
    accept = gateway.accept

    def noted(body: bytes, form: RecordForm, key: str | None = None) -> object:
        threads.append(threading.get_ident())
        return accept(body, form, key)

    gateway.accept = noted  # type: ignore[method-assign, assignment]

    async def main() -> int:
        commit = GroupCommit(gateway)
        await store(commit, b'{"id": 1}')
        await store(commit, b'[{"id": 1, "text": "%s"}]' % (b"x" * 100) + b" " * INLINE_BYTES)
        return threading.get_ident()

    loop_thread = asyncio.run(main())
    assert threads[0] == loop_thread and threads[1] != loop_thread
    gateway.close()
