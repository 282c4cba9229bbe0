"""Channels that run together get the same results as channels that run by themselves, and fail one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy.exc import OperationalError

from tests.cluster import test_channel_property as queries
from tests.cluster.emergency import NORTH, REPORTS, declare, ids, report
from tests.conftest import ClusterAt, publish, results_of
from tocsin.cluster import executions, joint_executions
from tocsin.cluster.catalog import results_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.pulling import open_pull, pulled
from tocsin.cluster.store.recent_tables import RecentTables
from tocsin.cluster.upkeep import maintain, merge_channel
from tocsin.model.ids import ChannelName

pytestmark = pytest.mark.spark

NAMES = [ChannelName(f"C{number}") for number in range(3)]
ALIKE = "".join(
    f"CREATE CONTINUOUS CHANNEL {name} (kind STRING) AS SELECT r.id, {number} AS channel FROM NEW Reports r "
    f"WHERE r.kind = :kind AND r.severity > {number};"
    for number, name in enumerate(NAMES)
)
ZONES = """CREATE CONTINUOUS CHANNEL Zones (kind STRING) AS
  SELECT r.id, from_utc_timestamp(r.at, :kind) AS there FROM NEW Reports r WHERE r.kind = :kind;"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No execution is slow: a busy machine must not fail these tests."""
    monkeypatch.setattr(joint_executions, "JOINT_S", 600.0)
    monkeypatch.setattr(executions, "SLOW_S", 600.0)


@pytest.fixture
def alike(cluster: DataCluster) -> DataCluster:
    """Three channels whose plans are made, each with a subscription to fires."""
    declare(cluster, ALIKE)
    for name in NAMES:
        cluster.subscribe(name, [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("first")])
    for name in NAMES:
        cluster.execute(name)
    return cluster


def stored(cluster: DataCluster, channel: str) -> list[dict[str, Any]]:
    """The results as they are stored, with offsets and sizes, but without the names of subscriptions."""
    live = cluster.channel(channel)
    numbers = [number for number, _, _ in cluster.catalog.subscriptions.of_channel(live.name)]
    rows = [
        row
        for table in cluster.results.read(live.name, live.epoch, dict.fromkeys(numbers, 0))
        for row in table.to_pylist()
    ]
    return [{**row, "_tocsin_subscription": numbers.index(row["_tocsin_subscription"])} for row in rows]


def test_joint_executions_store_the_same_results_as_single_ones(cluster_at: ClusterAt) -> None:
    cluster = cluster_at()
    declare(cluster, queries.DATASETS)
    for name, query in queries.QUERIES.items():
        for copy in (name, f"{name}Joint"):
            declare(cluster, f"CREATE CONTINUOUS CHANNEL {copy} (kind STRING, n INT) AS {query};")
    joint = [ChannelName(f"{name}Joint") for name in queries.QUERIES]
    published, joined = 0, set[ChannelName]()

    @settings(max_examples=4, database=None, suppress_health_check=list(HealthCheck))
    @given(queries.reports, queries.teams, queries.requests)
    def check(reports: list[Any], teams: list[Any], requests: list[tuple[str, int]]) -> None:
        nonlocal published
        batch = [(published + index, *fields) for index, fields in enumerate(reports)]
        published += len(batch)
        publish(cluster, "Reports", queries._records(("id", "kind", "severity", "district"), batch))
        if teams:
            publish(cluster, "Teams", queries._records(("team", "kind", "district", "size"), teams))
        values = [{"kind": kind, "n": n} for kind, n in requests]
        for name in queries.QUERIES:
            cluster.subscribe(name, values, NORTH)
            cluster.subscribe(f"{name}Joint", values, NORTH)
            cluster.execute(name)
        outcome = cluster.execute_together(joint)
        assert outcome.failure is None
        joined.update(outcome.done)
        for name in joint:
            if name not in outcome.done:
                cluster.execute(name)
        for name in queries.QUERIES:
            assert stored(cluster, f"{name}Joint") == stored(cluster, name), name

    check()
    assert joined == set(joint) - {"NamedJoint"}, "a subquery inside an expression has no reused plan"


def test_joint_execution_is_one_job_and_one_announcement(alike: DataCluster) -> None:
    announced: list[int] = []
    alike.announcements.listen(lambda: announced.append(alike.announcements.sequence))
    context = alike.spark.sparkContext
    publish(alike, "Reports", [report("a"), report("b", severity=2), report("c", "flood")])
    sequence = alike.announcements.sequence
    context.setJobGroup("joint", "one joint execution")
    outcome = alike.execute_together(NAMES)
    assert len(context.statusTracker().getJobIdsForGroup("joint")) == 1
    assert [execution and execution.results for execution in outcome.done.values()] == [2, 2, 1]
    assert announced == [sequence + 3]
    news = alike.announcements.since(NORTH, sequence).announcements
    assert [(each.channel, each.subscriptions[0].results) for each in news] == [("C0", 2), ("C1", 2), ("C2", 1)]
    assert alike.execute_together(NAMES).done == dict.fromkeys(NAMES), "nothing is NEW any more"


def test_joint_results_survive_a_restart_and_merging(alike: DataCluster, cluster_at: ClusterAt) -> None:
    for number in range(3):
        publish(alike, "Reports", [report(f"r{number}")])
        assert len(alike.execute_together(NAMES).done) == 3
    expected = {name: results_of(alike, name) for name in NAMES}
    announced = alike.announcements.since(NORTH, 0).announcements
    again = cluster_at()
    assert {name: results_of(again, name) for name in NAMES} == expected
    assert again.announcements.since(NORTH, 0).announcements == announced
    assert merge_channel(again, again.channel("C0"), fan_in=2) == 3
    [file] = again.catalog.files.of(results_owner("C0", again.channel("C0").epoch))
    assert again.storage.list("results") == [file.path], "results of the catalog are merged into a file"
    again.results._recent = RecentTables(0)
    assert results_of(again, "C0") == expected[NAMES[0]]
    garbage = again.catalog.files.garbage()
    assert len(garbage) == 4 == len(again.catalog.files.contents(garbage))
    maintain(again)
    assert again.catalog.files.garbage() == [] and again.catalog.files.contents(garbage) == {}
    assert {name: results_of(again, name) for name in NAMES} == expected


