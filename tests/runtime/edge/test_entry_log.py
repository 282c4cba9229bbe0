"""The entry log: what was acknowledged survives a crash, and what no recovery needs is deleted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tocsin.runtime.edge.entry_journal import EntryJournal
from tocsin.runtime.edge.entry_log import EntryLog, EntryLogError, LogEntry, Readings, Record, StreamWatermark, Void
from tocsin.segments.files import segment_path, segment_starts


def batch(publisher: str, number: int, newest_us: int = 0, data: bytes = b"x") -> Readings:
    return Readings("R", publisher, number, newest_us, data)


def write(log: EntryLog, *records: Record) -> None:
    log.note(log.write(records), records)


def stored(log: EntryLog) -> list[tuple[str, int]]:
    return [(entry.publisher, entry.number) for entry in log.entries.values()]


def test_records_survive_a_restart(tmp_path: Path) -> None:
    log = EntryLog(tmp_path)
    records: list[Record] = [batch("a", 1, 10, b"one"), batch("b", 1, 20, b"two"), StreamWatermark("R", 30)]
    write(log, *records)
    log.close()
    log = EntryLog(tmp_path)
    assert list(log.read(list(log.entries.values()))) == records
    assert log.stored_through == {"a": 1, "b": 1}
    log.close()


def test_incomplete_last_record_is_cut_off(tmp_path: Path) -> None:
    log = EntryLog(tmp_path)
    write(log, batch("a", 1), batch("a", 2))
    log.close()
    path = segment_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-1])
    log = EntryLog(tmp_path)
    assert stored(log) == [("a", 1)]
    write(log, batch("a", 2), batch("a", 3))
    log.close()
    log = EntryLog(tmp_path)
    assert stored(log) == [("a", 1), ("a", 2), ("a", 3)]
    log.close()


def test_damage_in_front_of_the_last_segment_is_an_error(tmp_path: Path) -> None:
    log = EntryLog(tmp_path)
    write(log, batch("a", 1))
    log.begin_segment()
    write(log, batch("a", 2))
    log.close()
    path = segment_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(EntryLogError, match="damaged at byte"):
        EntryLog(tmp_path)


def test_second_process_on_one_log_is_refused(tmp_path: Path) -> None:
    log = EntryLog(tmp_path)
    with pytest.raises(EntryLogError, match="another process"):
        EntryLog(tmp_path)
    log.close()


def test_voided_batches_do_not_return_after_a_restart(tmp_path: Path) -> None:
    log = EntryLog(tmp_path)
    write(log, batch("a", 1), batch("b", 1), Void("a"), batch("a", 7))
    assert stored(log) == [("b", 1), ("a", 7)]
    log.close()
    log = EntryLog(tmp_path)
    assert stored(log) == [("b", 1), ("a", 7)]
    log.close()


def test_trimmed_segments_leave_the_numbers_of_publishers(tmp_path: Path) -> None:
    log = EntryLog(tmp_path)
    write(log, batch("a", 5, 10))
    log.begin_segment()
    write(log, batch("b", 1, 20))
    log.trim(log.drop_entries(lambda entry: entry.publisher == "b"))
    assert segment_starts(tmp_path) == [2]
    log.close()
    log = EntryLog(tmp_path)
    assert stored(log) == [("b", 1)] and log.stored_through == {"a": 5, "b": 1}
    log.close()


def test_batches_that_wait_together_are_stored_with_one_fsync(tmp_path: Path) -> None:
    async def run() -> None:
        noted: list[LogEntry] = []
        journal = EntryJournal(EntryLog(tmp_path), lambda entry, record: noted.append(entry))
        await asyncio.gather(*(journal.append(batch("a", number)) for number in range(1, 101)))
        assert [entry.number for entry in noted] == list(range(1, 101))
        assert journal.fsyncs <= 2
        assert journal.stored_through("a") == 100
        await journal.close()

    asyncio.run(run())


def test_durable_number_follows_the_horizon_of_the_stream(tmp_path: Path) -> None:
    async def run() -> None:
        log = EntryLog(tmp_path)
        journal = EntryJournal(log, lambda entry, record: None)
        for number in range(1, 6):
            await journal.append(batch("a", number, newest_us=10 * number))
        assert journal.durable_through("a") == 0
        journal.forget({"R": 30}, fed_before=log.end)
        assert journal.durable_through("a") == 3
        journal.forget({"R": 50}, fed_before=5)
        assert journal.durable_through("a") == 4, "the last batch was not handed in yet"
        journal.forget({"R": 50}, fed_before=log.end)
        assert journal.durable_through("a") == 5
        await journal.append(batch("a", 6, newest_us=60))
        assert journal.durable_through("a") == 5
        await journal.close()

    asyncio.run(run())


def test_journal_deletes_segments_that_no_recovery_needs(tmp_path: Path) -> None:
    async def run() -> None:
        log = EntryLog(tmp_path, segment_bytes=1_000)
        journal = EntryJournal(log, lambda entry, record: None)
        for number in range(1, 11):
            await journal.append(batch("a", number, number, b"x" * 500))
        assert len(segment_starts(tmp_path)) > 3
        journal.forget({"R": 10}, fed_before=log.end)
        await journal.close()
        assert len(segment_starts(tmp_path)) == 1

    asyncio.run(run())


def test_batch_that_was_stored_again_counts_once_after_a_restart(tmp_path: Path) -> None:
    """The publisher moved away and came back, and the disk refused the record about it."""
    log = EntryLog(tmp_path)
    write(log, batch("a", 1), batch("a", 2))
    log.note([LogEntry(log.end - 1, 0, 0, 0, "", "a", 0, None)], [Void("a")])
    write(log, batch("a", 2), batch("a", 3))
    log.close()
    log = EntryLog(tmp_path)
    assert stored(log) == [("a", 1), ("a", 2), ("a", 3)]
    log.close()


class SlowLog(EntryLog):
    """Its fsyncs end when the test says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.began, self.may_end = threading.Event(), threading.Event()

    def write(self, records: Sequence[Record]) -> list[LogEntry]:
        self.began.set()
        assert self.may_end.wait(10)
        return super().write(records)


@pytest.mark.parametrize("known", [False, True])
def test_batch_in_writing_does_not_count_after_its_publisher_moved(tmp_path: Path, known: bool) -> None:
    """The next generation may start while an fsync runs. Another node counts the batch in it."""
    counted: list[tuple[str, int]] = []

    async def run() -> None:
        log = SlowLog(tmp_path)
        if known:
            log.may_end.set()
            write(log, batch("p", 1))
            log.may_end.clear()
            log.began.clear()

        def on_stored(entry: LogEntry, record: Record) -> None:
            counted.extend((item.publisher, item.number) for item in log.entries.values() if item == entry)

        journal = EntryJournal(log, on_stored)
        appending = asyncio.create_task(journal.append(batch("p", 2)))
        await asyncio.to_thread(log.began.wait, 10)
        assert journal.publishers == {"p"}
        journal.void("p")
        log.may_end.set()
        await appending
        assert counted == [] and journal.stored_through("p") == 0
        assert (await journal.append(batch("p", 2))).number == 2, "the publisher has come back"
        assert counted == [("p", 2)]
        await journal.close()
        reopened = EntryLog(tmp_path)
        assert stored(reopened) == [("p", 2)]
        reopened.close()

    asyncio.run(run())
