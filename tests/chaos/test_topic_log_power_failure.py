"""A power failure at any moment while a topic's log is written, cut, trimmed or replaced loses nothing stored."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.chaos import topic_log_child
from tests.chaos.recorded_writes import Call, Disk, record_calls, restore_files
from tocsin.runtime.broker.topic_log import TopicLog

CRASHES = 250


class Stored:
    """What the process had stored by some call: the log must have it after a crash."""

    def __init__(self) -> None:
        self.opened = False
        self.promised = 0
        self.messages: dict[int, bytes] = {}
        """Sequence number → message."""
        self.end = 0
        self.start = 1
        self.cutting: int | None = None
        """A cut to this sequence number is under way."""

    def note(self, text: str) -> None:
        for line in text.splitlines():
            kind, *numbers = line.split()
            self.opened = True
            if kind == "stored":
                epoch, end = map(int, numbers)
                self._finish_cut()
                for sequence in range(self.end + 1, end + 1):
                    self.messages[sequence] = topic_log_child.data_of(epoch, sequence)
                self.end = end
            elif kind == "promised":
                self.promised = int(numbers[0])
                self._finish_cut()
            elif kind == "cutting":
                self.cutting = int(numbers[0])
            elif kind == "trimming":
                self.start = max(self.start, int(numbers[0]))
            elif kind == "reset":
                self.messages, self.cutting = {}, None
                self.start, self.end = int(numbers[0]), int(numbers[0]) - 1

    def _finish_cut(self) -> None:
        if self.cutting is not None:
            self.end = min(self.end, self.cutting)
            self.messages = {sequence: data for sequence, data in self.messages.items() if sequence <= self.end}
            self.cutting = None

    def check(self, log: TopicLog) -> None:
        least = self.end if self.cutting is None else min(self.end, self.cutting)
        assert log.promised >= self.promised, "a promise was lost"
        assert log.end >= least, f"stored up to {least}, and the log ends at {log.end}"
        after = max(log.start, self.start) - 1
        read = {
            piece.first + index: entry[2]
            for piece in log.read(after, log.end, 1 << 30)
            for index, entry in enumerate(piece.entries)
        }
        lost = {
            sequence
            for sequence, data in self.messages.items()
            if after < sequence <= least and read.get(sequence) != data
        }
        assert not lost, f"stored and lost: {sorted(lost)}"
        assert log.start <= self.start or self.cutting == 0, "the log was trimmed too far"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    folder = tmp_path_factory.mktemp("log")
    return folder, record_calls(topic_log_child.__name__, folder, tmp_path_factory.mktemp("recording") / "calls")


def test_power_failure_at_any_moment_loses_nothing_stored(recorded: tuple[Path, list[Call]], tmp_path: Path) -> None:
    folder, calls = recorded
    rng = random.Random(11)
    points = sorted(rng.choices(range(len(calls)), k=CRASHES))
    disk, stored, crashes = Disk(str(folder)), Stored(), 0
    for number, call in enumerate(calls):
        if not call.path.startswith(str(folder)) and call.name == "write":
            stored.note(call.data.decode())
        disk.apply(call)
        for _ in range(points.count(number)):
            if stored.opened:
                left = tmp_path / f"crash-{crashes}"
                restore_files(disk.after_crash(rng), folder, left)
                log = TopicLog(left / "log")
                stored.check(log)
                log.close()
                shutil.rmtree(left)
                crashes += 1
    assert crashes > CRASHES / 2
    assert len(stored.messages) > 20
