"""The data cluster end to end on real Spark: what is NEW, who gets what, and what survives a restart."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import Clock, ClusterAt, publish, results_of
from tocsin.cluster import executions, subscriptions, upkeep
from tocsin.cluster.applying import apply
from tocsin.cluster.catalog import dataset_owner, results_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.gateway import RecordForm
from tocsin.cluster.pulling import arrow_stream, open_pull
from tocsin.cluster.spark import execution
from tocsin.cluster.spark.dataset_writer import DatasetWriter
from tocsin.cluster.spark.execution import SMALL_PAIRS, execute
from tocsin.cluster.sql.declarations import parse_application
from tocsin.cluster.sql.statements import CreateChannel, CreateDataset, CreateFeed
from tocsin.cluster.store import smalltables
from tocsin.cluster.upkeep import OrphanSweep, maintain, merge_channel, merge_dataset
from tocsin.model.ids import BrokerId, DatasetName
from tocsin.model.subscription import canonical_values
from tocsin.wire.errors import Code, TocsinError

pytestmark = pytest.mark.spark

REPORTS = DatasetName("Reports")
NORTH, SOUTH = BrokerId("north"), BrokerId("south")

APPLICATION = """
CREATE STREAM DATASET Reports (id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, at TIMESTAMP)
  KEY (id) RETAIN 7 DAYS;
CREATE KEYED DATASET Places (user_id STRING, lat DOUBLE, lon DOUBLE, at TIMESTAMP) KEY (user_id);
CREATE REPETITIVE CHANNEL OfKind (kind STRING) EVERY 10 SECONDS AS
  SELECT r.* FROM NEW Reports r WHERE r.kind = :kind;
CREATE CONTINUOUS CHANNEL NearMe (user STRING, radius_m DOUBLE) AS
  SELECT r.id, distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m
  FROM NEW Reports r JOIN Places u ON near(r.lat, r.lon, u.lat, u.lon, :radius_m)
  WHERE u.user_id = :user AND r.severity >= 4;
"""


WHERE_IS = """
CREATE REPETITIVE CHANNEL Where (user STRING) EVERY 5 SECONDS AS SELECT lat FROM Places WHERE user_id = :user;
"""


def declare(cluster: DataCluster, text: str) -> None:
    application = parse_application(text)
    assert not application.problems, application.problems
    for statement in application.statements:
        if isinstance(statement, CreateDataset):
            cluster.datasets.create(statement.dataset, statement.dataset.source, statement.format or "csv")
        elif isinstance(statement, CreateChannel):
            cluster.channels.create(statement.channel)
        elif isinstance(statement, CreateFeed):
            cluster.datasets.create_feed(statement.feed)


def report(name: str, kind: str = "fire", severity: int = 5, lat: float = 60.17, lon: float = 24.94) -> dict[str, Any]:
    return {"id": name, "kind": kind, "severity": severity, "lat": lat, "lon": lon, "at": "2026-11-15T18:00:00Z"}


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


@pytest.fixture
def cluster(cluster_at: ClusterAt) -> DataCluster:
    cluster = cluster_at()
    declare(cluster, APPLICATION)
    return cluster


@pytest.fixture(params=["held in memory", "read from files"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small datasets are held in memory, others are read by Spark: an answer must not depend on it."""
    if request.param == "read from files":
        monkeypatch.setattr(smalltables, "SMALL_TABLE_ROWS", 0)


def test_every_record_is_matched_exactly_once_per_channel(cluster: DataCluster) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}, {"kind": "flood"}], NORTH)
    publish(cluster, "Reports", [report("a"), report("b", "flood"), report("c", "storm")])
    first = cluster.execute("OfKind")
    publish(cluster, "Reports", [report("d"), report("e")])
    second = cluster.execute("OfKind")
    assert first is not None and second is not None
    assert cluster.execute("OfKind") is None, "nothing is new"
    assert {key: ids(rows) for key, rows in results_of(cluster, "OfKind").items()} == {
        ("fire",): ["a", "d", "e"],
        ("flood",): ["b"],
    }
    assert (first.execution, second.execution) == (1, 2)
    assert second.intervals[REPORTS][0] == first.intervals[REPORTS][1], "intervals are half-open and join up"


