"""The log of a persistent topic on disk: it equals a log in memory after any operations, restarts and torn writes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tocsin.runtime.broker import topic_log as topic_log_module
from tocsin.runtime.broker.topic_log import TopicLog, TopicLogError
from tocsin.segments.files import segment_path, segment_starts
from tocsin.sim.network.topic_disk import MemoryLog
from tocsin.wire.topic_log import Piece, Snapshot


def piece(epoch: int, first: int, *data: bytes, publisher: int = 7) -> Piece:
    return Piece(epoch, first, [(publisher, first + index, item) for index, item in enumerate(data)])


def entries(log: TopicLog) -> list[tuple[int, int, bytes]]:
    """(epoch, sequence, data) of everything in the log, read in small parts."""
    result: list[tuple[int, int, bytes]] = []
    after = log.start - 1
    while pieces := log.read(after, log.end, 40):
        for part in pieces:
            result += [(part.epoch, part.first + index, entry[2]) for index, entry in enumerate(part.entries)]
        after = pieces[-1].last
    return result


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[TopicLog]:
    log = TopicLog(tmp_path / "log")
    yield log
    log.close()


def reopened(log: TopicLog) -> TopicLog:
    log.close()
    return TopicLog(log.directory, log.segment_bytes)


def test_log_keeps_messages_epochs_publishers_and_the_promise(opened: TopicLog) -> None:
    opened.append([piece(1, 1), piece(1, 1, b"a", b"b"), piece(1, 3, b"c", publisher=8)])
    opened.adopt(5, None)
    opened.append([piece(6, 4), piece(6, 4, b"d")])
    log = reopened(opened)
    assert entries(log) == [(1, 1, b"a"), (1, 2, b"b"), (1, 3, b"c"), (6, 4, b"d")]
    assert (log.epochs, log.start, log.end, log.promised) == ([(1, 1), (6, 4)], 1, 4, 6)
    assert log.publishers == {7: 4, 8: 3}
    log.close()


def test_torn_tail_is_cut_off(opened: TopicLog) -> None:
    opened.append([piece(1, 1, b"a")])
    path = segment_path(opened.directory, 1)
    for tail in (b"\0" * 50, b"\x10\0\0\0garbage", os.urandom(300)):
        opened.close()
        size = path.stat().st_size
        path.write_bytes(path.read_bytes() + tail)
        log = TopicLog(opened.directory)
        assert entries(log) == [(1, 1, b"a")]
        assert path.stat().st_size == size
        log.close()


def test_damage_before_the_published_end_is_refused(opened: TopicLog) -> None:
    opened.append([piece(1, 1, b"a"), piece(1, 2, b"b")])
    opened.close()
    path = segment_path(opened.directory, 1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(TopicLogError, match=r"damaged at byte .* checksum"):
        TopicLog(opened.directory)


def test_cut_forgets_messages_epochs_and_numbers_behind_it(opened: TopicLog) -> None:
    opened.append([piece(1, 1), piece(1, 1, b"a", b"b", b"c"), piece(2, 4), piece(2, 4, b"d", publisher=8)])
    opened.adopt(3, (1, 2))
    assert entries(opened) == [(1, 1, b"a"), (1, 2, b"b")]
    assert (opened.epochs, opened.publishers, opened.promised) == ([(1, 1)], {7: 2}, 3)
    opened.append([piece(3, 3), piece(3, 3, b"x", b"y")])
    log = reopened(opened)
    assert entries(log) == [(1, 1, b"a"), (1, 2, b"b"), (3, 3, b"x"), (3, 4, b"y")]
    assert (log.epochs, log.publishers) == ([(1, 1), (3, 3)], {7: 4})
    log.close()


def test_retention_by_size_deletes_the_oldest_segments(opened: TopicLog) -> None:
    opened.segment_bytes = 1_000
    for number in range(1, 101):
        opened.append([piece(1, number, b"%0100d" % number)])
    opened.retain(5_000, None, 0.0)
    assert opened.size_bytes <= 5_000
    assert opened.start > 1
    assert [sequence for _, sequence, _ in entries(opened)] == list(range(opened.start, 101))
    assert opened.snapshot().publishers == [(7, opened.start - 1)]
    log = reopened(opened)
    assert log.publishers == {7: 100}
    log.close()


def test_retention_by_age_deletes_segments_whose_last_message_is_old(opened: TopicLog) -> None:
    opened.append([piece(1, 1, b"a")])
    written_s = segment_path(opened.directory, 1).stat().st_mtime
    opened.retain(1 << 30, 60.0, written_s + 59)
    assert opened.start == 1
    opened.retain(1 << 30, 60.0, written_s + 61)
    assert (opened.start, opened.end) == (2, 1)
    opened.append([piece(1, 2, b"b")])
    assert entries(opened) == [(1, 2, b"b")]


def test_full_disk_stores_nothing_and_the_log_goes_on_later(opened: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.append([piece(1, 1, b"a")])

    def full(fd: int, offset: int, pieces: list[bytes]) -> None:
        os.pwrite(fd, pieces[0][:20], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(topic_log_module, "write_durably", full)
        with pytest.raises(TopicLogError, match="No space left on device; nothing was stored"):
            opened.append([piece(1, 2, b"lost")])
    assert (opened.end, opened.publishers) == (1, {7: 1})
    opened.append([piece(1, 2, b"b")])
    log = reopened(opened)
    assert entries(log) == [(1, 1, b"a"), (1, 2, b"b")]
    log.close()


def test_second_process_cannot_write_the_same_log(opened: TopicLog) -> None:
    with pytest.raises(TopicLogError, match="does this broker run twice"):
        TopicLog(opened.directory)


@pytest.mark.parametrize("seed", range(10))
def test_random_operations_and_restarts_equal_a_log_in_memory(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    log, model = TopicLog(tmp_path / "log", int(rng.choice((300, 2_000)))), MemoryLog()
    epoch = 0
    for _ in range(120):
        match int(rng.choice(7, p=(0.6, 0.08, 0.08, 0.04, 0.06, 0.04, 0.1))):
            case 0:
                pieces: list[Piece] = []
                for _ in range(int(rng.integers(1, 4))):
                    if not epoch or rng.random() < 0.2:
                        epoch += 1
                    first = model.end + 1
                    count = int(rng.integers(0, 5))
                    pieces.append(piece(epoch, first, *(os.urandom(20) for _ in range(count)), publisher=count))
                    model.append(pieces[-1])
                log.append(pieces)
            case 1 if model.epochs:
                last = int(rng.integers(len(model.epochs)))
                last_epoch, first = model.epochs[last]
                ends = [*(first - 1 for _, first in model.epochs[1:]), model.end]
                end = int(rng.integers(max(first, model.start) - 1, max(ends[last], model.start - 1) + 1))
                epoch += 1
                log.adopt(epoch, (last_epoch, end))
                model.adopt(epoch, (last_epoch, end))
            case 2:
                epoch += 1
                log.adopt(epoch, None)
                model.adopt(epoch, None)
            case 3:
                epoch += 1
                snapshot = Snapshot(int(rng.integers(1, model.end + 9)), [(epoch, 1)], [(3, 99)])
                log.reset(epoch, snapshot)
                model.reset(epoch, snapshot)
                epoch += 1
            case 4:
                log.trim(int(rng.integers(model.start, model.end + 2)))
                model.trim(log.start)
            case 5:
                log.segment_bytes = int(rng.choice((300, 2_000)))
            case _:
                log = reopened(log)
        expected = [(epoch, model.start + index, entry[2]) for index, (epoch, entry) in enumerate(model.entries)]
        assert entries(log) == expected
        assert (log.start, log.end, log.epochs) == (model.start, model.end, model.epochs)
        assert (log.publishers, log.promised) == (model.publishers, model.promised)
        assert dict(log.snapshot().publishers) == dict(model.before.publishers)
    assert segment_starts(log.directory)[0] == log.start
    log.close()
