"""Backend subscriptions: shared by brokers, checked, counted, and always those of the current channel."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.emergency import APPLICATION, NORTH, SOUTH, declare, ids, report
from tests.conftest import Clock, ClusterAt, publish, results_of
from tocsin.cluster import executions, subscriptions
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.spark.execution import execute
from tocsin.cluster.sql.declarations import CreateChannel, parse_application
from tocsin.model.subscription import canonical_values
from tocsin.wire.errors import Code, TocsinError

pytestmark = pytest.mark.spark


def test_two_brokers_share_a_subscription_until_the_last_unsubscribes(cluster: DataCluster, clock: Clock) -> None:
    (north,) = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    (south,) = cluster.subscribe("OfKind", [{"kind": "fire"}], SOUTH)
    assert north.id == south.id and north.created and not south.created
    assert cluster.unsubscribe("OfKind", [north.id], NORTH) == 1
    publish(cluster, "Reports", [report("a")])
    assert cluster.execute("OfKind") is not None
    assert [len(cluster.announcements.since(broker, 0).announcements) for broker in (NORTH, SOUTH)] == [0, 1]
    assert cluster.unsubscribe("OfKind", [north.id], SOUTH) == 1
    assert cluster.unsubscribe("OfKind", [north.id], SOUTH) == 0
    clock.passed_s += cluster.settings.unheld_s
    assert cluster.channels.end_unheld() == 1
    publish(cluster, "Reports", [report("b")])
    assert cluster.execute("OfKind") is None
    assert len(cluster.subscriptions.book) == 0


def test_results_between_two_holders_belong_to_the_second(cluster_at: ClusterAt, clock: Clock) -> None:
    """A subscriber moves, and its old broker releases before the new one subscribes."""
    cluster = cluster_at()
    declare(cluster, APPLICATION)
    (north,) = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    cluster.unsubscribe("OfKind", [north.id], NORTH)
    publish(cluster, "Reports", [report("a")])
    assert cluster.execute("OfKind") is not None
    cluster = cluster_at()  # the time without a holder begins again after a restart
    clock.passed_s += 0.9 * cluster.settings.unheld_s
    assert cluster.channels.end_unheld() == 0
    publish(cluster, "Reports", [report("b")])
    assert cluster.execute("OfKind") is not None

    (south,) = cluster.subscribe("OfKind", [{"kind": "fire"}], SOUTH)
    assert south.id == north.id and not south.created
    assert ids(results_of(cluster, "OfKind", after=north.cursor.offset)[("fire",)]) == ["a", "b"]
    clock.passed_s += 2 * cluster.settings.unheld_s
    assert cluster.channels.end_unheld() == 0, "a broker holds it"


def test_subscription_takes_part_from_the_next_execution_on(cluster: DataCluster) -> None:
    cluster.subscribe("OfKind", [{"kind": "flood"}], NORTH)
    publish(cluster, "Reports", [report("a"), report("b", "flood")])
    cluster.execute("OfKind")
    (late,) = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("c")])
    cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["c"]
    assert ids(results_of(cluster, "OfKind", after=late.cursor.offset)[("fire",)]) == ["c"]


def test_rates_follow_the_bytes_of_results_and_decay(cluster: DataCluster, clock: Clock) -> None:
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


def test_subscription_ended_during_an_execution_gets_no_rate(
    cluster: DataCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    [fire, _] = cluster.subscribe("OfKind", [{"kind": "fire"}, {"kind": "flood"}], NORTH)
    publish(cluster, "Reports", [report("a"), report("b", "flood")])
    numbers = cluster.subscriptions.book.held_by(NORTH)

    def execute_and_unsubscribe(*arguments: Any) -> Any:
        written = execute(*arguments)
        cluster.unsubscribe("OfKind", [fire.id], NORTH)
        clock.passed_s += cluster.settings.unheld_s
        assert cluster.channels.end_unheld() == 1
        return written

    monkeypatch.setattr(executions, "execute", execute_and_unsubscribe)
    execution = cluster.execute("OfKind")
    assert execution is not None and execution.results == 2
    ended, kept = cluster.subscriptions.rates_of(numbers, execution.finished_s)
    assert ended == 0 < kept


def test_subscribing_while_a_channel_is_replaced_gives_the_new_channel(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = APPLICATION[APPLICATION.index("CREATE REPETITIVE") :].replace("r.*", "r.id, 'new' AS version")
    [statement, *_] = parse_application(text).statements
    assert isinstance(statement, CreateChannel)

    def check_and_replace_channel(*arguments: Any) -> Any:
        monkeypatch.undo()
        values = canonical_values(*arguments)
        cluster.channels.replace(statement.channel, cluster.channels.prepare(statement.channel))
        return values

    monkeypatch.setattr(subscriptions, "canonical_values", check_and_replace_channel)
    [subscribed] = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    assert subscribed.cursor.epoch == cluster.channel("OfKind").epoch
    publish(cluster, "Reports", [report("a")])
    assert cluster.execute("OfKind") is not None
    assert results_of(cluster, "OfKind")[("fire",)] == [{"id": "a", "version": "new"}]


def test_hostile_parameter_string_is_only_a_value(cluster: DataCluster) -> None:
    hostile = ["'; DROP TABLE subscriptions; --", "fire' OR '1'='1", '"', "\\", "\x00", "${env}", ":kind", "🔥\n\t", ""]
    hostile.append("x" * 4096)
    cluster.subscribe("OfKind", [{"kind": text} for text in (*hostile, "fire")], NORTH)
    publish(cluster, "Reports", [report(f"r{number}", text) for number, text in enumerate((*hostile, "fire"))])
    cluster.execute("OfKind")
    results = results_of(cluster, "OfKind")
    assert {key: ids(rows) for key, rows in results.items()} == {
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
def test_parameter_of_the_wrong_type_is_refused_and_changes_nothing(
    cluster: DataCluster, parameters: dict[str, object], reason: str
) -> None:
    with pytest.raises(TocsinError, match=reason) as refused:
        cluster.subscribe("OfKind", [{"kind": "fire"}, parameters], NORTH)
    assert refused.value.code is Code.BAD_PARAMETER
    assert len(cluster.subscriptions.book) == 0