def test_failing_record_concerns_only_its_own_channel(alike: DataCluster) -> None:
    declare(alike, ZONES)
    together = [*NAMES, ChannelName("Zones")]
    alike.subscribe("Zones", [{"kind": "UTC"}], NORTH)
    publish(alike, "Reports", [report("u", "UTC")])
    for name in together:
        alike.execute(name)
    alike.subscribe("Zones", [{"kind": "Mars/Base"}], NORTH)
    publish(alike, "Reports", [report("v", "UTC"), report("w", "Mars/Base"), report("x", "fire")])
    outcome = alike.execute_together(together)
    assert outcome.done == {} and outcome.failure is not None
    for name in together:
        alike.execute(name)
    assert ids(results_of(alike, "Zones")[("UTC",)]) == ["u", "v"]
    assert [ids(results_of(alike, name)[("fire",)]) for name in NAMES] == [["first", "x"]] * 3
    publish(alike, "Reports", [report("y")])
    outcome = alike.execute_together(together)
    assert list(outcome.done) == NAMES and outcome.failure is None, "the channel that failed runs by itself"


def test_commit_with_a_lost_answer_is_not_repeated(alike: DataCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = alike.catalog.executions.commit_together

    def broken(*arguments: Any) -> None:
        commit(*arguments)
        raise OperationalError("COMMIT", {}, Exception("the connection broke after the commit"))

    before = alike.announcements.sequence
    alike.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(alike, "Reports", [report("a")])
    monkeypatch.setattr(alike.catalog.executions, "commit_together", broken)
    outcome = alike.execute_together(NAMES)
    monkeypatch.undo()
    assert outcome.done == {} and isinstance(outcome.failure, OperationalError)
    assert alike.execute("OfKind") is not None
    news = alike.announcements.since(NORTH, before).announcements
    assert [each.channel for each in news] == [*NAMES, "OfKind"], "no execution is skipped"
    assert [alike.execute(name) for name in NAMES] == [None] * 3, "the catalog shows that they are committed"
    assert [ids(results_of(alike, name)[("fire",)]) for name in NAMES] == [["first", "a"]] * 3
    assert len(alike.announcements.since(NORTH, 0).announcements) == 7


def test_commit_that_fails_leaves_nothing_behind(alike: DataCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(alike, "Reports", [report("a")])
    alike.catalog.channels.advance(NAMES[1], {REPORTS: (1, 2)})  # as another process would
    outcome = alike.execute_together(NAMES)
    assert outcome.done == {} and "it ran twice" in str(outcome.failure)
    assert alike.catalog.writes.open() == {}
    assert [ids(results_of(alike, name)[("fire",)]) for name in NAMES] == [["first"]] * 3
    assert alike.execute("C0") is not None and alike.execute("C2") is not None


def test_channel_in_execution_is_left_out_of_its_group(alike: DataCluster) -> None:
    publish(alike, "Reports", [report("a")])
    with alike.channel("C1").exclusive():
        assert list(alike.execute_together(NAMES).done) == ["C0", "C2"]
    assert alike.execute("C1") is not None


def test_execution_with_many_rows_is_left_out(alike: DataCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    alike.subscribe("C1", [{"kind": f"k{number}"} for number in range(9)], NORTH)
    monkeypatch.setattr(joint_executions, "JOINT_PAIRS", 15)
    publish(alike, "Reports", [report("a"), report("b")])
    assert list(alike.execute_together(NAMES).done) == ["C0", "C2"]


def test_slow_group_is_cancelled_and_its_channels_run_alone(
    alike: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(alike, "Reports", [report("a")])
    monkeypatch.setattr(joint_executions, "JOINT_S", 0.0)
    outcome = alike.execute_together(NAMES)
    assert outcome.done == {} or outcome.failure is None  # the job may have ended before its cancellation
    for name in NAMES:
        if name not in outcome.done:
            assert alike.channel(name).is_suspect
            alike.execute(name)
        assert not alike.channel(name).is_suspect
    assert [ids(results_of(alike, name)[("fire",)]) for name in NAMES] == [["first", "a"]] * 3


def test_pull_from_memory_equals_pull_from_the_catalog(alike: DataCluster) -> None:
    (subscription,) = alike.subscribe("C0", [{"kind": "fire"}], NORTH)
    starts = [str(subscription.cursor)]
    for number in range(3):
        publish(alike, "Reports", [report(f"a{number}"), report(f"b{number}")])
        alike.execute_together(NAMES)
        starts.append(str(alike.channels.head(alike.channel("C0"))))
    alike.announcements.since(NORTH, 0)  # so that the pulls find the number of the subscription in memory

    def pulls() -> list[Any]:
        opened = [open_pull(alike, "C0", {subscription.id: start}) for start in starts]
        return [
            (pull.upto, dict(pull.gaps), [result for page in pulled(alike.results, pull) for result in page])
            for pull in opened
        ]

    assert open_pull(alike, "C0", {subscription.id: starts[0]}).tables is not None
    from_memory = pulls()
    assert [len(results) for _, _, results in from_memory] == [6, 4, 2, 0]
    alike.results.forget_latest(ChannelName("C0"))
    assert open_pull(alike, "C0", {subscription.id: starts[0]}).tables is None
    assert pulls() == from_memory
