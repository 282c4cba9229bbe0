"""An execution that leaves out rows and subscriptions has the results of one that reads all of them.

Two data clusters get the same records and subscriptions. One leaves out whatever it may, also of tables with a few
rows; the other reads everything. Between executions people move, records arrive late,
subscribers come and go, files are merged, and the first data cluster restarts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.emergency import declare
from tests.conftest import ClusterAt, publish, results_of
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.narrowing import Narrower
from tocsin.cluster.settings import NarrowingLimits
from tocsin.cluster.spark import execution
from tocsin.cluster.upkeep import merge_dataset
from tocsin.model.cursor import offset_of
from tocsin.model.ids import BrokerId
from tocsin.model.subscription import subscription_id

pytestmark = pytest.mark.spark

DATASETS = """
CREATE STREAM DATASET Reports (id INT, kind STRING, district INT, lat DOUBLE, lon DOUBLE);
CREATE KEYED DATASET People (person INT, kind STRING, district INT, size BIGINT, lat DOUBLE, lon DOUBLE, at INT)
  KEY (person) ORDER BY at;
"""
NEAR = "near(r.lat, r.lon, p.lat, p.lon, 1000)"
QUERIES = {
    "NearMe": f"SELECT r.id, p.person FROM NEW Reports r JOIN People p ON {NEAR} WHERE p.person = :n",
    "WithinRadius": (
        "SELECT r.id, p.lat FROM NEW Reports r JOIN People p ON near(r.lat, r.lon, p.lat, p.lon, :radius_m) "
        "WHERE p.person = :n"
    ),
    "Comma": f"SELECT r.id FROM NEW Reports r, People p WHERE {NEAR} AND :n = p.person AND r.kind = :kind",
    "SameKind": "SELECT r.id, p.size FROM NEW Reports r JOIN People p ON p.kind = r.kind WHERE p.person = :n",
    "SamePlace": (
        f"SELECT r.id, p.person FROM NEW Reports r JOIN People p ON p.district = r.district AND p.kind = r.kind "
        f"AND {NEAR} WHERE r.kind = :kind AND r.district = :n"
    ),
    "LeftNear": f"SELECT r.id, p.person FROM NEW Reports r LEFT JOIN People p ON {NEAR} WHERE r.kind = :kind",
    "LeftThenMine": "SELECT r.id FROM NEW Reports r LEFT JOIN People p ON p.kind = r.kind WHERE p.person = :n",
    "LeftNearMine": f"SELECT r.id, p.person FROM NEW Reports r LEFT JOIN People p ON {NEAR} AND p.person = :n",
    "LeftPeople": (
        "SELECT p.person, r.id FROM People p LEFT JOIN NEW Reports r ON p.kind = r.kind WHERE p.district = :n"
    ),
    "RightPeople": (
        "SELECT p.person, r.id FROM NEW Reports r RIGHT JOIN People p ON p.kind = r.kind WHERE p.district = :n"
    ),
    "FullPeople": (
        "SELECT p.person, r.id FROM NEW Reports r FULL JOIN People p ON p.kind = r.kind AND p.district = r.district "
        "WHERE coalesce(p.district, r.district) = :n"
    ),
    "FullMine": "SELECT r.id FROM NEW Reports r FULL JOIN People p ON p.kind = r.kind WHERE p.district = r.district "
    "AND r.kind = :kind",
    "Semi": "SELECT r.id FROM NEW Reports r LEFT SEMI JOIN People p ON p.kind = r.kind WHERE r.district = :n",
    "Anti": "SELECT r.id FROM NEW Reports r LEFT ANTI JOIN People p ON p.kind = r.kind WHERE r.district = :n",
    "Existing": (
        "SELECT r.id FROM NEW Reports r WHERE r.kind = :kind AND EXISTS "
        "(SELECT 1 FROM People p WHERE p.district = r.district)"
    ),
    "NotExisting": (
        "SELECT r.id FROM NEW Reports r WHERE r.kind = :kind AND NOT EXISTS "
        "(SELECT 1 FROM People p WHERE p.district = r.district)"
    ),
    "NotIn": "SELECT r.id FROM NEW Reports r WHERE r.district = :n AND r.kind NOT IN (SELECT p.kind FROM People p)",
    "Counted": f"SELECT count(*) AS c FROM NEW Reports r JOIN People p ON {NEAR} WHERE p.person = :n",
    "CountedOfKind": "SELECT count(*) AS c, max(r.id) AS last FROM NEW Reports r WHERE r.kind = :kind",
    "Grouped": (
        f"SELECT p.district, count(*) AS c FROM NEW Reports r JOIN People p ON {NEAR} WHERE r.kind = :kind "
        "GROUP BY p.district HAVING count(*) >= :n"
    ),
    "CountedInside": (
        f"SELECT r.id, c.people FROM NEW Reports r JOIN (SELECT r.id, count(p.person) AS people FROM NEW Reports r "
        f"LEFT JOIN People p ON {NEAR} GROUP BY r.id) c ON c.id = r.id WHERE r.district = :n"
    ),
    "Twice": (
        "SELECT r.id, q.person FROM NEW Reports r JOIN People p ON p.kind = r.kind JOIN People q "
        "ON q.district = p.district WHERE p.person = :n"
    ),
    "Either": "SELECT r.id FROM NEW Reports r JOIN People p ON p.kind = r.kind OR p.size > 2 WHERE p.person = :n",
    "NullSafe": "SELECT r.id FROM NEW Reports r JOIN People p ON p.kind <=> r.kind WHERE p.person <=> :n",
    "OtherType": "SELECT r.id FROM NEW Reports r JOIN People p ON p.size = r.district WHERE p.size = :n",
    "Using": "SELECT r.id, p.person FROM NEW Reports r JOIN People p USING (kind) WHERE r.district = :n",
    "Unqualified": "SELECT id FROM NEW Reports WHERE kind = :kind AND district <= :n",
    "United": (
        f"SELECT r.id FROM NEW Reports r JOIN People p ON {NEAR} WHERE p.person = :n "
        "UNION ALL SELECT id FROM NEW Reports WHERE kind = :kind"
    ),
    "Topmost": (
        f"SELECT r.id, p.person FROM NEW Reports r JOIN People p ON {NEAR} WHERE r.kind = :kind "
        "ORDER BY r.id, p.person LIMIT 2"
    ),
}
NARROWED = {"NearMe", "WithinRadius", "Comma", "SameKind", "LeftNear", "LeftThenMine", "Grouped", "Unqualified"}
"""Some queries for which rows are left out: else this test would compare nothing."""
PARAMETERS = {"kind": "STRING", "n": "INT", "radius_m": "DOUBLE"}
BROKER = BrokerId("b")

kinds = st.none() | st.sampled_from(["fire", "flood", "storm", ""])
small = st.none() | st.integers(0, 3)
lat = st.none() | st.sampled_from([60.0, 60.004, 60.0089, 60.02, 95.0])
lon = st.none() | st.sampled_from([24.0, 24.009, 24.05, 180.0, -180.0])
reports = st.lists(st.tuples(kinds, small, lat, lon), min_size=3, max_size=12)
people = st.lists(st.tuples(st.integers(0, 5), kinds, small, small, lat, lon, small), max_size=8)
requests = st.lists(
    st.tuples(st.sampled_from(["fire", "flood", "storm", ""]), st.integers(0, 4), st.sampled_from([5.0, 600.0, 2e4])),
    min_size=1,
    max_size=6,
)
rounds = st.lists(st.tuples(reports, people, requests, requests, st.booleans()), min_size=2, max_size=2)


@pytest.fixture
def pair(
    cluster_at: ClusterAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[[], DataCluster], DataCluster]:
    """A function that opens the data cluster that leaves out rows, and the one that reads everything."""
    limits = NarrowingLimits(least_rows=0, least_subscriptions=0, in_background=False)

    def narrowing() -> DataCluster:
        return cluster_at(tmp_path / "narrowing", narrowing=limits, unheld_s=0.0)

    whole = cluster_at(tmp_path / "whole", unheld_s=0.0)
    for cluster in (narrowing(), whole):
        declare(cluster, DATASETS)
        for name, query in QUERIES.items():
            used = ", ".join(f"{name} {kind}" for name, kind in PARAMETERS.items() if f":{name}" in query)
            declare(cluster, f"CREATE REPETITIVE CHANNEL {name} ({used}) EVERY 5 SECONDS AS {query};")
    return narrowing, whole


def test_narrowed_executions_have_the_results_of_whole_ones(
    pair: tuple[Callable[[], DataCluster], DataCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    reopen, whole = pair
    narrowing = reopen()
    left_out: Counter[str] = Counter()
    narrowed = Narrower.narrowed

    def watched(self: Narrower, live: Any, inputs: Any, may_split: bool = False) -> Any:
        if live.prepared.session not in own_sessions(narrowing):
            return None
        found = narrowed(self, live, inputs, may_split)
        if found is not None:
            left_out[live.name] += live.subscribers.count - found.subscriptions.num_rows
            left_out[live.name] += inputs.rows - sum(table.num_rows for table in found.tables.values())
        return found

    whole_inputs = execution._whole_inputs

    def none_for_narrowing(prepared: Any, *arguments: Any) -> Any:
        return None if prepared.session in own_sessions(narrowing) else whole_inputs(prepared, *arguments)

    monkeypatch.setattr(Narrower, "narrowed", watched)
    monkeypatch.setattr(execution, "_whole_inputs", none_for_narrowing)
    published = 0

    @settings(max_examples=2, database=None, suppress_health_check=list(HealthCheck))
    @given(rounds)
    def check(rounds: list[Any]) -> None:
        nonlocal narrowing, published
        for reports, people, subscribing, leaving, restarts in rounds:
            if restarts:
                narrowing = reopen()
            for cluster in (narrowing, whole):
                publish(cluster, "Reports", _records("id kind district lat lon", enumerate(reports, published)))
                if people:
                    publish(cluster, "People", _records("person kind district size lat lon at", people))
                merge_dataset(cluster, cluster.dataset("People"), fan_in=3)
            published += len(reports)
            for name in QUERIES:
                outcomes = [_executed(cluster, name, subscribing, leaving) for cluster in (narrowing, whole)]
                assert outcomes[0] == outcomes[1], name

    check()
    assert {name for name in NARROWED if left_out[name] > 0} == NARROWED


def own_sessions(cluster: DataCluster) -> list[Any]:
    return [live.prepared.session for live in cluster.channels.all()]


def _records(names: str, rows: Any) -> list[dict[str, Any]]:
    flat = [(row[0], *row[1]) if isinstance(row[1], tuple) else row for row in rows]
    return [dict(zip(names.split(), row, strict=True)) for row in flat]


def _executed(cluster: DataCluster, name: str, subscribing: list[Any], leaving: list[Any]) -> dict[Any, Any]:
    """Unsubscribe some and subscribe others, execute the channel, and return the results of this execution."""
    live = cluster.channel(name)
    coming, going = (
        [
            {own: value for own, value in zip(PARAMETERS, request, strict=True) if own in live.prepared.query.markers}
            for request in group
        ]
        for group in (subscribing, leaving)
    )
    cluster.unsubscribe(name, [subscription_id(live.name, tuple(values.values())) for values in going], BROKER)
    cluster.subscribe(name, coming, BROKER)
    done = cluster.execute(name)
    after = offset_of(cluster.channel(name).execution if done else 1 << 30)
    results = results_of(cluster, name, after)
    return {key: Counter(tuple(row.items()) for row in rows) for key, rows in results.items()}