def test_records_of_the_same_millisecond_as_an_execution_are_not_lost(cluster: DataCluster, clock: Clock) -> None:
    """The ancestor compared time stamps, strictly at both ends; we compare versions."""
    clock.frozen_s = clock()
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for name in ("a", "b", "c"):
        publish(cluster, "Reports", [report(name)])
        cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["a", "b", "c"]


def test_a_clock_that_steps_back_changes_nothing(cluster: DataCluster, clock: Clock) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("OfKind")
    clock.ahead_s = -86_400
    publish(cluster, "Reports", [report("b")])
    cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["a", "b"]


def test_a_restart_forgets_nothing_and_repeats_nothing(cluster: DataCluster, cluster_at: ClusterAt) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("OfKind")
    publish(cluster, "Reports", [report("b")])  # in the dataset, not yet matched
    gateway = cluster.gateway("Reports")
    gateway.accept(b'[{"id": "c", "kind": "fire"}]', RecordForm.JSON)  # acknowledged only
    gateway.sync()

    again = cluster_at()
    again.catch_up("Reports")
    again.execute("OfKind")
    assert again.execute("OfKind") is None
    assert ids(results_of(again, "OfKind")[("fire",)]) == ["a", "b", "c"]
    assert len(again.subscriptions.book) == 1


def test_identical_subscriptions_of_two_brokers_are_one_until_the_last_leaves(cluster: DataCluster) -> None:
    (mine,) = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    (theirs,) = cluster.subscribe("OfKind", [{"kind": "fire"}], SOUTH)
    assert mine.id == theirs.id and mine.created and not theirs.created
    assert cluster.unsubscribe("OfKind", [mine.id], NORTH) == 1
    publish(cluster, "Reports", [report("a")])
    assert cluster.execute("OfKind") is not None
    assert [len(cluster.announcements.since(broker, 0).announcements) for broker in (NORTH, SOUTH)] == [0, 1]
    assert cluster.unsubscribe("OfKind", [mine.id], SOUTH) == 1
    assert cluster.unsubscribe("OfKind", [mine.id], SOUTH) == 0
    publish(cluster, "Reports", [report("b")])
    assert cluster.execute("OfKind") is None
    assert len(cluster.subscriptions.book) == 0


def test_a_channel_nobody_subscribes_to_does_no_work(cluster: DataCluster) -> None:
    publish(cluster, "Reports", [report("before")])
    assert cluster.execute("OfKind") is None
    assert cluster.channel("OfKind").executions == 0
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("after")])
    cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["after"]


def test_an_execution_without_results_writes_nothing(cluster: DataCluster) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a", "flood")])
    assert cluster.execute("OfKind") is None
    assert cluster.storage.list("results") == []
    assert cluster.catalog.executions.page() == []
    assert cluster.channel("OfKind").empty == 1


def test_a_subscription_takes_part_from_the_next_execution_on(cluster: DataCluster) -> None:
    cluster.subscribe("OfKind", [{"kind": "flood"}], NORTH)
    publish(cluster, "Reports", [report("a"), report("b", "flood")])
    cluster.execute("OfKind")
    (late,) = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("c")])
    cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["c"]
    assert ids(results_of(cluster, "OfKind", after=late.cursor.offset)[("fire",)]) == ["c"]


@pytest.mark.usefixtures("both_ways")
def test_near_me_follows_the_person_and_the_radius_of_each_subscription(cluster: DataCluster) -> None:
    near, far = (60.1700, 24.9400), (60.1790, 24.9400)  # 1.0 km apart
    publish(cluster, "Places", [{"user_id": "ann", "lat": near[0], "lon": near[1], "at": "2026-11-15T18:00:00Z"}])
    cluster.subscribe(
        "NearMe",
        [{"user": "ann", "radius_m": 500}, {"user": "ann", "radius_m": 2000.0}, {"user": "bob", "radius_m": 1e7}],
        NORTH,
    )
    publish(cluster, "Reports", [report("here", lat=near[0], lon=near[1]), report("there", lat=far[0], lon=far[1])])
    cluster.execute("NearMe")
    publish(cluster, "Places", [{"user_id": "ann", "lat": far[0], "lon": far[1], "at": "2026-11-15T18:05:00Z"}])
    publish(cluster, "Reports", [report("there again", lat=far[0], lon=far[1]), report("mild", severity=1)])
    cluster.execute("NearMe")
    found = results_of(cluster, "NearMe")
    assert sorted(ids(found["ann", 500.0])) == ["here", "there again"]
    assert sorted(ids(found["ann", 2000.0])) == ["here", "there", "there again"]
    assert found["bob", 1e7] == []
    away = next(row["away_m"] for row in found["ann", 2000.0] if row["id"] == "there")
    assert away == pytest.approx(1000.8, abs=0.5)


