"""Definitions of channels: queries that Spark refuses, warnings, and a new epoch after a drop."""

from __future__ import annotations

import pytest

from tests.cluster.emergency import NORTH, declare, ids, report
from tests.conftest import publish, results_of
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.sql.declarations import CreateChannel, parse_application
from tocsin.wire.errors import Code, TocsinError

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("query", "code", "reason"),
    [
        ("SELECT r.* FROM NEW Nowhere r WHERE r.kind = :k", Code.UNKNOWN_DATASET, "there are: Places, Reports"),
        ("SELECT r.nothing FROM NEW Reports r WHERE r.kind = :k", Code.BAD_SQL, "nothing"),
        ("SELECT r.id, r.id FROM NEW Reports r WHERE r.kind = :k", Code.BAD_SQL, "two result columns"),
        ("SELECT r.id, NULL AS x FROM NEW Reports r WHERE r.kind = :k", Code.BAD_SQL, "CAST it"),
        ("SELECT INTERVAL '1' YEAR AS x FROM NEW Reports r WHERE r.kind = :k", Code.BAD_SQL, "column x is of type INT"),
        ("SELECT make_interval(r.severity) AS x FROM NEW Reports r WHERE r.kind = :k", Code.BAD_SQL, "column x is of"),
        (
            "SELECT r.id FROM NEW Reports r WHERE EXISTS (SELECT 1 FROM Places p WHERE p.user_id = :k AND p.at = r.at)",
            Code.BAD_SQL,
            "for all subscriptions at once",
        ),
        ("SELECT r.id FROM (SELECT *, rand() AS x FROM NEW Reports) r WHERE r.kind = :k", Code.BAD_SQL, "rand"),
    ],
)
def test_query_that_cannot_run_for_all_subscriptions_is_refused_with_reason(
    cluster: DataCluster, query: str, code: Code, reason: str
) -> None:
    application = parse_application(f"CREATE REPETITIVE CHANNEL Odd (k STRING) EVERY 5 SECONDS AS {query};")
    if application.problems:
        assert reason in str(application.problems[0])
        return
    (statement,) = application.statements
    assert isinstance(statement, CreateChannel)
    with pytest.raises(TocsinError, match=reason) as refused:
        cluster.channels.create(statement.channel)
    assert refused.value.code is code
    assert len(cluster.channels.all()) == 2


def test_inequality_join_is_accepted_with_a_warning(cluster: DataCluster) -> None:
    declare(
        cluster,
        "CREATE REPETITIVE CHANNEL Above (s INT) EVERY 5 SECONDS AS SELECT id FROM NEW Reports WHERE severity > :s;",
    )
    assert "every pair" in cluster.channel("Above").prepared.warnings[0]
    cluster.subscribe("Above", [{"s": 3}, {"s": 0}], NORTH)
    publish(cluster, "Reports", [report("low", severity=1), report("high", severity=5)])
    cluster.execute("Above")
    results = results_of(cluster, "Above")
    assert (sorted(ids(results[(3,)])), sorted(ids(results[(0,)]))) == (["high"], ["high", "low"])


def test_unknown_column_is_not_taken_for_a_parameter(cluster: DataCluster) -> None:
    text = "CREATE CONTINUOUS CHANNEL Wrong (kindx STRING) AS SELECT r.id FROM NEW Reports r WHERE kindx = :kindx;"
    with pytest.raises(TocsinError, match="kindx"):
        declare(cluster, text)


def test_dataset_in_use_stays_and_recreated_channel_has_a_new_epoch(cluster: DataCluster) -> None:
    with pytest.raises(TocsinError, match="OfKind") as refused:
        cluster.datasets.drop("Reports")
    assert refused.value.code is Code.IN_USE
    (before,) = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    channel = cluster.channel("OfKind").prepared.channel
    cluster.channels.drop("OfKind")
    cluster.channels.create(channel)
    (after,) = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    assert after.id == before.id and after.cursor.epoch > before.cursor.epoch
    assert len(cluster.subscriptions.book) == 1
