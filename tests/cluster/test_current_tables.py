"""Rows of KEYED datasets in memory: read once, kept up to date from memory or files, and bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.emergency import declare
from tests.conftest import ClusterAt, publish
from tocsin.cluster.current_tables import MOST_ATTEMPTS, CurrentTables, at_once
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.store import current_rows
from tocsin.cluster.store.readers import Readers
from tocsin.cluster.upkeep import merge_dataset

pytestmark = pytest.mark.spark

PLACES = """CREATE KEYED DATASET Places (name STRING, lat DOUBLE, at TIMESTAMP) KEY (name) ORDER BY at;
CREATE KEYED DATASET Ratios (ratio DOUBLE, n INT) KEY (ratio);"""


@pytest.fixture
def cluster(cluster_at: ClusterAt) -> DataCluster:
    cluster = cluster_at()
    declare(cluster, PLACES)
    return cluster


def tables_of(
    cluster: DataCluster, most_bytes: int = 1 << 30, start: Callable[[Callable[[], None]], None] = at_once
) -> CurrentTables:
    return CurrentTables(cluster.catalog, cluster.storage, Readers(), most_bytes, start)


def place(name: str, lat: float, second: int) -> dict[str, Any]:
    return {"name": name, "lat": lat, "at": f"2026-11-17T10:00:{second:02d}Z"}


def shown(tables: CurrentTables, cluster: DataCluster) -> dict[str, float] | None:
    with tables.rows(cluster.dataset("Places")) as rows:
        return None if rows is None else {row["name"]: row["lat"] for row in rows.all_rows().to_pylist()}


@pytest.mark.parametrize("from_files", [False, True], ids=["from memory", "from files"])
def test_rows_follow_the_dataset(cluster: DataCluster, monkeypatch: pytest.MonkeyPatch, from_files: bool) -> None:
    tables = tables_of(cluster)
    assert shown(tables, cluster) == {}
    if from_files:
        monkeypatch.setattr(cluster.dataset("Places").writer, "recent", lambda *_: None)
    publish(cluster, "Places", [place("a", 1, 1), place("b", 2, 1)])
    assert shown(tables, cluster) == {"a": 1, "b": 2}
    publish(cluster, "Places", [place("a", 3, 2), place("b", 4, 0)])
    publish(cluster, "Places", [place("c", 5, 0), place("a", 6, 2)])
    merge_dataset(cluster, cluster.dataset("Places"), fan_in=3)
    assert shown(tables, cluster) == {"a": 6, "b": 2, "c": 5}, "b's second record is late"
    assert shown(tables_of(cluster), cluster) == {"a": 6, "b": 2, "c": 5}, "read from the files alone"


def test_rows_without_replaced_ones_are_made_in_the_background(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_rows, "COMPACT_LEAST", 2)
    later: list[Callable[[], None]] = []
    tables = tables_of(cluster, start=lambda work: work() if not later and not started else later.append(work))
    started: list[bool] = []
    assert shown(tables, cluster) == {}
    started.append(True)
    for second in range(5):
        publish(cluster, "Places", [place("a", second, second)])
        assert shown(tables, cluster) == {"a": second}
    assert len(later) == 1, "one copy at a time"
    publish(cluster, "Places", [place("b", 9, 1)])
    later[0]()
    assert shown(tables, cluster) == {"a": 4, "b": 9}, "the copy gets what was stored while it was made"


def test_rows_beyond_the_bound_are_not_kept(cluster: DataCluster) -> None:
    publish(cluster, "Places", [place(str(number), 1, 1) for number in range(100)])
    assert shown(tables_of(cluster, most_bytes=100), cluster) is None
    tables = tables_of(cluster, most_bytes=40_000)
    assert shown(tables, cluster) is not None
    publish(cluster, "Places", [place(str(number), 1, 1) for number in range(5_000)])
    assert shown(tables, cluster) is None, "it has grown beyond the bound"
    assert shown(tables, cluster) is None


def test_dataset_whose_keys_do_not_compare_like_bits_is_not_kept(cluster: DataCluster) -> None:
    with tables_of(cluster).rows(cluster.dataset("Ratios")) as rows:
        assert rows is None


def test_dataset_that_cannot_be_read_is_attempted_a_few_times(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(cluster, "Places", [place("a", 1, 1)])
    attempts: list[str] = []

    def broken(path: str) -> Any:
        attempts.append(path)
        raise OSError("the disk is broken")

    monkeypatch.setattr(cluster.storage, "open", broken)
    tables = tables_of(cluster)
    assert [shown(tables, cluster) for _ in range(MOST_ATTEMPTS + 2)] == [None] * (MOST_ATTEMPTS + 2)
    assert len(attempts) == MOST_ATTEMPTS


def test_dataset_that_is_declared_again_has_rows_of_its_own(cluster: DataCluster) -> None:
    tables = tables_of(cluster)
    publish(cluster, "Places", [place("a", 1, 1)])
    assert shown(tables, cluster) == {"a": 1}
    cluster.datasets.drop("Places")
    declare(cluster, PLACES.partition(";")[0] + ";")
    publish(cluster, "Places", [place("b", 2, 1)])
    assert shown(tables, cluster) == {"b": 2}
