"""The feed log keeps acknowledged frames in order, and raises if it cannot."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.cluster.feed.feedlog import FeedLog
from tocsin.cluster.feed.feedlog_reader import (
    FeedLogCorrupt,
    FeedLogInUse,
    FeedLogReader,
    FeedLogTrimmed,
    FeedLogWriteFailed,
    LogFrame,
)

EVERYTHING = 1 << 40


def payloads(frames: list[LogFrame]) -> list[bytes]:
    return [frame.payload for frame in frames]


def fill(log: FeedLog, *lines: bytes) -> list[int]:
    """Append one durable frame per line. Returns the position after each frame."""
    positions: list[int] = []
    for line in lines:
        positions.append(log.append(line, 1, {"accepted_at_us": len(positions)}))
        log.sync()
    return positions


def last_segment(directory: Path) -> Path:
    return max(directory.glob("*.log"))


def test_synced_frame_is_read_back_with_meta_and_count(tmp_path: Path) -> None:
    log = FeedLog(tmp_path)
    end = log.append(b'{"a":1}\n{"a":2}', 2, {"accepted_at_us": 7, "answer": "é"})
    assert log.sync() == end
    frames, next_position = log.read(0, EVERYTHING)
    assert frames == [LogFrame(0, end, 2, {"accepted_at_us": 7, "answer": "é"}, b'{"a":1}\n{"a":2}')]
    assert frames[0].lines() == [b'{"a":1}', b'{"a":2}']
    assert next_position == end == log.durable_end


def test_reader_sees_a_frame_only_once_it_is_durable(tmp_path: Path) -> None:
    log = FeedLog(tmp_path)
    reader = FeedLogReader(tmp_path)
    log.append(b"x", 1, {})
    assert (reader.end, reader.read(0, EVERYTHING)) == (0, ([], 0))
    log.sync()
    assert payloads(reader.read(0, EVERYTHING)[0]) == [b"x"]


def test_reader_of_a_log_without_a_writer_sees_an_empty_log(tmp_path: Path) -> None:
    reader = FeedLogReader(tmp_path / "nothing")
    assert (reader.start, reader.end, reader.read(0, 10)) == (0, 0, ([], 0))


def test_many_appends_share_one_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FeedLog(tmp_path)
    calls: list[int] = []
    monkeypatch.setattr(os, "fdatasync", calls.append)
    for _ in range(50):
        log.append(b"x", 1, {})
    log.sync()
    log.sync()
    assert len(calls) == 1
    assert len(log.read(0, EVERYTHING)[0]) == 50


def test_positions_continue_across_segments_and_reopening(tmp_path: Path) -> None:
    log = FeedLog(tmp_path, segment_bytes=200)
    lines = [b"%03d" % number * 20 for number in range(20)]
    positions = fill(log, *lines)
    assert len(list(tmp_path.glob("*.log"))) > 5
    log.close()
    again = FeedLog(tmp_path, segment_bytes=200)
    assert again.durable_end == positions[-1]
    frames, _ = again.read(0, EVERYTHING)
    assert payloads(frames) == lines
    assert [frame.next_position for frame in frames] == positions


def test_one_sync_may_fill_several_segments(tmp_path: Path) -> None:
    log = FeedLog(tmp_path, segment_bytes=100)
    lines = [bytes([65 + number]) * 90 for number in range(9)]
    for line in lines:
        log.append(line, 1, {})
    log.sync()
    assert len(list(tmp_path.glob("*.log"))) == 9
    assert payloads(FeedLogReader(tmp_path).read(0, EVERYTHING)[0]) == lines


@settings(max_examples=60)
@given(
    lines=st.lists(st.binary(min_size=0, max_size=120), min_size=1, max_size=25),
    limit_bytes=st.integers(1, 500),
    segment_bytes=st.integers(50, 600),
)
def test_reading_in_steps_gives_the_same_frames_as_reading_at_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], limit_bytes: int, segment_bytes: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = FeedLog(directory, segment_bytes)
    fill(log, *lines)
    reader = FeedLogReader(directory)
    stepwise: list[LogFrame] = []
    position = 0
    while position < log.durable_end:
        frames, following = reader.read(position, limit_bytes)
        assert frames and following > position
        assert reader.read(position, limit_bytes, end=following) == (frames, following)
        stepwise += frames
        position = following
    assert stepwise == log.read(0, EVERYTHING)[0]
    assert payloads(stepwise) == lines
    log.close()
    reader.close()


@pytest.mark.parametrize("kept_bytes", range(0, 60, 7))
def test_incomplete_last_frame_is_cut_and_the_log_continues(tmp_path: Path, kept_bytes: int) -> None:
    log = FeedLog(tmp_path)
    first, second = fill(log, b"a" * 30, b"b" * 30)
    log.close()
    # As after a crash before the fsync: the published end is after the first frame, and some bytes of the second exist.
    (tmp_path / "end").write_bytes(first.to_bytes(8, "little"))
    os.truncate(last_segment(tmp_path), first + kept_bytes)
    assert second > first + kept_bytes
    again = FeedLog(tmp_path)
    assert again.durable_end == first == FeedLogReader(tmp_path).end
    fill(again, b"c")
    assert payloads(again.read(0, EVERYTHING)[0]) == [b"a" * 30, b"c"]


def test_complete_unacknowledged_frames_are_durable_after_recovery(tmp_path: Path) -> None:
    log = FeedLog(tmp_path)
    first, second = fill(log, b"a", b"b")
    log.close()
    (tmp_path / "end").write_bytes(first.to_bytes(8, "little"))
    assert FeedLog(tmp_path).durable_end == second == FeedLogReader(tmp_path).end


def test_zeros_after_the_last_frame_are_cut(tmp_path: Path) -> None:
    log = FeedLog(tmp_path)
    (end,) = fill(log, b"a")
    log.close()
    os.truncate(last_segment(tmp_path), end + 4096)
    assert FeedLog(tmp_path).durable_end == end


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x40
    path.write_bytes(raw)


def test_damage_before_the_published_end_is_reported_and_not_cut(tmp_path: Path) -> None:
    log = FeedLog(tmp_path)
    first, _ = fill(log, b"a" * 30, b"b" * 30)
    log.close()
    size = last_segment(tmp_path).stat().st_size
    flip(last_segment(tmp_path), first + 40)
    with pytest.raises(FeedLogCorrupt, match=f"damaged at position {first}: the checksum.*Restore") as caught:
        FeedLog(tmp_path)
    assert caught.value.file == str(last_segment(tmp_path))
    assert last_segment(tmp_path).stat().st_size == size


def test_reader_refuses_damage_in_an_old_segment(tmp_path: Path) -> None:
    log = FeedLog(tmp_path, segment_bytes=100)
    first, *_ = fill(log, b"a" * 60, b"b" * 60, b"c" * 60)
    flip(tmp_path / f"{first:020d}.log", 50)
    reader = FeedLogReader(tmp_path)
    with pytest.raises(FeedLogCorrupt, match="checksum") as caught:
        reader.read(0, EVERYTHING)
    assert caught.value.position == first


def test_missing_durable_bytes_at_the_end_are_damage(tmp_path: Path) -> None:
    log = FeedLog(tmp_path)
    first, _ = fill(log, b"a" * 30, b"b" * 30)
    log.close()
    os.truncate(last_segment(tmp_path), first)
    with pytest.raises(FeedLogCorrupt, match="missing"):
        FeedLog(tmp_path)


def test_missing_segment_in_the_middle_is_damage(tmp_path: Path) -> None:
    log = FeedLog(tmp_path, segment_bytes=100)
    first, *_ = fill(log, b"a" * 60, b"b" * 60, b"c" * 60)
    log.close()
    (tmp_path / f"{first:020d}.log").unlink()
    with pytest.raises(FeedLogCorrupt, match="the next segment starts at"):
        FeedLog(tmp_path)


def test_log_without_any_segments_does_not_start_again_at_zero(tmp_path: Path) -> None:
    log = FeedLog(tmp_path)
    fill(log, b"a")
    log.close()
    last_segment(tmp_path).unlink()
    with pytest.raises(FeedLogCorrupt, match="all segments are missing"):
        FeedLog(tmp_path)


def test_position_inside_a_frame_is_refused(tmp_path: Path) -> None:
    log = FeedLog(tmp_path)
    fill(log, b"a" * 30)
    with pytest.raises(FeedLogCorrupt):
        log.read(3, EVERYTHING)


def test_trim_deletes_whole_segments_and_reading_them_reports_it(tmp_path: Path) -> None:
    log = FeedLog(tmp_path, segment_bytes=100)
    positions = fill(log, b"a" * 60, b"b" * 60, b"c" * 60, b"d" * 60)
    assert log.trim(positions[1] + 5) == positions[1] == log.start
    with pytest.raises(FeedLogTrimmed) as caught:
        log.read(0, EVERYTHING)
    assert caught.value.start == positions[1]
    assert payloads(log.read(positions[1], EVERYTHING)[0]) == [b"c" * 60, b"d" * 60]


def test_trimming_everything_keeps_the_position_across_a_restart(tmp_path: Path) -> None:
    log = FeedLog(tmp_path, segment_bytes=100)
    positions = fill(log, b"a" * 60, b"b" * 60)
    log.trim(positions[-1])
    log.close()
    again = FeedLog(tmp_path, segment_bytes=100)
    assert again.durable_end == positions[-1]
    assert again.start == positions[0]


def test_second_writer_is_refused(tmp_path: Path) -> None:
    log = FeedLog(tmp_path)
    with pytest.raises(FeedLogInUse):
        FeedLog(tmp_path)
    log.close()
    FeedLog(tmp_path).close()


@pytest.mark.parametrize("failing", ["pwritev", "fdatasync"])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 100])
def test_full_disk_stores_nothing_and_the_log_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, segment_bytes: int
) -> None:
    log = FeedLog(tmp_path, segment_bytes)
    (kept,) = fill(log, b"a" * 60)
    calls = 0
    real = getattr(os, failing)

    def full_at_the_second_call(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls >= 2 or segment_bytes > 100:
            if failing == "pwritev":
                real(arguments[0], [b"half a frame"], arguments[2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, failing, full_at_the_second_call)
    log.append(b"b" * 60, 1, {})
    log.append(b"c" * 60, 1, {})
    with pytest.raises(FeedLogWriteFailed, match="No space left"):
        log.sync()
    monkeypatch.undo()
    assert log.durable_end == log.tail == kept == FeedLogReader(tmp_path).end
    assert sum(path.stat().st_size for path in tmp_path.glob("*.log")) == kept
    fill(log, b"d")
    log.close()
    assert payloads(FeedLog(tmp_path).read(0, EVERYTHING)[0]) == [b"a" * 60, b"d"]


def test_log_opens_after_a_crash_while_cutting_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Died(BaseException):
        pass

    log = FeedLog(tmp_path, 100)
    fill(log, b"a" * 60)
    for letter in (b"b", b"c", b"d"):
        log.append(letter * 60, 1, {})
    deleted = 0
    unlink = Path.unlink

    def dies_at_the_second(path: Path) -> None:
        nonlocal deleted
        deleted += 1
        if deleted == 2:
            raise Died
        unlink(path)

    def fails(*_arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(log, "_publish", fails)
    monkeypatch.setattr(Path, "unlink", dies_at_the_second)
    with pytest.raises(Died):
        log.sync()
    monkeypatch.undo()
    log.close()
    again = FeedLog(tmp_path, 100)
    fill(again, b"e" * 60)
    stored = payloads(again.read(0, EVERYTHING)[0])
    assert (stored[0], stored[-1]) == (b"a" * 60, b"e" * 60)
    again.close()


def test_partial_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pwritev, real_pwrite = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, at: real_pwritev(fd, [b"".join(pieces)[:25]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, bytes(data)[:25], at))
    log = FeedLog(tmp_path)
    log.append(b"a" * 40, 1, {})
    log.append(b"b" * 40, 1, {})
    log.sync()
    assert payloads(log.read(0, EVERYTHING)[0]) == [b"a" * 40, b"b" * 40]


def test_more_frames_than_one_system_call_takes_are_written(tmp_path: Path) -> None:
    log = FeedLog(tmp_path)
    for number in range(1500):
        log.append(b"%d" % number, 1, {})
    log.sync()
    assert payloads(log.read(0, EVERYTHING)[0]) == [b"%d" % number for number in range(1500)]


def test_frames_appended_during_a_sync_wait_for_the_next_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FeedLog(tmp_path)
    real = os.fdatasync

    def append_meanwhile(fd: int) -> None:
        monkeypatch.setattr(os, "fdatasync", real)
        log.append(b"second", 1, {})
        real(fd)

    monkeypatch.setattr(os, "fdatasync", append_meanwhile)
    log.append(b"first", 1, {})
    log.sync()
    assert payloads(FeedLogReader(tmp_path).read(0, EVERYTHING)[0]) == [b"first"]
    log.sync()
    assert payloads(FeedLogReader(tmp_path).read(0, EVERYTHING)[0]) == [b"first", b"second"]


def test_log_modules_need_only_the_standard_library() -> None:
    listing = (
        "import sys; import tocsin.cluster.feed.feedlog; "
        "print([name for name in ('numpy', 'msgspec', 'pyarrow', 'sqlalchemy', 'pyspark') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
