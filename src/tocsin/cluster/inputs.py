"""The records that one execution reads, from memory or from files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.cluster.catalog import StoredFile
from tocsin.cluster.feed.columntypes import arrow_schema
from tocsin.cluster.spark.frames import Frame, dataset_frame
from tocsin.cluster.spark.session import Session
from tocsin.cluster.sql.result_columns import SEQUENCE, VERSION
from tocsin.cluster.store.merging import read_files
from tocsin.cluster.store.sizes import widest_row
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind

UNKNOWN_ROW_BYTES = 64 << 10
"""The width of the rows of a file that an earlier release wrote: the largest record that the gateway accepts."""


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The part of a dataset that Spark reads itself: versions (after, upto] of these files."""

    dataset: Dataset
    files: list[StoredFile]
    after: int | None
    upto: int | None


class ExecutionInputs:
    """The datasets of one execution, by the name in the query and by whether it is read as NEW."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._parts: dict[tuple[str, bool], pa.Table | InputFiles] = {}
        self._held: dict[str, pa.Table] = {}
        """Rows of datasets that are read in full and too large for one task."""

        self._row_bytes: int | None = None

    def add(self, name: str, is_new: bool, part: pa.Table | InputFiles) -> None:
        self._parts[name, is_new] = part
        self._row_bytes = None

    def table(self, name: str, *, is_new: bool) -> pa.Table | None:
        """The records of a dataset if they are in memory, else None."""
        part = self._parts[name, is_new]
        return None if isinstance(part, InputFiles) else part

    def new_table(self, name: str, most_rows: int) -> pa.Table | None:
        """The NEW records of a STREAM dataset in memory, read from its files if these have at most so many rows."""
        part = self._parts[name, True]
        if not isinstance(part, InputFiles):
            return part
        if part.dataset.kind is not DatasetKind.STREAM or _rows(part) > most_rows:
            return None
        schema = arrow_schema(part.dataset.schema)
        rows = schema.empty_table()
        if part.files:
            stored = read_files(self._storage, part.files)
            if part.after is not None:
                stored = stored.filter(pc.greater(stored[VERSION], part.after))
            if part.upto is not None:
                stored = stored.filter(pc.less_equal(stored[VERSION], part.upto))
            ordered = stored.sort_by([(VERSION, "ascending"), (SEQUENCE, "ascending")])
            rows = ordered.select(schema.names).cast(schema).combine_chunks()
        self.add(name, True, rows)
        return rows

    def hold(self, name: str, rows: pa.Table) -> None:
        """Let the ordinary way read these rows of a dataset, which are all it has, from memory."""
        self._held[name] = rows

    @property
    def rows(self) -> int:
        """An upper bound of the rows of all datasets."""
        return sum(_rows(part) for part in self._parts.values())

    def new_records(self, session: Session, name: str) -> pa.Table:
        """The NEW records of a dataset, in memory."""
        part = self._parts[name, True]
        if not isinstance(part, InputFiles):
            return part
        # In the order of arrival, so that a row has the same place after a restart.
        interval = {"after": part.after, "upto": part.upto}
        return dataset_frame(session, self._storage, part.dataset, part.files, **interval, ordered=True).toArrow()

    def replaced(self, records: Mapping[str, pa.Table]) -> ExecutionInputs:
        """The same inputs with other NEW records."""
        inputs = ExecutionInputs(self._storage)
        inputs._parts = self._parts | {(name, True): rows for name, rows in records.items()}
        return inputs

    @property
    def row_bytes(self) -> int:
        """The bytes of a row of every dataset, each as wide as its widest."""
        if self._row_bytes is None:
            self._row_bytes = sum(_widest(part) for part in self._parts.values())
        return self._row_bytes

    @property
    def new_rows(self) -> int:
        """An upper bound of the NEW rows."""
        return sum(_rows(part) for (_, is_new), part in self._parts.items() if is_new)

    def content(self, session: Session, name: str, is_new: bool) -> Frame | pa.Table:
        part = self._parts[name, is_new]
        if not isinstance(part, InputFiles):
            return part
        if not is_new and name in self._held:
            return self._held[name]
        return dataset_frame(session, self._storage, part.dataset, part.files, after=part.after, upto=part.upto)


def _rows(part: pa.Table | InputFiles) -> int:
    return sum(file.rows for file in part.files) if isinstance(part, InputFiles) else part.num_rows


def _widest(part: pa.Table | InputFiles) -> int:
    if not isinstance(part, InputFiles):
        return widest_row(part)
    return max((UNKNOWN_ROW_BYTES if file.widest is None else file.widest for file in part.files), default=0)
