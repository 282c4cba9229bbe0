"""Upkeep of a running data cluster: merge files, expire old records and results, end subscriptions without a holder,
delete leftover files.

Every step is independent and may be repeated; a crash between any two of them loses nothing. Called every few seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tocsin.cluster.catalog import NewFile, StoredFile, dataset_owner, in_catalog, results_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.shared_log import FOLDER
from tocsin.cluster.live import LiveChannel, LiveDataset
from tocsin.cluster.retention import STORE_EVERY_S
from tocsin.cluster.spark.writing import merge_records, merge_results
from tocsin.cluster.store.merging import FAN_IN, files_to_merge, is_small, merge_records_here, merge_results_here
from tocsin.cluster.store.writes import write_of
from tocsin.model.entities import DatasetKind

SPAN_SHARE = 1 / 16
"""Files are merged only within this share of the retention, so that dropping whole files comes close to it."""
_FOLDERS = ("datasets", "results", "subscriptions", FOLDER)
KEYED_FAN_IN = 12
"""KEYED datasets are merged early: reading one scans every superseded record that is not merged away."""


def maintain(cluster: DataCluster) -> None:
    """Run all steps of upkeep. A step that fails does not stop the others; the first error is raised at the end."""
    failed: list[Exception] = []
    for step in _steps(cluster):
        cluster.lease.lease.require()
        try:
            step()
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _steps(cluster: DataCluster) -> Iterator[Callable[[], object]]:
    for dataset in cluster.datasets.all():
        if dataset.gateway is not None:
            yield dataset.gateway.maintain
        yield partial(merge_dataset, cluster, dataset)
        yield partial(expire_records, cluster, dataset)
    counts: dict[str, int] = {}
    yield lambda: counts.update(cluster.catalog.files.counts())
    for channel in cluster.channels.all():
        if counts.get(results_owner(channel.name, channel.epoch), 0) >= FAN_IN:
            yield partial(merge_channel, cluster, channel)
        yield partial(expire_results, cluster, channel)
    yield cluster.channels.end_unheld
    yield cluster.garbage.collect
    yield partial(cluster.retention_s.store, STORE_EVERY_S)


def merge_dataset(cluster: DataCluster, live: LiveDataset, fan_in: int | None = None) -> int:
    """Merge a dataset's files until no run is long enough; return by how many files this reduced them."""
    dataset = live.dataset
    keyed = dataset.kind is DatasetKind.KEYED
    span_s = math.inf if dataset.retain_s is None else dataset.retain_s * SPAN_SHARE
    return _merge(
        cluster,
        dataset_owner(dataset.name),
        partial(files_to_merge, keyed=keyed, span_s=span_s, fan_in=fan_in or (KEYED_FAN_IN if keyed else FAN_IN)),
        f"datasets/{dataset.name}",
        partial(merge_records_here, cluster.storage, dataset),
        partial(merge_records, cluster.spark, cluster.storage, dataset),
    )


def merge_channel(cluster: DataCluster, live: LiveChannel, fan_in: int = FAN_IN) -> int:
    """Merge the files of a channel's results until no run is long enough; return by how many this reduced them."""
    return _merge(
        cluster,
        results_owner(live.name, live.epoch),
        partial(files_to_merge, span_s=live.prepared.channel.retain_s * SPAN_SHARE, fan_in=fan_in),
        live.results_folder,
        partial(_merge_results_here, cluster),
        partial(_merge_results_with_spark, cluster, live),
    )


def _merge_results_here(cluster: DataCluster, files: Sequence[StoredFile], prefix: str) -> list[NewFile]:
    stored = cluster.catalog.files.contents([file.path for file in files if in_catalog(file.path)])
    return merge_results_here(cluster.storage, stored, files, prefix)


