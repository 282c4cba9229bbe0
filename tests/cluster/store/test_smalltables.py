"""Cached tables equal the files, whatever was cached before, merged or added since."""

from __future__ import annotations

import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.catalog import StoredFile
from tocsin.cluster.sql.result_columns import SEQUENCE, VERSION
from tocsin.cluster.store import smalltables
from tocsin.cluster.store.smalltables import SmallTables
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema

Row = tuple[str, int | None]
"""Key and event time."""

SCHEMA = Schema.of(name="STRING", at="BIGINT")
KEYED = Dataset(DatasetName("Places"), DatasetKind.KEYED, SCHEMA, ("name",), order_by="at")
STATIC = Dataset(DatasetName("Teams"), DatasetKind.STATIC, SCHEMA)


class DatasetFiles:
    """The files of a dataset, as commits write them."""

    def __init__(self, root: str) -> None:
        self.storage = Storage(root)
        self.files: list[StoredFile] = []
        self.version = 0
        self.written = 0

    def write(self, rows: list[tuple[Row, int, int]]) -> StoredFile:
        self.written += 1
        path = f"datasets/{self.written}.parquet"
        table = pa.table(
            {
                "name": pa.array([row[0] for row, _, _ in rows], pa.string()),
                "at": pa.array([row[1] for row, _, _ in rows], pa.int64()),
                VERSION: pa.array([version for _, version, _ in rows], pa.int64()),
                SEQUENCE: pa.array([sequence for _, _, sequence in rows], pa.int64()),
            }
        )
        with self.storage.create(path) as file:
            pq.write_table(table, file)
        versions = [version for _, version, _ in rows]
        return StoredFile(path, len(rows), table.nbytes, min(versions), max(versions), self.written, 0.0, 0)

    def add(self, rows: list[Row]) -> None:
        self.version += 1
        self.files.append(self.write([(row, self.version, place) for place, row in enumerate(rows)]))


def latest(batches: list[list[Row]], after: int = 0) -> set[Row]:
    newest: dict[str, tuple[tuple[bool, int], int, Row]] = {}
    for version, batch in enumerate(batches, 1):
        for name, at in batch:
            order = (at is not None, at or 0)
            if name not in newest or order >= newest[name][0]:
                newest[name] = (order, version, (name, at))
    return {row for _, version, row in newest.values() if version > after}


def rows_of(table: pa.Table | None) -> set[Row]:
    assert table is not None
    rows = [(row["name"], row["at"]) for row in table.to_pylist()]
    assert len(rows) == len(set(rows))
    return set(rows)


batches_of_rows = st.lists(
    st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 3)), min_size=1, max_size=4),
    min_size=1,
    max_size=6,
)


@given(batches_of_rows, st.data())
def test_keyed_table_has_the_latest_record_of_each_key(batches: list[list[Row]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        dataset, tables = DatasetFiles(root), SmallTables(Storage(root))
        for number, batch in enumerate(batches, 1):
            dataset.add(batch)
            if data.draw(st.booleans(), label="read"):
                assert rows_of(tables.table(KEYED, dataset.files)) == latest(batches[:number])
            if data.draw(st.booleans(), label="merged") and len(dataset.files) > 1:
                kept = [
                    (row, version, place)
                    for version, old in enumerate(batches[:number], 1)
                    for place, row in enumerate(old)
                ]
                dataset.files = [dataset.write(kept)]
        after = data.draw(st.integers(0, dataset.version), label="after")
        assert rows_of(tables.table(KEYED, dataset.files, after, dataset.version)) == latest(batches, after)


def test_only_small_datasets_are_cached(tmp_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, tables = DatasetFiles(str(tmp_path)), SmallTables(Storage(str(tmp_path)))
    assert tables.table(STATIC, []) is None
    dataset.add([("a", 1), ("b", 2)])
    first = tables.table(STATIC, dataset.files)
    assert first is tables.table(STATIC, dataset.files), "the same object while the files stay the same"
    dataset.add([("a", 3)])
    monkeypatch.setattr(smalltables, "SMALL_TABLE_ROWS", 2)
    assert tables.table(STATIC, dataset.files) is None
    monkeypatch.setattr(smalltables, "SMALL_TABLE_ROWS", 3)
    assert rows_of(tables.table(STATIC, dataset.files)) == {("a", 1), ("b", 2), ("a", 3)}


def test_replaced_records_do_not_make_a_cached_table_large(tmp_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smalltables, "SMALL_TABLE_ROWS", 5)
    dataset, tables = DatasetFiles(str(tmp_path)), SmallTables(Storage(str(tmp_path)))
    for at in range(9):
        dataset.add([("a", at), ("b", at)])
        assert rows_of(tables.table(KEYED, dataset.files)) == {("a", at), ("b", at)}
    assert SmallTables(Storage(str(tmp_path))).table(KEYED, dataset.files) is None, "18 rows are not read at once"
    dataset.add([(name, 9) for name in "cdef"])
    assert tables.table(KEYED, dataset.files) is None, "the table itself would have 6 rows"


def test_large_cached_table_does_not_grow(tmp_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smalltables, "SMALL_TABLE_ROWS", 3)
    monkeypatch.setattr(smalltables, "CACHED_BYTES", 1)
    dataset, tables = DatasetFiles(str(tmp_path)), SmallTables(Storage(str(tmp_path)))
    dataset.add([("a", 1), ("b", 1)])
    assert rows_of(tables.table(KEYED, dataset.files)) == {("a", 1), ("b", 1)}
    dataset.add([("a", 2), ("b", 2)])
    assert tables.table(KEYED, dataset.files) is None


def test_interval_that_ends_before_the_newest_file_is_not_cached(tmp_path: str) -> None:
    dataset, tables = DatasetFiles(str(tmp_path)), SmallTables(Storage(str(tmp_path)))
    dataset.add([("a", 1)])
    dataset.add([("a", 2)])
    assert tables.table(KEYED, dataset.files, 0, 1) is None, "the newer record would hide the one that belongs there"
    assert rows_of(tables.table(KEYED, dataset.files, 0, 2)) == {("a", 2)}
