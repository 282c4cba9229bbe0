"""One execution for all subscriptions gives each subscription the results of its own query, for many kinds of query.

The expected results come from DuckDB, which runs the same query for one subscription at a time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.emergency import declare
from tests.conftest import ClusterAt, publish, results_of
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.store import smalltables
from tocsin.model.cursor import offset_of
from tocsin.model.ids import BrokerId

pytestmark = pytest.mark.spark

DATASETS = """
CREATE STREAM DATASET Reports (id INT, kind STRING, severity INT, district INT);
CREATE KEYED DATASET Teams (team INT, kind STRING, district INT, size INT) KEY (team);
"""
QUERIES = {
    "Equal": "SELECT r.id, r.severity FROM NEW Reports r WHERE r.kind = :kind AND r.district = :n",
    "Unequal": "SELECT r.id FROM NEW Reports r WHERE r.severity > :n AND r.kind <> :kind",
    "Joined": (
        "SELECT r.id, t.team, t.size FROM NEW Reports r JOIN Teams t ON t.district = r.district AND t.size >= :n "
        "WHERE r.kind = :kind"
    ),
    "LeftJoined": (
        "SELECT r.id, t.team FROM NEW Reports r LEFT JOIN Teams t ON t.kind = r.kind AND t.district = r.district "
        "WHERE r.kind = :kind AND r.severity >= :n"
    ),
    "Grouped": (
        "SELECT r.district, count(*) AS reports, max(r.severity) AS worst FROM NEW Reports r "
        "WHERE r.kind = :kind GROUP BY r.district HAVING count(*) > :n"
    ),
    "Counted": "SELECT count(*) AS reports, sum(r.severity) AS s FROM NEW Reports r WHERE r.kind = :kind AND r.id > :n",
    "Topmost": (
        "SELECT r.id, r.severity FROM NEW Reports r WHERE r.kind = :kind AND r.severity >= :n "
        "ORDER BY r.severity DESC, r.id LIMIT 2"
    ),
    "Windowed": (
        "SELECT id, place FROM (SELECT r.id, "
        "row_number() OVER (PARTITION BY r.district ORDER BY r.severity, r.id) AS place "
        "FROM NEW Reports r WHERE r.kind = :kind) ranked WHERE place <= :n"
    ),
    "United": (
        "SELECT r.id, 'report' AS what FROM NEW Reports r WHERE r.kind = :kind "
        "UNION ALL SELECT t.team, 'team' FROM Teams t WHERE t.kind = :kind AND t.district = :n"
    ),
    "Named": (
        "WITH mine AS (SELECT * FROM NEW Reports WHERE kind = :kind) "
        "SELECT m.id, (SELECT max(t.size) FROM Teams t) AS largest FROM mine m WHERE m.district <= :n"
    ),
    "Distinct": "SELECT DISTINCT r.district FROM NEW Reports r WHERE r.kind = :kind AND r.severity <= :n",
}
BROKER = BrokerId("b")

kinds = st.sampled_from(["fire", "flood", "storm", "it's", ""])
small = st.integers(0, 4)
# A query takes as long for a few rows as for many: so few examples, with many rows each.
reports = st.lists(st.tuples(kinds, small, small), min_size=4, max_size=40)
teams = st.lists(st.tuples(small, kinds, small, small), max_size=6)
requests = st.lists(st.tuples(kinds, small), min_size=2, max_size=12)


@pytest.fixture(params=["folder", "bucket"])
def cluster(cluster_at: ClusterAt, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DataCluster:
    if request.param == "bucket":
        monkeypatch.setattr(smalltables, "SMALL_TABLE_ROWS", 0)  # Spark reads every dataset, through Arrow
        cluster = cluster_at(store=request.getfixturevalue("object_store"))
    else:
        cluster = cluster_at()
    declare(cluster, DATASETS)
    for name, query in QUERIES.items():
        declare(cluster, f"CREATE REPETITIVE CHANNEL {name} (kind STRING, n INT) EVERY 5 SECONDS AS {query};")
    return cluster


def test_execution_equals_one_query_for_each_subscription(cluster: DataCluster) -> None:
    state: dict[int, tuple[int, str, int, int]] = {}
    published = 0

    # Spark starts Python for each read of a bucket, so one example with many rows.
    @settings(
        max_examples=4 if cluster.storage.has_folders else 1, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(reports, teams, requests)
    def check(reports: list[Any], teams: list[Any], requests: list[tuple[str, int]]) -> None:
        nonlocal published
        batch = [(published + index, *fields) for index, fields in enumerate(reports)]
        published += len(batch)
        publish(
            cluster, "Reports", [dict(zip(("id", "kind", "severity", "district"), row, strict=True)) for row in batch]
        )
        if teams:
            publish(
                cluster, "Teams", [dict(zip(("team", "kind", "district", "size"), row, strict=True)) for row in teams]
            )
        state.update((row[0], row) for row in teams)
        naive = _naive(batch, list(state.values()))
        for name, query in QUERIES.items():
            cluster.subscribe(name, [{"kind": kind, "n": n} for kind, n in requests], BROKER)
            execution = cluster.execute(name)
            after = offset_of(cluster.channel(name).execution if execution else 1 << 30)
            for (kind, n), rows in results_of(cluster, name, after).items():
                expected = naive(query, kind, n)
                assert Counter(tuple(row.values()) for row in rows) == expected, (name, kind, n)

    check()


def _records(names: tuple[str, ...], rows: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]


def _naive(reports: list[Any], teams: list[Any]) -> Any:
    engine = duckdb.connect()
    engine.execute("CREATE TABLE Reports (id INT, kind VARCHAR, severity INT, district INT)")
    engine.execute("CREATE TABLE Teams (team INT, kind VARCHAR, district INT, size INT)")
    for table, rows in (("Reports", reports), ("Teams", teams)):
        if rows:
            engine.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", rows)

    def run(query: str, kind: object, n: object) -> Counter[tuple[Any, ...]]:
        own = query.replace("NEW Reports", "Reports").replace(":kind", "$kind").replace(":n", "$n")
        values = {name: value for name, value in (("kind", kind), ("n", n)) if f"${name}" in own}
        return Counter(engine.execute(own, values).fetchall())

    return run
