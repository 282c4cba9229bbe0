"""The executions that the announcement log keeps in memory. It needs no Spark."""

from __future__ import annotations

import weakref
from pathlib import Path

import pyarrow as pa

from tocsin.cluster.announcements import RECENT_EXECUTIONS, RECENT_ROWS, AnnouncementLog
from tocsin.cluster.book import SubscriptionBook
from tocsin.cluster.catalog import Catalog, StoredExecution
from tocsin.cluster.store.filewriting import SUMMARY
from tocsin.cluster.store.readers import Readers
from tocsin.cluster.store.results import ResultStore
from tocsin.cluster.store.storage import Storage
from tocsin.model.ids import ChannelName


def log_at(folder: Path) -> AnnouncementLog:
    catalog = Catalog(f"sqlite:///{folder / 'catalog.sqlite'}")
    return AnnouncementLog(catalog, ResultStore(catalog, Storage(str(folder)), Readers()), SubscriptionBook())


def execution(sequence: int) -> StoredExecution:
    return StoredExecution(sequence, ChannelName("OfKind"), 1, sequence, {}, 1, 100, 0.0, 0.0)


def summary(rows: int) -> pa.Table:
    column = pa.array(range(rows), pa.int64())
    return pa.table([column, column, column], schema=SUMMARY)


def test_small_summaries_leave_memory_after_a_number_of_executions(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    first, second = summary(1), summary(1)
    first_kept, second_kept = weakref.ref(first), weakref.ref(second)
    log.publish([(execution(1), first)])
    log.publish([(execution(2), second)])
    del first, second
    for sequence in range(3, RECENT_EXECUTIONS + 2):
        log.publish([(execution(sequence), summary(1))])
    assert first_kept() is None
    assert second_kept() is not None


def test_newest_summary_stays_in_memory_however_large_it_is(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    large = summary(RECENT_ROWS + 1)
    kept = weakref.ref(large)
    log.publish([(execution(1), large)])
    del large
    assert kept() is not None
    log.publish([(execution(2), summary(1))])
    assert kept() is None
