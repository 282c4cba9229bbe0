"""What keeps a data cluster quick and small while it runs: merging files, forgetting what is too old, sweeping.

Every step stands alone and may be repeated; a crash between any two of them loses nothing. Called every few seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial

from tocsin.cluster.catalog import dataset_owner, results_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.live import LiveChannel, LiveDataset
from tocsin.cluster.spark.compaction import merge_records, merge_results
from tocsin.cluster.store.compaction import FAN_IN, files_to_merge
from tocsin.cluster.store.mergehere import is_small, merge_records_here, merge_results_here
from tocsin.model.entities import DatasetKind

SPAN_SHARE = 1 / 16
"""Files are merged only within this share of the retention, so that dropping whole files comes close to it."""
KEYED_FAN_IN = 12
"""KEYED datasets are merged eagerly: reading one goes through every record not yet merged away."""


def maintain(cluster: DataCluster) -> None:
    """All of it; what fails does not keep the rest from being done, and is raised at the end."""
    failed: list[Exception] = []
    for step in _steps(cluster):
        try:
            step()
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _steps(cluster: DataCluster) -> Iterator[Callable[[], object]]:
    for dataset in cluster.datasets():
        if dataset.gateway is not None:
            yield dataset.gateway.maintain
        yield partial(merge_dataset, cluster, dataset)
        yield partial(expire_records, cluster, dataset)
    for channel in cluster.channels():
        yield partial(merge_channel, cluster, channel)
        yield partial(expire_results, cluster, channel)
    before_s = cluster.now_s() - cluster.settings.garbage_after_s
    yield partial(cluster.catalog.collect_garbage, before_s, cluster.storage.delete)


def merge_dataset(cluster: DataCluster, live: LiveDataset, fan_in: int | None = None) -> int:
    """Merge until nothing more is worth merging; returns how many files were merged away."""
    dataset = live.dataset
    keyed = dataset.kind is DatasetKind.KEYED
    span_s = math.inf if dataset.retain_s is None else dataset.retain_s * SPAN_SHARE
    owner = dataset_owner(dataset.name)
    merged = 0
    enough = fan_in or (KEYED_FAN_IN if keyed else FAN_IN)
    while old := files_to_merge(cluster.catalog.files(owner), keyed=keyed, span_s=span_s, fan_in=enough):
        if is_small(old):
            new = merge_records_here(cluster.storage, dataset, old)
        else:
            new = merge_records(cluster.spark, cluster.storage, dataset, old)
        if not cluster.catalog.replace_files(owner, old, new, cluster.now_s()):
            break
        merged += len(old) - len(new)
    return merged


def merge_channel(cluster: DataCluster, live: LiveChannel, fan_in: int = FAN_IN) -> int:
    channel = live.prepared.channel
    owner = results_owner(channel.name, live.epoch)
    merged = 0
    while old := files_to_merge(cluster.catalog.files(owner), span_s=channel.retain_s * SPAN_SHARE, fan_in=fan_in):
        folder = f"results/{channel.name}-{live.epoch}"
        if is_small(old):
            new = merge_results_here(cluster.storage, folder, old)
        else:
            new = merge_results(cluster.spark, cluster.storage, folder, live.prepared.columns, old)
        if not cluster.catalog.replace_files(owner, old, new, cluster.now_s()):
            break
        merged += len(old) - len(new)
    return merged


def expire_records(cluster: DataCluster, live: LiveDataset) -> int:
    """Drop what has passed its retention, but nothing that a channel has not matched yet."""
    dataset = live.dataset
    if dataset.kind is not DatasetKind.STREAM or dataset.retain_s is None:
        return 0
    matched = [
        channel.positions[dataset.name]
        for channel in cluster.channels()
        if dataset.name in channel.positions and channel.subscribers.count
    ]
    upto = min(matched, default=live.writer.version)
    now_s = cluster.now_s()
    return cluster.catalog.expire_files(dataset_owner(dataset.name), now_s - dataset.retain_s, upto, now_s)


def expire_results(cluster: DataCluster, live: LiveChannel) -> int:
    channel = live.prepared.channel
    now_s = cluster.now_s()
    before_s = now_s - channel.retain_s
    cluster.catalog.expire_executions(channel.name, before_s)
    return cluster.catalog.expire_files(results_owner(channel.name, live.epoch), before_s, live.execution, now_s)


class OrphanSweep:
    """Deletes files that no catalog row names: leftovers of tasks and processes that died before their commit.

    One that is about to be committed looks the same. It is told apart by time, and not by the clock on the wall, which
    may be put forward at any moment: what has been nobody's for `orphans_after_s` of this process's life is.
    """

    def __init__(self, cluster: DataCluster, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock_s = clock_s
        self._since_s: dict[str, float] = {}

    def sweep(self) -> int:
        """To be called now and then; returns how many were deleted."""
        cluster, now_s = self._cluster, self._clock_s()
        listed = [
            path for folder in ("datasets", "results", "subscriptions") for path, _ in cluster.storage.list(folder)
        ]
        known = cluster.catalog.known_paths() | {live.subscribers.base_path for live in cluster.channels()}
        self._since_s = {path: self._since_s.get(path, now_s) for path in listed if path not in known}
        orphans = [
            path for path, since_s in self._since_s.items() if now_s - since_s >= cluster.settings.orphans_after_s
        ]
        for path in orphans:
            cluster.storage.delete(path)
        return len(orphans)
