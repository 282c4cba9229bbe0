"""Dropped files are deleted after the last job that may read them, and not before their delay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tocsin.cluster.catalog import Catalog, catalog_path
from tocsin.cluster.store.readers import Garbage, Readers
from tocsin.cluster.store.storage import Storage


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}")
    yield opened
    opened.close()


def test_dropped_file_stays_until_earlier_readers_have_ended(catalog: Catalog, tmp_path: Path) -> None:
    storage, readers, now_s = Storage(str(tmp_path / "root")), Readers(), 0.0
    garbage = Garbage(catalog, storage, readers, 600.0, lambda: now_s)
    with storage.create("datasets/a.parquet") as file:
        file.write(b"rows")
    with ExitStack() as earlier, ExitStack() as later:
        earlier.enter_context(readers.reading())
        catalog.files.discard_paths(["datasets/a.parquet"], 0.0)
        assert garbage.collect() == 0
        later.enter_context(readers.reading())
        now_s = 10_000.0
        assert garbage.collect() == 0, "the earlier reader may have the file open"
        earlier.close()
        assert garbage.collect() == 1, "the later reader did not find the file in the catalog"
    assert (storage.list("datasets"), catalog.files.garbage(), garbage.collect()) == ([], [], 0)


def test_dropped_file_without_readers_stays_for_its_delay(catalog: Catalog, tmp_path: Path) -> None:
    now_s = 0.0
    garbage = Garbage(catalog, Storage(str(tmp_path / "root")), Readers(), 600.0, lambda: now_s)
    catalog.files.discard_paths(["datasets/a.parquet"], 0.0)
    assert garbage.collect() == 0
    now_s = 599.0
    assert garbage.collect() == 0
    now_s = 600.0
    assert garbage.collect() == 1


def test_dropped_content_of_the_catalog_waits_for_readers_only(catalog: Catalog, tmp_path: Path) -> None:
    readers = Readers()
    garbage = Garbage(catalog, Storage(str(tmp_path / "root")), readers, 600.0, lambda: 0.0)
    with readers.reading():
        catalog.files.discard_paths([catalog_path("results/a.arrow")], 0.0)
        assert garbage.collect() == 0, "the reader may have listed the file"
    assert garbage.collect() == 1
