"""A channel's backend subscriptions: as the one DataFrame that its executions join with, and as rows to choose from.

All subscriptions are in memory, with an index over the parameters that the query compares with columns
(`SubscriptionRows`). A small execution takes all of them, or those that can have results. For the others, most
subscriptions are in a Parquet file under the root, the base, which Spark caches, and later changes are in a small table
beside it. When they exceed a tenth of the base, a new base is written. All this is derived from the catalog.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tocsin.cluster.catalog import NewFile
from tocsin.cluster.spark.frames import read_parquet
from tocsin.cluster.sql.geo import ALL_LEVELS, level_of
from tocsin.cluster.sql.result_columns import SUBSCRIPTION
from tocsin.cluster.store.storage import Storage
from tocsin.cluster.store.subscription_rows import EqualTo, SubscriptionRows
from tocsin.model.entities import Channel

REBASE_SHARE = 0.1
REBASE_LEAST = 5_000
"""A new base is written only after more changes than this."""


class SubscriptionFrames:
    """The subscriptions of one channel.

    Subscribing never waits for a running execution: the next execution applies the changes.
    """

    def __init__(self, channel: Channel, storage: Storage, radius_parameters: Iterable[str] = ()) -> None:
        """`radius_parameters` are the parameters that a `near` of the query takes as its radius."""
        self._schema = channel.parameters
        self._radius_places = {name: channel.parameters.names.index(name) for name in radius_parameters}
        self.radius_levels: dict[str, set[int]] = {name: set() for name in self._radius_places}
        """The grid levels that the subscriptions need. Levels of ended ones stay: a superset does no harm."""
        self._folder = f"subscriptions/{channel.name}"
        self._storage = storage
        self._rows = SubscriptionRows(channel.parameters)
        self._base: DataFrame | None = None
        self.base_path: str | None = None
        """The path of the current base; no catalog row names it."""
        self._new_base_path: str | None = None
        self._base_rows = 0
        self._base_newest = 0
        """The base has the subscriptions up to this number, except those that were removed before."""
        self._removed: set[int] = set()
        """Subscriptions of the base that were removed since."""
        self._frame: DataFrame | None = None
        self._table: pa.Table | None = None
        """All subscriptions as text columns; None if they have changed since, or if there are many."""
        self._lock = threading.Lock()
        self._changes: list[tuple[int, str | None]] = []
        self.count = 0
        self.dropped_paths: list[str] = []
        """Paths of former bases; the owner deletes them."""

    def add(self, subscriptions: Iterable[tuple[int, str]]) -> None:
        """Add (number, canonical parameters as a JSON array), each number once."""
        with self._lock:
            before = len(self._changes)
            self._changes.extend(subscriptions)
            self.count += len(self._changes) - before

    def remove(self, numbers: Iterable[int]) -> None:
        with self._lock:
            before = len(self._changes)
            self._changes.extend((number, None) for number in numbers)
            self.count -= len(self._changes) - before

    def frame(self, session: SparkSession) -> DataFrame:
        """All current subscriptions. Called by one execution at a time."""
        self.apply_changes()
        if self._frame is None:
            changes = len(self._rows) - (self._base_rows - len(self._removed)) + len(self._removed)
            if changes > max(REBASE_LEAST, REBASE_SHARE * self._base_rows):
                self._rebase(session)
            self._frame = self._combined(session)
        return self._frame

    def table(self) -> pa.Table | None:
        """All current subscriptions as text columns, which `typed` casts; None if there are many.

        The same subscriptions give the same object. Called by one execution at a time.
        """
        self.apply_changes()
        if len(self._rows) > REBASE_LEAST:
            return None
        if self._table is None:
            self._table = self._rows.after(0)
        return self._table

    def none(self) -> pa.Table:
        """The columns of `table`, without subscriptions."""
        return self._rows.none()

    def matching(self, conditions: Sequence[EqualTo], most: int) -> pa.Table | None:
        """The subscriptions that meet all conditions, and perhaps a few others, as `table` returns them.

        None if there are more than `most`. Called by one execution at a time.
        """
        self.apply_changes()
        return self._rows.matching(conditions, most)

    def typed(self, texts: DataFrame) -> DataFrame:
        """Cast a frame of text columns to the parameters' types."""
        return texts.selectExpr(SUBSCRIPTION, *self._casts())

    def apply_changes(self) -> None:
        """Take over the subscriptions that were added and removed since. Called by one execution at a time."""
        with self._lock:
            changes, self._changes = self._changes, []
        if not changes:
            return
        self._frame = self._table = None
        removed = {number for number, parameters in changes if parameters is None}
        # A number is never given twice, so a removal is always the last change of its number.
        self._rows.add((number, texts) for number, texts in changes if texts is not None and number not in removed)
        self._rows.remove(removed)
        if self._base is not None:
            self._removed.update(number for number in removed if number <= self._base_newest)
        if self._radius_places:
            self._add_levels(texts for _, texts in changes if texts is not None)

    def _add_levels(self, subscriptions: Iterable[str]) -> None:
        for values in map(self._rows.values_of, subscriptions):
            for name, place in self._radius_places.items():
                self.radius_levels[name].update(_levels(values[place]))

    @property
    def own_paths(self) -> set[str | None]:
        """The paths of the bases that are in use or being written."""
        # The new path is read first: a new base becomes the current one before its path is dropped.
        new_path = self._new_base_path
        return {new_path, self.base_path, *self.dropped_paths}

    def release(self) -> None:
        """Free the base in Spark's cache and list its path in `dropped_paths`."""
        if self._base is not None:
            self._base.unpersist()
        if self.base_path is not None:
            self.dropped_paths.append(self.base_path)

    def _combined(self, session: SparkSession) -> DataFrame:
        parts = []
        if self._base is not None:
            base = self._base
            if self._removed:
                removed = session.createDataFrame([(number,) for number in self._removed], f"{SUBSCRIPTION} BIGINT")
                base = base.join(removed.hint("broadcast"), SUBSCRIPTION, "left_anti")
            parts.append(base)
        added = self._rows.after(self._base_newest)
        if added.num_rows or self._base is None:
            # The Arrow table becomes a relation inside the plan: no job, no file.
            parts.append(self.typed(session.createDataFrame(added)))
        frame = parts[0]
        for part in parts[1:]:
            frame = frame.unionAll(part)
        return frame

    def _rebase(self, session: SparkSession) -> None:
        """Write all current subscriptions as a new base and let Spark cache it."""
        table = self._rows.after(0)
        path = self._new_base_path = f"{self._folder}/{uuid.uuid4().hex}.parquet"
        with self._storage.create(path) as file:
            pq.write_table(table, file, row_group_size=max(1, -(-table.num_rows // 8)))
            size_bytes = file.tell()
        schema = ", ".join([f"{SUBSCRIPTION} BIGINT", *(f"`{name}` STRING" for name in self._schema.names)])
        raw = read_parquet(session, self._storage, schema, [NewFile(path, table.num_rows, size_bytes, 0, 0)])
        base = self.typed(raw).cache()
        self.release()  # only now that the new base can be used
        self._base = base
        self.base_path, self._base_rows = path, table.num_rows
        self._base_newest = self._rows.newest
        self._new_base_path = None
        self._removed = set()

    def _casts(self) -> list[str]:
        return [
            f"from_json(`{column.name}`, '{column.type}') AS `{column.name}`"
            if column.type.startswith("ARRAY")
            else f"CAST(`{column.name}` AS {column.type}) AS `{column.name}`"
            for column in self._schema.columns
        ]


def _levels(radius: object) -> Iterable[int]:
    """The grid levels for one radius: one for a number, all for other values, which Spark may read as a number."""
    try:
        return (level_of(float(radius)),)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ALL_LEVELS
