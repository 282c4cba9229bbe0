"""The lists of allowed functions and plan nodes cover this version of Spark, and stored channels are checked too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from tests.cluster.emergency import APPLICATION, NORTH, declare, ids, report
from tests.conftest import ClusterAt, publish, results_of
from tocsin.cluster.applying import apply
from tocsin.cluster.catalog.tables import channels
from tocsin.cluster.spark.errors import SPARK_ERRORS
from tocsin.cluster.spark.plan_walk import plan_nodes
from tocsin.cluster.spark.query_check import QueryRefused, check_analysed, check_parsed, parsed_plan
from tocsin.cluster.spark.session import GUARDS, Session
from tocsin.cluster.sql.allowed_functions import ALLOWED_FUNCTIONS, REMOVED_FUNCTIONS, reason_to_refuse, refusal_of
from tocsin.cluster.sql.channel_query import ChannelQuery, parse_channel_query
from tocsin.model.schema import Schema

pytestmark = pytest.mark.spark

CLAUSES = Path(__file__).with_name("clauses.sql").read_text(encoding="utf-8").splitlines()
COLUMNS = "a STRING, b INT, c DOUBLE, d TIMESTAMP, arr ARRAY<INT>, m MAP<STRING, INT>, s STRUCT<x: INT, y: STRING>"


@pytest.fixture(scope="module")
def query() -> ChannelQuery:
    """Any query: only positions are taken from it."""
    parsed = parse_channel_query("SELECT 1 AS x FROM t", Schema(()))
    assert isinstance(parsed, ChannelQuery)
    return parsed


def functions(spark: Session) -> Iterator[tuple[str, str]]:
    """(name, examples) of each function that Spark has built in."""
    state: Any = spark._jsparkSession.sessionState()
    for registry in (state.functionRegistry(), state.tableFunctionRegistry()):
        listed = registry.listFunction().iterator()
        while listed.hasNext():
            identifier = listed.next()
            yield identifier.funcName(), registry.lookupFunction(identifier).get().getExamples()


def test_every_function_of_spark_is_allowed_or_has_a_reason(spark: Session) -> None:
    names = {name for name, _ in functions(spark)}
    assert len(names) > 500
    undecided = sorted(name for name in names if refusal_of(name) is not None and reason_to_refuse(name) is None)
    assert undecided == [], "decide about these functions in allowed_functions"
    both = sorted(name for name in ALLOWED_FUNCTIONS if reason_to_refuse(name) is not None)
    assert both == []


def test_spark_has_forgotten_functions_that_run_code(spark: Session) -> None:
    assert {name for name, _ in functions(spark.newSession())}.isdisjoint(REMOVED_FUNCTIONS)
    assert {name: spark.conf.get(name) for name in GUARDS} == dict(GUARDS)


def test_examples_of_allowed_functions_pass_the_check(spark: Session, query: ChannelQuery) -> None:
    tried = 0
    for name, examples in list(functions(spark)):
        if name in ALLOWED_FUNCTIONS:
            for example in re.findall(r">\s*(SELECT .*?);\s*\n", examples, re.DOTALL)[:1]:
                if all(reason_to_refuse(called) is None for called in re.findall(r"(\w+)\s*\(", example)):
                    tried += _passes(spark, query, example)
    assert tried > 350


def test_every_clause_of_spark_sql_passes_the_check(spark: Session, query: ChannelQuery) -> None:
    session = spark.newSession()
    for view in ("t", "u"):
        session.createDataFrame([], COLUMNS).createOrReplaceTempView(view)
    assert sum(_passes(session, query, clause) for clause in CLAUSES) == len(CLAUSES) > 60


def _passes(session: Session, query: ChannelQuery, sql: str) -> int:
    """Whether Spark can analyse this SQL. Fails if it can, and the check refuses the plan."""
    jvm: Any = session._jvm
    try:
        plan = parsed_plan(session, sql)
        check_parsed(query, plan_nodes(session, plan), {"t", "u"})
        frame = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
        check_analysed(query, plan_nodes(session, frame.queryExecution().analyzed()), {"t", "u"})
    except QueryRefused as error:
        pytest.fail(f"{sql}: {error.message}")
    except SPARK_ERRORS:
        return 0
    return 1


def test_unknown_function_is_reported_at_its_place_with_advice(cluster_at: ClusterAt) -> None:
    cluster = cluster_at()
    declare(cluster, APPLICATION)
    text = "CREATE REPETITIVE CHANNEL C (kind STRING) EVERY 5 SECONDS AS\n  SELECT uper(r.id) AS x FROM NEW Reports r"
    with pytest.raises(Exception, match=r"2:10: uper is not a function .* did you mean upper\?"):
        apply(cluster, f"{text} WHERE r.kind = :kind;", "app.sql")


def test_stored_channel_that_is_refused_now_does_not_stop_the_others(cluster_at: ClusterAt) -> None:
    cluster = cluster_at()
    declare(cluster, APPLICATION)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    cluster.subscribe("NearMe", [{"user": "ann", "radius_m": 10.0}], NORTH)
    with cluster.catalog._database.write() as connection:
        row = connection.execute(sa.select(channels.c.definition).where(channels.c.name == "NearMe")).scalar_one()
        definition = msgspec.json.decode(row)
        definition["query"] = definition["query"].replace("distance_m(", "reflect(")
        update = sa.update(channels).where(channels.c.name == "NearMe")
        connection.execute(update.values(definition=msgspec.json.encode(definition).decode()))
    again = cluster_at()
    assert [live.name for live in again.channels.all()] == ["OfKind"]
    assert "reflect is not allowed" in again.channels.refused["NearMe"]  # type: ignore[index]
    publish(again, "Reports", [report("a")])
    again.execute("OfKind")
    assert ids(results_of(again, "OfKind")[("fire",)]) == ["a"]
    apply(again, APPLICATION)
    assert [live.name for live in again.channels.all()] == ["NearMe", "OfKind"]
    assert again.channels.refused == {}
