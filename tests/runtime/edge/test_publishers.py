"""Publishers at one node: gaps in their numbers, repeats, and requests that have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.edge.edge_readings import STREAMS
from tocsin.runtime.edge.entry_journal import EntryJournal
from tocsin.runtime.edge.entry_log import EntryLog, EntryLogError, LogEntry, Readings, Record
from tocsin.runtime.edge.publishers import BatchesMissing, Publishers, Rejection, Stored
from tocsin.wire.errors import TocsinError

STREAM = STREAMS["Readings"]
BATCH = pa.RecordBatch.from_pylist([dict.fromkeys(STREAM.arrow().names) | {"meter": "m1"}], schema=STREAM.arrow())


class Node:
    """The publishers of a node with a real log. The root's answers are given by the test."""

    def __init__(self, folder: Path) -> None:
        self.log = EntryLog(folder)
        self.stored: list[int] = []
        self.attached = 0
        self.attach_seen = asyncio.Event()
        journal = EntryJournal(self.log, self._note)
        self.journal = journal
        self.publishers = Publishers("leaf", journal, self._attach)

    def _note(self, _entry: object, record: object) -> None:
        if isinstance(record, Readings):
            self.stored.append(record.number)

    def _attach(self, _publisher: str, _stream: str) -> bool:
        self.attached += 1
        self.attach_seen.set()
        return True

    async def store(
        self,
        number: int,
        durable: int | None = None,
        is_gone: Callable[[], Awaitable[bool]] | None = None,
        count: int = 1,
    ) -> Stored:
        return await self.publishers.store(
            "Readings", STREAM, [BATCH] * count, "p", number, lambda: True, durable, is_gone
        )


def with_node(folder: Path, check: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        node = Node(folder)
        try:
            await check(node)
        finally:
            await node.journal.close()

    asyncio.run(run())


def test_batch_behind_a_gap_is_refused_with_the_number_to_continue_from(tmp_path: Path) -> None:
    async def check(node: Node) -> None:
        node.publishers.granted("p", "Readings")
        await node.store(1)
        with pytest.raises(BatchesMissing) as missing:
            await node.store(3)
        assert missing.value.stored.stored_through == 1 and node.stored == [1]
        await node.store(2)
        assert (await node.store(3)).stored_through == 3
        assert node.stored == [1, 2, 3]

    with_node(tmp_path, check)


def test_batches_of_one_request_share_an_fsync_and_repeats_are_left_out(tmp_path: Path) -> None:
    async def check(node: Node) -> None:
        node.publishers.granted("p", "Readings")
        await node.store(1)
        fsyncs = node.journal.fsyncs
        assert (await node.store(1, count=5)).stored_through == 5
        assert node.stored == [1, 2, 3, 4, 5] and node.journal.fsyncs == fsyncs + 1
        with pytest.raises(BatchesMissing):
            await node.store(7, count=2)
        assert (await node.store(2, count=3)).stored_through == 5, "all are repeats"
        assert node.stored == [1, 2, 3, 4, 5] and node.publishers.rows == 5

    with_node(tmp_path, check)


def test_batches_of_one_request_are_stored_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(node: Node) -> None:
        node.publishers.granted("p", "Readings")
        write = node.log.write
        limits = iter([2])

        def refuse_more(records: Sequence[Record]) -> list[LogEntry]:
            if len(records) > next(limits, 100):
                raise EntryLogError("the disk is full")
            return write(records)

        monkeypatch.setattr(node.log, "write", refuse_more)
        monkeypatch.setattr("tocsin.runtime.edge.entry_journal._BATCH_BYTES", 1)
        with pytest.raises(TocsinError, match="disk is full"):
            await node.store(1, count=3)
        assert node.stored == [], "not even by another write: a later batch would stand behind a gap"
        assert (await node.store(1, count=3)).stored_through == 3

    with_node(tmp_path, check)


def test_node_that_discarded_batches_refuses_later_ones_until_they_are_back(tmp_path: Path) -> None:
    """Another node owned the publisher for a generation: the batches here were discarded, and are not durable."""

    async def check(node: Node) -> None:
        node.publishers.granted("p", "Readings")
        for number in (1, 2, 3):
            await node.store(number, durable=0)
        node.publishers.keep(frozenset(), frozenset({"p"}))
        node.publishers.granted("p", "Readings")
        with pytest.raises(BatchesMissing) as missing:
            await node.store(4, durable=1)
        assert missing.value.stored.stored_through == 1
        for number in (2, 3, 4):
            await node.store(number, durable=1)
        assert node.stored == [1, 2, 3, 2, 3, 4]

    with_node(tmp_path, check)


def test_batch_that_is_durable_is_not_stored_again(tmp_path: Path) -> None:
    async def check(node: Node) -> None:
        node.publishers.granted("p", "Readings")
        assert (await node.store(2, durable=2)).stored_through == 2
        assert node.stored == []

    with_node(tmp_path, check)


def test_first_number_of_an_unknown_publisher_may_be_any(tmp_path: Path) -> None:
    async def check(node: Node) -> None:
        node.publishers.granted("p", "Readings")
        assert (await node.store(7)).stored_through == 7

    with_node(tmp_path, check)


def test_ended_request_does_not_take_the_publisher_from_another_node(tmp_path: Path) -> None:
    """The request waits for a grant; its publisher has continued at another node, which owns it now."""

    async def check(node: Node) -> None:
        ended = False

        async def is_gone() -> bool:
            return ended

        request = asyncio.create_task(node.store(1, 0, is_gone))
        await node.attach_seen.wait()
        ended = True
        node.publishers.retry_all()
        with pytest.raises(TocsinError, match="ended the request"):
            await request
        assert node.attached == 1

    with_node(tmp_path, check)


def test_grant_right_after_a_new_generation_is_used_at_once(tmp_path: Path) -> None:
    async def check(node: Node) -> None:
        request = asyncio.create_task(node.store(1))
        await node.attach_seen.wait()
        await asyncio.sleep(0)
        node.publishers.rejected("p", "Readings", Rejection("STALE_GENERATION", "try again"))
        for _ in range(5):
            await asyncio.sleep(0)
        node.publishers.granted("p", "Readings")
        async with asyncio.timeout(0.4):
            assert (await request).stored_through == 1
        assert node.attached == 1

    with_node(tmp_path, check)