@pytest.mark.usefixtures("both_ways")
def test_a_keyed_dataset_serves_the_latest_record_by_event_order(cluster: DataCluster) -> None:
    declare(cluster, WHERE_IS)
    cluster.subscribe("Where", [{"user": "ann"}], NORTH)
    for lat, minute in ((1.0, 10), (2.0, 30), (3.0, 20)):  # the last to arrive is not the latest
        at = f"2026-11-15T18:{minute}:00Z"
        publish(cluster, "Places", [{"user_id": "ann", "lat": lat, "lon": 0.0, "at": at}])
    cluster.execute("Where")
    assert [row["lat"] for row in results_of(cluster, "Where")[("ann",)]] == [2.0]


@pytest.mark.usefixtures("both_ways")
def test_merging_files_changes_no_answer(cluster: DataCluster, cluster_at: ClusterAt) -> None:
    declare(cluster, WHERE_IS)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for number in range(9):
        publish(cluster, "Reports", [report(f"r{number}")])
        cluster.execute("OfKind")
        at = f"2026-11-15T18:{number:02}:00Z"
        publish(cluster, "Places", [{"user_id": user, "lat": number, "lon": 0.0, "at": at} for user in ("ann", "bob")])
    before = results_of(cluster, "OfKind")
    heard = cluster.announcements.since(NORTH, 0)
    assert merge_channel(cluster, cluster.channel("OfKind"), fan_in=4) > 0
    assert merge_dataset(cluster, cluster.dataset("Reports"), fan_in=4) > 0
    assert merge_dataset(cluster, cluster.dataset("Places"), fan_in=4) > 0
    assert merge_dataset(cluster, cluster.dataset("Places"), fan_in=4) == 0, "merging comes to an end"
    assert results_of(cluster, "OfKind") == before
    cluster.subscribe("Where", [{"user": "ann"}, {"user": "bob"}], NORTH)
    cluster.execute("Where")
    assert {key: [row["lat"] for row in rows] for key, rows in results_of(cluster, "Where").items()} == {
        ("ann",): [8.0],
        ("bob",): [8.0],
    }
    again = cluster_at()  # with its memory gone, what brokers hear is counted from the merged files
    assert again.announcements.since(NORTH, 0).announcements[: len(heard.announcements)] == heard.announcements


