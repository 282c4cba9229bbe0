"""What one execution of a channel reads: out of memory what is held there, out of files the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from tocsin.cluster.catalog import Catalog, StoredFile, dataset_owner
from tocsin.cluster.live import LiveChannel, LiveDataset
from tocsin.cluster.spark.frames import Frame, dataset_frame
from tocsin.cluster.spark.session import Session
from tocsin.cluster.sql.channel_query import ChannelQuery
from tocsin.cluster.store.smalltables import SmallTables
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import DatasetKind
from tocsin.model.ids import DatasetName

Intervals = Mapping[DatasetName, tuple[int, int]]
"""Versions (after, upto] of each dataset that a channel reads as NEW."""


@dataclass(frozen=True, slots=True)
class _Files:
    """The part of a dataset that Spark reads itself."""

    live: LiveDataset
    files: list[StoredFile]
    after: int | None
    upto: int | None


class Reading:
    """The datasets of one execution, by the name the query gives them and whether as NEW."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._parts: dict[tuple[str, bool], pa.Table | _Files] = {}

    def add(self, name: str, is_new: bool, part: pa.Table | _Files) -> None:
        self._parts[name, is_new] = part

    @property
    def rows(self) -> int:
        """At most this many, of all datasets."""
        return sum(
            sum(file.rows for file in part.files) if isinstance(part, _Files) else part.num_rows
            for part in self._parts.values()
        )

    def content(self, session: Session, name: str, is_new: bool) -> Frame | pa.Table:
        part = self._parts[name, is_new]
        if not isinstance(part, _Files):
            return part
        return dataset_frame(session, self._storage, part.live.dataset, part.files, after=part.after, upto=part.upto)


def upto(live: LiveChannel, dataset: LiveDataset, after: int) -> int:
    """How far an execution that starts now goes: to what is committed, or to what it may match ahead of that."""
    writer = dataset.writer
    ahead = writer.visible
    may = live.matches_ahead and live.subscribers.count > 0 and dataset.dataset.kind is DatasetKind.STREAM
    return ahead if may and writer.recent(after, ahead) is not None else writer.version


def read(
    query: ChannelQuery,
    intervals: Intervals,
    dataset: Callable[[str], LiveDataset],
    catalog: Catalog,
    storage: Storage,
    small: SmallTables,
) -> Reading:
    reading = Reading(storage)
    for name in query.datasets:
        reading.add(name, False, _stored(dataset(name), None, None, catalog, small))
    for name in query.new_datasets:
        live = dataset(name)
        between = intervals[live.dataset.name]
        recent = live.writer.recent(*between) if live.dataset.kind is DatasetKind.STREAM else None
        reading.add(name, True, recent if recent is not None else _stored(live, *between, catalog, small))
    return reading


def _stored(
    live: LiveDataset, after: int | None, upto: int | None, catalog: Catalog, small: SmallTables
) -> pa.Table | _Files:
    owner = dataset_owner(live.dataset.name)
    if after is not None and live.dataset.kind is DatasetKind.STREAM:
        return _Files(live, catalog.files(owner, after, upto), after, upto)
    # NEW of a KEYED dataset needs all files: a later record of the same key may hide an earlier one.
    files = catalog.files(owner)
    held = small.table(live.dataset, files, after, upto)
    return held if held is not None else _Files(live, files, after, upto)
