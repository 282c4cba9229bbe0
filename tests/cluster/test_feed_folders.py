"""A new leader continues the feed of a leader that may still run, and neither disturbs the other."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path

import pytest

from tocsin.cluster import feed_folders
from tocsin.cluster.catalog import Catalog
from tocsin.cluster.feed.gateway import Accepted, FeedGateway, FeedLimits, RecordForm
from tocsin.cluster.feed_folders import FeedFolders, continue_feed
from tocsin.database.lease import Holder, Lease
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema
from tocsin.wire.errors import TocsinError

REPORTS = Dataset(DatasetName("Reports"), DatasetKind.STREAM, Schema.of(id="STRING", note="STRING"), key=("id",))
SMALL = {"segment_bytes": 2_000, "memory_keys": 30}
"""A log of several segments, and several runs of keys."""


def gateway(folder: Path) -> FeedGateway:
    return FeedGateway(REPORTS, folder, FeedLimits(**SMALL), lambda: 1_000.0)


def publish(feed: FeedGateway, *ids: int, key: str | None = None, sync: bool = True) -> Accepted:
    body = json.dumps([{"id": str(number), "note": "x" * 50} for number in ids]).encode()
    answer = feed.accept(body, RecordForm.JSON, key)
    assert isinstance(answer, Accepted), answer
    if sync:
        feed.sync()
    return answer


def filled(folder: Path) -> FeedGateway:
    feed = gateway(folder)
    for number in range(100):
        publish(feed, number, key=f"request {number}")
        if number == 60:
            feed.maintain()
    return feed


def test_new_leader_knows_every_key_and_answer_of_the_former_one(tmp_path: Path) -> None:
    former = filled(tmp_path / "former")
    continue_feed(tmp_path / "former", tmp_path / "own")
    own = gateway(tmp_path / "own")
    assert own.durable_end == former.durable_end
    again = publish(own, *range(100), 100)
    assert (again.accepted, again.duplicates) == (1, 100)
    assert publish(own, 7, key="request 7").replayed
    for feed in (own, former):
        feed.close()


def test_former_leader_that_goes_on_writing_does_not_disturb_the_new_one(tmp_path: Path) -> None:
    former = filled(tmp_path / "former")
    publish(former, 500, sync=False)  # the process is stopped before its fsync
    continue_feed(tmp_path / "former", tmp_path / "own")
    own = gateway(tmp_path / "own")
    for number in range(200, 260):  # the former leader awakes, and fills segments of its own
        publish(former, number)
    former.maintain()
    assert publish(own, 200, 500).accepted == 2, "what the former leader has not acknowledged is not known"
    own.close()
    again = gateway(tmp_path / "own")
    assert publish(again, *range(100), 200, 500).duplicates == 102
    for feed in (again, former):
        feed.close()


def test_copy_of_a_feed_that_is_written_meanwhile_has_every_earlier_record(tmp_path: Path) -> None:
    former = filled(tmp_path / "former")
    stop = threading.Event()

    def go_on() -> None:
        number = 1_000
        while not stop.is_set():
            publish(former, number)
            former.ingested(former.durable_end)
            former.maintain()
            number += 1

    writing = threading.Thread(target=go_on)
    writing.start()
    try:
        for attempt in range(5):
            continue_feed(tmp_path / "former", tmp_path / f"own-{attempt}")
            own = gateway(tmp_path / f"own-{attempt}")
            assert publish(own, *range(100)).duplicates == 100
            own.close()
    finally:
        stop.set()
        writing.join()
        former.close()


def test_folder_of_a_feed_changes_only_if_the_former_leader_may_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    catalog, lease = Catalog(url), Lease(url, "data cluster", Holder(), float("inf"))
    assert lease.acquire(standby=False)
    folders = FeedFolders(catalog, tmp_path, lease)
    former = filled(folders.open("Reports", 3))
    assert folders.open("Reports", 3) == tmp_path / "feeds" / "Reports-3"
    lease.is_clean = False
    own = folders.open("Reports", 3)
    assert own == folders.path("Reports", 3) == tmp_path / "feeds" / "Reports-3.1"
    assert [path.name for path in (tmp_path / "feeds").iterdir()] == ["Reports-3.1"]
    feed = gateway(own)
    assert publish(feed, 5).duplicates == 1
    for opened in (feed, former, catalog):
        opened.close()
    lease.release()


def test_feed_that_the_former_leader_never_opened_is_copied_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    catalog = Catalog(url)
    leases = [Lease(url, "data cluster", Holder(), 3_600.0) for _ in range(4)]
    folders = [FeedFolders(catalog, tmp_path, lease) for lease in leases]
    assert leases[0].acquire(standby=False)
    stopped = filled(folders[0].open("Reports", 3))
    # The first leader is stopped. The second one takes over, fails while it opens the data root, and ends in order.
    leases[0]._ended.set()
    table = leases[1]._table
    assert table.take("data cluster", table.read("data cluster"), "second", Holder(), 3_600.0) == 2
    table.release("data cluster", 2)

    assert leases[2].acquire(standby=False) and leases[2].is_clean
    own = folders[2].open("Reports", 3)
    assert own.name == "Reports-3.3", "the first leader may still write into its folder"
    assert folders[2].open("Reports", 3) == own
    publish(stopped, 700)  # the first leader awakes
    feed = gateway(own)
    assert publish(feed, 700).accepted == 1 and publish(feed, 5).duplicates == 1
    for opened in (feed, stopped):
        opened.close()
    leases[2].release()

    assert leases[3].acquire(standby=False)
    assert folders[3].open("Reports", 3) == own, "the leader that opened it last has ended"
    leases[3].release()
    for lease in leases[:2]:
        lease._table.close()
    catalog.close()


def test_checkpoint_between_two_copied_files_loses_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = sqlite3.connect(tmp_path / "former.db", isolation_level=None)
    former.execute("PRAGMA journal_mode = WAL")
    former.execute("CREATE TABLE answers (number INTEGER PRIMARY KEY)")
    former.executemany("INSERT INTO answers VALUES (?)", [(number,) for number in range(50)])
    copy = feed_folders._copy
    checkpoints: list[Path] = []

    def copy_and_checkpoint(source: Path, own: Path) -> None:
        copy(source, own)
        if source.suffix == ".db" and not checkpoints:
            checkpoints.append(source)
            former.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            former.execute("INSERT INTO answers VALUES (50)")

    monkeypatch.setattr(feed_folders, "_copy", copy_and_checkpoint)
    feed_folders._copy_database(tmp_path / "former.db", tmp_path / "own.db")
    own = sqlite3.connect(tmp_path / "own.db")
    assert own.execute("SELECT count(*) FROM answers").fetchone() == (51,)
    for opened in (own, former):
        opened.close()


def test_feed_whose_keys_are_not_complete_is_not_taken_over(tmp_path: Path) -> None:
    filled(tmp_path / "former").close()
    run = next((tmp_path / "former" / "keys").glob("*.keys"))
    run.unlink()
    with pytest.raises(TocsinError, match="changes while it is copied, or is damaged"):
        continue_feed(tmp_path / "former", tmp_path / "own")


def test_standby_without_the_feed_log_begins_no_empty_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    catalog = Catalog(url)
    leases = [Lease(url, "data cluster", Holder(), 3_600.0) for _ in range(2)]
    for lease, machine in zip(leases, ("north", "south"), strict=True):
        assert lease.acquire(standby=False)
        folders = FeedFolders(catalog, tmp_path / machine, lease)
        if machine == "north":
            filled(folders.open("Reports", 3)).close()
        else:
            with pytest.raises(TocsinError, match="feed log of Reports with acknowledged records is not here"):
                folders.open("Reports", 3)
        lease.release()
    catalog.close()


def test_segments_that_are_deleted_while_others_are_copied_leave_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = filled(tmp_path / "former")
    take_keys = feed_folders._take_keys
    trimmed: list[int] = []

    def take_keys_and_trim(source: Path, own: Path) -> None:
        take_keys(source, own)
        if not trimmed:  # the first segments are linked; now two later ones come and go
            for number in range(200, 260):
                publish(former, number)
            former.ingested(former.durable_end)
            former.maintain()
            trimmed.append(former.durable_end)

    monkeypatch.setattr(feed_folders, "_take_keys", take_keys_and_trim)
    continue_feed(tmp_path / "former", tmp_path / "own")
    own = gateway(tmp_path / "own")
    assert trimmed and publish(own, *range(100)).duplicates == 100
    for feed in (own, former):
        feed.close()