def _merge_results_with_spark(
    cluster: DataCluster, live: LiveChannel, files: Sequence[StoredFile], prefix: str
) -> list[NewFile]:
    """Merge large files of results. Spark cannot read what the catalog stores: that is written to a file first."""
    stored = [file for file in files if in_catalog(file.path)]
    written = _merge_results_here(cluster, stored, prefix) if stored else []
    readable = [*(file for file in files if not in_catalog(file.path)), *written]
    merged = merge_results(cluster.spark, cluster.storage, live.prepared.columns, readable, prefix)
    for file in written:
        cluster.storage.delete(file.path)
    return merged


def _merge(
    cluster: DataCluster,
    owner: str,
    choose: Callable[[list[StoredFile]], list[StoredFile]],
    folder: str,
    merge_here: Callable[[list[StoredFile], str], list[NewFile]],
    merge_with_spark: Callable[[list[StoredFile], str], list[NewFile]],
) -> int:
    merged = 0
    while old := choose(cluster.catalog.files.of(owner)):
        with cluster.writes.begin(owner) as write:
            new = (merge_here if is_small(old) else merge_with_spark)(old, write.prefix(folder))
            write.check(new)
            write.committed = cluster.catalog.files.replace(owner, old, new, cluster.retention_s(), write.id)
        if not write.committed:
            break
        merged += len(old) - len(new)
    return merged


def expire_records(cluster: DataCluster, live: LiveDataset) -> int:
    """Drop records past their retention, except those that a channel has not matched yet."""
    dataset = live.dataset
    if dataset.kind is not DatasetKind.STREAM or dataset.retain_s is None:
        return 0
    matched = [
        channel.positions[dataset.name]
        for channel in cluster.channels.all()
        if dataset.name in channel.positions and channel.subscribers.count
    ]
    upto = min(matched, default=live.writer.version)
    now_s = cluster.retention_s()
    cluster.catalog.dead_letters.expire(dataset.name, now_s - dataset.retain_s)
    return cluster.catalog.files.expire(dataset_owner(dataset.name), now_s - dataset.retain_s, upto, now_s)


def expire_results(cluster: DataCluster, live: LiveChannel) -> int:
    channel = live.prepared.channel
    now_s = cluster.retention_s()
    before_s = now_s - channel.retain_s
    if before_s <= live.oldest_s:
        return 0
    if cluster.catalog.executions.expire(channel.name, before_s):
        cluster.results.forget_latest(channel.name)
    dropped = cluster.catalog.files.expire(results_owner(channel.name, live.epoch), before_s, live.execution, now_s)
    # A file is as old as its newest execution, and an execution that is committed later is not older than now.
    live.oldest_s = min(cluster.catalog.executions.oldest_s(channel.name), now_s)
    return dropped


class OrphanSweep:
    """Deletes files that no catalog row names: leftovers of tasks and processes that died before their commit.

    A file that waits for its commit belongs to an open write intent and is kept, however long its job takes. A leftover
    is deleted after this process has seen it for `orphans_after_s`, by a monotonic clock: the wall clock may jump.
    """

    def __init__(self, cluster: DataCluster, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock_s = clock_s
        self._since_s: dict[str, float] = {}

    def sweep(self) -> int:
        """Delete the files that are orphans by now; return how many."""
        self._cluster.lease.lease.require()
        cluster, now_s = self._cluster, self._clock_s()
        listed = [path for folder in _FOLDERS for path in cluster.storage.list(folder)]
        # In this order: a job that commits in between deletes its intent and adds its files in one transaction.
        open_writes = cluster.catalog.writes.open()
        named_paths = cluster.catalog.files.known_paths().union(
            *(live.subscribers.own_paths for live in cluster.channels.all())
        )
        self._since_s = {
            path: self._since_s.get(path, now_s)
            for path in listed
            if path not in named_paths and write_of(path) not in open_writes
        }
        orphans = [
            path for path, since_s in self._since_s.items() if now_s - since_s >= cluster.settings.orphans_after_s
        ]
        for path in orphans:
            cluster.storage.delete(path)
        return len(orphans)
