"""A channel's backend subscriptions as the one DataFrame that its executions join with.

Most subscriptions are in a Parquet file under the root, the base, which Spark caches. Later changes are in a small
table beside it. When they exceed a tenth of the base, a new base is written. All this is derived from the catalog.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tocsin.cluster.spark.frames import read_parquet
from tocsin.cluster.sql.geo import ALL_LEVELS, level_of
from tocsin.cluster.sql.result_columns import SUBSCRIPTION
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Channel

REBASE_SHARE = 0.1
REBASE_LEAST = 5_000
"""A new base is written only after more changes than this."""


class SubscriptionFrames:
    """The subscriptions of one channel.

    Subscribing never waits for a running execution: the next `frame` applies the changes.
    """

    def __init__(self, channel: Channel, storage: Storage, radius_parameters: Iterable[str] = ()) -> None:
        """`radius_parameters` are the parameters that a `near` of the query takes as its radius."""
        self._schema = channel.parameters
        self._radius_places = {name: channel.parameters.names.index(name) for name in radius_parameters}
        self.radius_levels: dict[str, set[int]] = {name: set() for name in self._radius_places}
        """The grid levels that the subscriptions need. Levels of ended ones stay: a superset does no harm."""
        self._folder = f"subscriptions/{channel.name}"
        self._storage = storage
        self._base: DataFrame | None = None
        self.base_path: str | None = None
        """The path of the current base; no catalog row names it."""
        self._new_base_path: str | None = None
        self._base_rows = 0
        self._added: dict[int, str] = {}
        self._removed: set[int] = set()
        self._frame: DataFrame | None = None
        self._table: pa.Table | None = None
        """All subscriptions as text columns, while there is no base; None if they have changed since."""
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
        self._apply_changes()
        if self._frame is None:
            changes = len(self._added) + len(self._removed)
            if changes > max(REBASE_LEAST, REBASE_SHARE * self._base_rows):
                self._rebase(session)
            self._frame = self._combined(session)
        return self._frame

    def table(self) -> pa.Table | None:
        """All current subscriptions as text columns, which `typed` casts; None if most of them are in a base.

        The same subscriptions give the same object. Called by one execution at a time.
        """
        self._apply_changes()
        if self._base is not None or len(self._added) > REBASE_LEAST:
            return None
        if self._table is None:
            self._table = self._text_columns(self._added)
        return self._table

    def typed(self, texts: DataFrame) -> DataFrame:
        """Cast a frame of text columns to the parameters' types."""
        return texts.selectExpr(SUBSCRIPTION, *self._casts())

    def _apply_changes(self) -> None:
        with self._lock:
            changes, self._changes = self._changes, []
        for number, parameters in changes:
            if parameters is not None:
                self._added[number] = parameters
                for name, place in self._radius_places.items():
                    self.radius_levels[name].update(_levels(msgspec.json.decode(parameters)[place]))
            elif self._added.pop(number, None) is None:
                self._removed.add(number)
        if changes:
            self._frame = self._table = None

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
        if self._added or self._base is None:
            # The Arrow table becomes a relation inside the plan: no job, no file.
            parts.append(self.typed(session.createDataFrame(self._text_columns(self._added))))
        frame = parts[0]
        for part in parts[1:]:
            frame = frame.unionAll(part)
        return frame

    def _rebase(self, session: SparkSession) -> None:
        """Write all current subscriptions as a new base and let Spark cache it."""
        tables = [self._text_columns(self._added)]
        if self.base_path is not None:
            with self._storage.open(self.base_path) as file:
                old = pq.read_table(file)
            keep = pa.compute.invert(pa.compute.is_in(old[SUBSCRIPTION], pa.array(self._removed, pa.int64())))
            tables.insert(0, old.filter(keep))
        table = pa.concat_tables(tables)
        path = self._new_base_path = f"{self._folder}/{uuid.uuid4().hex}.parquet"
        with self._storage.create(path) as file:
            pq.write_table(table, file, row_group_size=max(1, -(-table.num_rows // 8)))
        schema = ", ".join([f"{SUBSCRIPTION} BIGINT", *(f"`{name}` STRING" for name in self._schema.names)])
        raw = read_parquet(session, self._storage, schema, [path])
        base = self.typed(raw).cache()
        self.release()  # only now that the new base can be used
        self._base = base
        self.base_path, self._base_rows = path, table.num_rows
        self._new_base_path = None
        self._added, self._removed = {}, set()

    def _text_columns(self, subscriptions: dict[int, str]) -> pa.Table:
        """A table of numbers and values as text. Spark casts them to the parameters' types in `_casts`."""
        rows = [msgspec.json.decode(parameters) for parameters in subscriptions.values()]
        columns = [pa.array(subscriptions.keys(), pa.int64())]
        columns += [
            pa.array([_as_text(row[index]) for row in rows], pa.string()) for index in range(len(self._schema.columns))
        ]
        return pa.table(columns, names=[SUBSCRIPTION, *self._schema.names])

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


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