def test_results_with_odd_names_stay_as_they_are_whoever_writes_and_merges_them(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark writes and merges what is large, and looks at names that the small way takes as they are."""
    declare(
        cluster,
        """CREATE CONTINUOUS CHANNEL Odd (kind STRING) AS
          SELECT r.id, r.severity AS `a.b`, r.severity AS `x``y`, array(named_struct('Xy', 1, 'z z', r.kind)) AS s
          FROM NEW Reports r WHERE r.kind = :kind;""",
    )
    assert cluster.channel("Odd").prepared.described.type_of("s") == "ARRAY<STRUCT<Xy:INT,z z:STRING>>"
    (subscribed,) = cluster.subscribe("Odd", [{"kind": "fire"}], NORTH)
    monkeypatch.setattr(upkeep, "is_small", lambda _files: False)
    for pairs in (SMALL_PAIRS, 0, SMALL_PAIRS):
        monkeypatch.setattr(execution, "SMALL_PAIRS", pairs)
        publish(cluster, "Reports", [report(f"r{cluster.channel('Odd').execution}")])
        cluster.execute("Odd")
        merge_channel(cluster, cluster.channel("Odd"), fan_in=2)
    assert len(cluster.catalog.files.of(results_owner("Odd", cluster.channel("Odd").epoch))) == 1
    rows = [{"id": f"r{n}", "a.b": 5, "x`y": 5, "s": [{"Xy": 1, "z z": "fire"}]} for n in range(3)]
    assert results_of(cluster, "Odd") == {("fire",): rows}
    stream = b"".join(arrow_stream(cluster.results, open_pull(cluster, "Odd", {subscribed.id: None})))
    assert pa.ipc.open_stream(stream).read_all().select(list(rows[0])).to_pylist() == rows


def test_merged_and_dropped_files_are_deleted_after_a_while_and_leftovers_are_swept(
    cluster: DataCluster, clock: Clock
) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for number in range(9):
        publish(cluster, "Reports", [report(f"r{number}")])
        cluster.execute("OfKind")
    with cluster.storage.create("results/OfKind-3/leftover.parquet") as file:
        file.write(b"half a file of a process that died")
    merge_channel(cluster, cluster.channel("OfKind"), fan_in=4)
    maintain(cluster)
    assert len(cluster.storage.list("results")) == 11, "readers may still be inside the nine old files"
    monotonic_s = 0.0
    orphans = OrphanSweep(cluster, lambda: monotonic_s)
    clock.ahead_s = 4_000
    maintain(cluster)
    assert orphans.sweep() == 0, "a file may be about to be committed, whatever the clock on the wall says"
    monotonic_s = 3_600.0
    assert orphans.sweep() == 1
    assert len(cluster.storage.list("results")) == 1
    assert len(results_of(cluster, "OfKind")[("fire",)]) == 9


def test_retention_deletes_what_is_too_old_but_nothing_a_channel_has_not_matched(
    cluster: DataCluster, clock: Clock
) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("OfKind")
    publish(cluster, "Reports", [report("b")])
    clock.ahead_s = 8 * 86_400
    maintain(cluster)
    assert [file.rows for file in cluster.catalog.files.of("dataset:Reports")] == [1], "b still waits for OfKind"
    cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["b"], "results of a week ago are gone"
    clock.ahead_s = 16 * 86_400
    maintain(cluster)
    assert cluster.catalog.files.of("dataset:Reports") == []


def test_a_broker_that_was_away_too_long_is_told_of_the_gap(cluster: DataCluster, clock: Clock) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("OfKind")
    assert not cluster.announcements.since(NORTH, 0).gap
    clock.ahead_s = 2 * 86_400
    maintain(cluster)
    publish(cluster, "Reports", [report("b")])
    cluster.execute("OfKind")
    assert cluster.announcements.since(NORTH, 0).gap
    assert not cluster.announcements.since(NORTH, 1).gap


def test_a_broker_catches_up_from_any_sequence_after_a_restart(cluster: DataCluster, cluster_at: ClusterAt) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    cluster.subscribe("OfKind", [{"kind": "flood"}], SOUTH)
    for name in ("a", "b", "c"):
        publish(cluster, "Reports", [report(name), report(f"{name}-flood", "flood")])
        cluster.execute("OfKind")
    live = cluster.announcements.since(NORTH, 1)
    again = cluster_at().announcements.since(NORTH, 1)
    assert [news.sequence for news in live.announcements] == [2, 3]
    assert again.announcements == live.announcements
    assert all(news.subscriptions[0].results == 1 and news.subscriptions[0].bytes > 50 for news in live.announcements)


def test_rates_follow_the_bytes_of_results_and_fade(cluster: DataCluster, clock: Clock) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}, {"kind": "flood"}], NORTH)
    publish(cluster, "Reports", [report("a"), report("b"), report("c", "flood")])
    execution = cluster.execute("OfKind")
    assert execution is not None
    numbers = cluster.subscriptions.book.held_by(NORTH)
    fire, flood = cluster.subscriptions.rates_of(numbers, execution.finished_s)
    assert fire + flood == pytest.approx(execution.bytes / 60)
    assert 1.8 < fire / flood < 2.2
    assert cluster.subscriptions.rates_of(numbers, execution.finished_s + 60)[0] == pytest.approx(
        fire / 2.718, rel=0.01
    )


def test_who_leaves_during_an_execution_leaves_no_rate_behind(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    [fire, _] = cluster.subscribe("OfKind", [{"kind": "fire"}, {"kind": "flood"}], NORTH)
    publish(cluster, "Reports", [report("a"), report("b", "flood")])
    numbers = cluster.subscriptions.book.held_by(NORTH)

    def and_fire_leaves(*arguments: Any) -> Any:
        written = execute(*arguments)
        cluster.unsubscribe("OfKind", [fire.id], NORTH)
        return written

    monkeypatch.setattr(executions, "execute", and_fire_leaves)
    execution = cluster.execute("OfKind")
    assert execution is not None and execution.results == 2
    gone, stays = cluster.subscriptions.rates_of(numbers, execution.finished_s)
    assert gone == 0 < stays


def test_who_subscribes_while_a_channel_is_replaced_is_subscribed_to_the_new_one(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = APPLICATION[APPLICATION.index("CREATE REPETITIVE") :].replace("r.*", "r.id, 'new' AS life")
    [statement, *_] = parse_application(text).statements
    assert isinstance(statement, CreateChannel)

    def and_then_it_is_replaced(*arguments: Any) -> Any:
        monkeypatch.undo()
        values = canonical_values(*arguments)
        cluster.channels.replace(statement.channel, cluster.channels.prepare(statement.channel))
        return values

    monkeypatch.setattr(subscriptions, "canonical_values", and_then_it_is_replaced)
    [subscribed] = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    assert subscribed.cursor.epoch == cluster.channel("OfKind").epoch
    publish(cluster, "Reports", [report("a")])
    assert cluster.execute("OfKind") is not None
    assert results_of(cluster, "OfKind")[("fire",)] == [{"id": "a", "life": "new"}]


def test_a_hostile_parameter_string_is_only_a_value(cluster: DataCluster) -> None:
    hostile = ["'; DROP TABLE subscriptions; --", "fire' OR '1'='1", '"', "\\", "\x00", "${env}", ":kind", "🔥\n\t", ""]
    hostile.append("x" * 4096)
    cluster.subscribe("OfKind", [{"kind": text} for text in (*hostile, "fire")], NORTH)
    publish(cluster, "Reports", [report(f"r{number}", text) for number, text in enumerate((*hostile, "fire"))])
    cluster.execute("OfKind")
    found = results_of(cluster, "OfKind")
    assert {key: ids(rows) for key, rows in found.items()} == {
        (text,): [f"r{number}"] for number, text in enumerate((*hostile, "fire"))
    }


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"kind": 5}, "expected text"),
        ({}, "missing"),
        ({"kind": "fire", "colour": "red"}, "no such parameter"),
        ({"kind": None}, "expected text"),
    ],
)
def test_a_parameter_of_the_wrong_type_is_refused_and_changes_nothing(
    cluster: DataCluster, parameters: dict[str, object], reason: str
) -> None:
    with pytest.raises(TocsinError, match=reason) as refused:
        cluster.subscribe("OfKind", [{"kind": "fire"}, parameters], NORTH)
    assert refused.value.code is Code.BAD_PARAMETER
    assert len(cluster.subscriptions.book) == 0


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
def test_a_query_that_cannot_run_for_all_subscriptions_is_refused_with_the_reason(
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


def test_an_inequality_join_is_accepted_with_a_warning(cluster: DataCluster) -> None:
    declare(
        cluster,
        "CREATE REPETITIVE CHANNEL Above (s INT) EVERY 5 SECONDS AS SELECT id FROM NEW Reports WHERE severity > :s;",
    )
    assert "every pair" in cluster.channel("Above").prepared.warnings[0]
    cluster.subscribe("Above", [{"s": 3}, {"s": 0}], NORTH)
    publish(cluster, "Reports", [report("low", severity=1), report("high", severity=5)])
    cluster.execute("Above")
    found = results_of(cluster, "Above")
    assert (sorted(ids(found[(3,)])), sorted(ids(found[(0,)]))) == (["high"], ["high", "low"])


@pytest.mark.usefixtures("both_ways")
def test_a_static_dataset_enriches_and_can_be_loaded_again(cluster: DataCluster, tmp_path: Path) -> None:
    file = tmp_path / "teams.csv"
    file.write_text("kind,team\nfire,Brigade\nflood,Divers\n")
    declare(
        cluster,
        f"""CREATE STATIC DATASET Teams FROM '{file}';
        CREATE REPETITIVE CHANNEL WithTeam (kind STRING) EVERY 5 SECONDS AS
          SELECT r.id, t.team FROM NEW Reports r JOIN Teams t ON t.kind = r.kind WHERE r.kind = :kind;""",
    )
    cluster.subscribe("WithTeam", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("WithTeam")
    file.write_text("kind,team\nfire,Helicopter\n")
    cluster.datasets.load_static(cluster.dataset("Teams").dataset, str(file), "csv")
    publish(cluster, "Reports", [report("b")])
    cluster.execute("WithTeam")
    assert [row["team"] for row in results_of(cluster, "WithTeam")[("fire",)]] == ["Brigade", "Helicopter"]
    with pytest.raises(TocsinError, match="STATIC"):
        cluster.gateway("Teams")


def test_a_static_dataset_that_cannot_be_loaded_is_not_created(
    cluster_at: ClusterAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_at()
    (tmp_path / "teams.csv").write_text("kind,team\nfire,Brigade\n")
    text = "CREATE STATIC DATASET Teams FROM 'teams.csv';"

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DatasetWriter, "replace_all", full)
    with pytest.raises(OSError, match="No space left"):
        apply(cluster, text, folder=str(tmp_path))
    assert (cluster.datasets.all(), cluster.catalog.datasets.all()) == ([], [])
    monkeypatch.undo()
    assert [str(change.action) for change in apply(cluster, text, folder=str(tmp_path))] == ["created"]
    assert sum(file.rows for file in cluster.catalog.files.of(dataset_owner(DatasetName("Teams")))) == 1


def test_a_feed_from_files_enters_once_and_shares_keys_with_the_gateway(
    cluster: DataCluster, cluster_at: ClusterAt, tmp_path: Path
) -> None:
    drop = tmp_path / "drop"
    drop.mkdir()
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    (drop / "1.json").write_text('{"id": "a", "kind": "fire"}\n{"id": "b", "kind": "fire"}\n{"kind": "fire"}\n')
    declare(cluster, f"CREATE FEED Drop INTO Reports FROM json OPTIONS (path '{drop}');")
    cluster.datasets.feeds()[0].query.catch_up()
    publish(cluster, "Reports", [report("b"), report("c")])
    cluster.execute("OfKind")
    assert sorted(ids(results_of(cluster, "OfKind")[("fire",)])) == ["a", "b", "c"]
    again = cluster_at()
    (drop / "2.json").write_text('{"id": "c", "kind": "fire"}\n{"id": "d", "kind": "fire"}\n')
    again.datasets.feeds()[0].query.catch_up()
    again.execute("OfKind")
    assert sorted(ids(results_of(again, "OfKind")[("fire",)])) == ["a", "b", "c", "d"]
    gateway = again.gateway("Reports")
    gateway.accept(json.dumps([report("d")]).encode(), RecordForm.JSON, "a key")
    gateway.accept(json.dumps([report("d")]).encode(), RecordForm.JSON, "another")
    gateway.sync()
    again.catch_up("Reports")  # answers, and no record: nothing to do
    again.datasets.drop_feed("Drop")
    without = cluster_at()
    publish(without, "Reports", [report("d"), report("e")])
    without.execute("OfKind")
    found = sorted(ids(results_of(without, "OfKind")[("fire",)]))
    assert found == ["a", "b", "c", "d", "e"], "keys that came by a feed are known when it is gone"


def test_what_is_in_use_cannot_be_dropped_and_a_dropped_channel_starts_anew(cluster: DataCluster) -> None:
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


@pytest.mark.parametrize("kind", ["DECIMAL(10, 2)", "STRING"])
def test_a_radius_need_not_be_a_double(cluster: DataCluster, kind: str) -> None:
    declare(
        cluster,
        f"""CREATE CONTINUOUS CHANNEL Around (user STRING, radius_m {kind}) AS
            SELECT r.id FROM NEW Reports r JOIN Places u ON near(r.lat, r.lon, u.lat, u.lon, :radius_m)
            WHERE u.user_id = :user;""",
    )
    publish(cluster, "Places", [{"user_id": "ann", "lat": 60.17, "lon": 24.94, "at": "2026-11-15T18:00:00Z"}])
    cluster.subscribe("Around", [{"user": "ann", "radius_m": radius} for radius in ("5000", "100")], NORTH)
    publish(cluster, "Reports", [report("here"), report("near", lat=60.19)])
    cluster.execute("Around")
    found = sorted(sorted(ids(rows)) for rows in results_of(cluster, "Around").values())
    assert found == [["here"], ["here", "near"]]


def test_values_that_make_the_query_fail_are_refused_and_do_not_stop_the_others(cluster: DataCluster) -> None:
    declare(
        cluster,
        """CREATE CONTINUOUS CHANNEL Like (pattern STRING, least INT) AS
           SELECT r.id FROM NEW Reports r WHERE r.kind RLIKE :pattern AND r.severity >= :least;""",
    )
    good = {"pattern": "^f", "least": 5}
    bad = [{"pattern": "(", "least": 1}, {"pattern": "[a", "least": 2}]
    cluster.subscribe("Like", [good, {"pattern": "fire", "least": 1}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("Like")
    cluster.subscribe("Like", [*bad, {"pattern": "x", "least": 1}], SOUTH)
    publish(cluster, "Reports", [report("b")])
    cluster.execute("Like")
    assert {key: ids(rows) for key, rows in results_of(cluster, "Like").items()} == {
        ("^f", 5): ["a", "b"], ("fire", 1): ["a", "b"], ("x", 1): [],
    }  # fmt: skip
    assert len(cluster.subscriptions.book) == 3 and len(cluster.subscriptions.book.held_by(SOUTH)) == 1
    for values, reason in zip(bad, ("Unclosed group", "Unclosed character class"), strict=True):
        with pytest.raises(TocsinError, match=reason) as refused:
            cluster.subscribe("Like", [values], SOUTH)
        assert refused.value.code is Code.BAD_PARAMETER
    publish(cluster, "Reports", [report("c")])
    assert cluster.execute("Like") is not None


def test_a_record_that_makes_the_query_fail_costs_nobody_a_subscription(cluster: DataCluster) -> None:
    declare(
        cluster,
        """CREATE CONTINUOUS CHANNEL InTheirTime (least INT) AS
           SELECT r.id, from_utc_timestamp(r.at, r.kind) AS there FROM NEW Reports r WHERE r.severity >= :least;""",
    )
    cluster.subscribe("InTheirTime", [{"least": 1}, {"least": 2}], NORTH)
    publish(cluster, "Reports", [report("a", "UTC")])
    cluster.execute("InTheirTime")
    cluster.subscribe("InTheirTime", [{"least": 3}], NORTH)
    publish(cluster, "Reports", [report("b", "Mars/Base")])
    with pytest.raises(Exception, match="Mars/Base"):
        cluster.execute("InTheirTime")
    assert len(cluster.subscriptions.book) == 3


def test_a_name_that_is_no_column_does_not_mean_a_parameter(cluster: DataCluster) -> None:
    text = "CREATE CONTINUOUS CHANNEL Wrong (kindx STRING) AS SELECT r.id FROM NEW Reports r WHERE kindx = :kindx;"
    with pytest.raises(TocsinError, match="kindx"):
        declare(cluster, text)


def test_what_came_while_nobody_was_subscribed_is_not_new_after_a_restart_either(
    cluster: DataCluster, cluster_at: ClusterAt
) -> None:
    publish(cluster, "Reports", [report("old")])
    cluster.execute("OfKind")
    again = cluster_at()
    again.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(again, "Reports", [report("new")])
    again.execute("OfKind")
    assert ids(results_of(again, "OfKind")[("fire",)]) == ["new"]


def test_a_root_is_open_in_one_process_at_a_time(cluster: DataCluster) -> None:
    with pytest.raises(TocsinError, match="another process"):
        DataCluster(cluster.spark, cluster.settings, cluster.now_s)
