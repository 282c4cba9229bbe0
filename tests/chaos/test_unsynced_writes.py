"""A power failure at any moment: writes without an fsync are lost or torn, and nothing acknowledged is lost."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from tests.chaos import writing_child
from tests.chaos.recorded_writes import Call, Disk, record_calls, restore_files
from tocsin.cluster.catalog.tables import read_fact
from tocsin.cluster.feed.feedlog_reader import FeedLogReader

CRASHES = 150


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    """(the folder of the process, its calls)."""
    folder = tmp_path_factory.mktemp("store")
    return folder, record_calls(writing_child.__name__, folder, tmp_path_factory.mktemp("recording") / "calls")


class Acknowledged:
    """What the process had acknowledged by some call."""

    def __init__(self) -> None:
        self.opened = False
        self.records: dict[str, int] = {}
        """The position after each record, by its name."""
        self.ingested = 0

    def note(self, call: Call) -> None:
        for line in call.data.decode().splitlines():
            kind, _, rest = line.partition(" ")
            self.opened = True
            if kind == "record":
                name, _, position = rest.partition(" ")
                self.records[name] = int(position)
            elif kind == "ingested":
                self.ingested = int(rest)


def check(folder: Path, acknowledged: Acknowledged) -> None:
    """Start again from what the crash left, and find every acknowledged record and fact."""
    gateway, catalog = writing_child.open_store(folder)
    try:
        with catalog._database.read() as connection:
            ingested = int(read_fact(connection, writing_child.INGESTED) or 0)
        assert ingested >= acknowledged.ingested, "the catalog lost a commit"
        reader = FeedLogReader(gateway.log_directory)
        assert reader.start <= ingested, "the log was trimmed beyond the position that the catalog has"
        frames, _ = reader.read(max(reader.start, 0), 1 << 30)
        reader.close()
        stored = {name for frame in frames for name in _names(frame.lines())}
        lost = {name for name, end in acknowledged.records.items() if end > ingested} - stored
        assert not lost, f"acknowledged and lost: {sorted(lost)}"
    finally:
        gateway.close()
        catalog.close()


def _names(lines: list[bytes]) -> list[str]:
    return [json.loads(line)["id"] for line in lines]


def test_recording_has_writes_and_fsyncs_of_the_log_and_the_catalog(recorded: tuple[Path, list[Call]]) -> None:
    folder, calls = recorded
    for part in ("feed/log", "catalog.sqlite"):
        of_part = [call for call in calls if call.path.startswith(str(folder / part))]
        assert {"write", "fsync"} <= {call.name for call in of_part}
    assert any(call.name == "unlink" for call in calls if "/feed/log/" in call.path), "the log was trimmed"


def test_power_failure_at_any_moment_loses_nothing_acknowledged(
    recorded: tuple[Path, list[Call]], tmp_path: Path
) -> None:
    folder, calls = recorded
    rng = random.Random(7)
    points = sorted(rng.choices(range(len(calls)), k=CRASHES))
    disk, acknowledged, done = Disk(str(folder)), Acknowledged(), 0
    crashes = 0
    for number, call in enumerate(calls):
        if not call.path.startswith(str(folder)) and call.name == "write":
            acknowledged.note(call)
        disk.apply(call)
        while done < len(points) and points[done] == number:
            done += 1
            if acknowledged.opened:  # before, the folder is not a store yet
                left = tmp_path / f"crash-{crashes}"
                restore_files(disk.after_crash(rng), folder, left)
                check(left, acknowledged)
                shutil.rmtree(left)
                crashes += 1
    assert crashes > CRASHES / 2 and len(acknowledged.records) == 3 * writing_child.REQUESTS


def test_replay_loses_what_no_fsync_followed() -> None:
    """The replay itself can fail: a store that acknowledges before its fsync loses records in it."""
    disk = Disk("/d")
    for call in (
        Call("create", "/d/log"),
        Call("write", "/d/log", b"durable", 0),
        Call("fsync", "/d/log"),
        Call("write", "/d/log", b" lost", 7),
    ):
        disk.apply(call)
    rng = random.Random(1)
    contents = {disk.after_crash(rng)["/d/log"] for _ in range(50)}
    assert b"durable" in contents and b"durable lost" in contents and any(c == b"durable lo" for c in contents)
