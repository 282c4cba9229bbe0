"""Faults of the disk and the clock: refused writes, torn writes, slow fsyncs and clock steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import writing_child
from tocsin.chaos.disk import allow_writes, refuse_writes, tear_last_writes
from tocsin.chaos.faulty_process import Control, write_control
from tocsin.cluster.feed.feedlog import FeedLog
from tocsin.cluster.feed.feedlog_reader import FeedLogReader

_WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for _ in sys.stdin:
    try:
        os.pwrite(fd, b"x", 0)
        print("written", flush=True)
    except OSError as error:
        print("refused", flush=True)
"""
_CLOCKED = """
import os, sys, time
from tocsin.chaos.faulty_process import install
true_s = time.time()
install()
began_s = time.monotonic()
fd = os.open(sys.argv[3], os.O_RDWR | os.O_CREAT)
os.fsync(fd)
print(round((time.time() - true_s) / 3600), time.monotonic() - began_s >= 0.2)
"""


def test_process_on_a_full_disk_cannot_write_until_there_is_room(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as writer:
        assert writer.stdin is not None and writer.stdout is not None

        def attempt() -> str:
            assert writer.stdin is not None and writer.stdout is not None
            writer.stdin.write("write\n")
            return writer.stdout.readline().strip()

        assert attempt() == "written"
        refuse_writes(writer.pid)
        assert attempt() == "refused"
        allow_writes(writer.pid)
        assert attempt() == "written"
        writer.stdin.close()


def test_torn_write_leaves_half_a_frame_that_recovery_cuts(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "feeds" / "Reports-1"
    log = FeedLog(folder / "log", writing_child.LIMITS.segment_bytes)
    log.append(b'{"id":"a"}', 1, {})
    end = log.sync()
    log.close()
    assert tear_last_writes(tmp_path) == 1
    assert (folder / "log" / f"{0:020d}.log").stat().st_size > end
    FeedLog(folder / "log", writing_child.LIMITS.segment_bytes).close()
    frames, position = FeedLogReader(folder / "log").read(0, 1 << 20)
    assert [frame.payload for frame in frames] == [b'{"id":"a"}'] and position == end


@pytest.mark.parametrize(("control", "outcome"), [(Control(), "0 False"), (Control(0.2, 3600.0), "1 True")])
def test_control_file_slows_fsync_and_steps_the_clock(tmp_path: Path, control: Control, outcome: str) -> None:
    write_control(tmp_path, control)
    command = [sys.executable, "-c", _CLOCKED, "--root", str(tmp_path), str(tmp_path / "file")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == outcome
