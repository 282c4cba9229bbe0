"""Patterns that subscribers choose: each match takes bounded time, whatever the pattern and the text."""

from __future__ import annotations

import random
import time

import pytest
from pyspark.sql import SparkSession

from tests.cluster.emergency import APPLICATION, NORTH, declare, ids, report
from tests.conftest import ClusterAt, publish, results_of
from tocsin.cluster.applying import ApplicationRefused, apply
from tocsin.cluster.spark.patterns import with_bounded_patterns
from tocsin.wire.errors import TocsinError

pytestmark = pytest.mark.spark

MATCHING = """
CREATE REPETITIVE CHANNEL Matching (pattern STRING) EVERY 1 HOUR AS
  SELECT r.id FROM NEW Reports r WHERE r.kind {operator} :pattern;
"""
BACKTRACKING = {
    "RLIKE": [
        "(.*)" * 10 + "~",
        "(a+)+~",
        "(a|aa)+~",
        "(a|b)*~",
        "((a{1,5}){1,5}){1,5}~",
        r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}|a{1,9})+~",
    ],
    "LIKE": ["%a" * 30 + "%~", "%" * 200 + "~"],
    "ILIKE": ["%A" * 30 + "%~"],
}
"""Patterns with which Java's regular expressions take years, or the stack of a task, for a long text."""


@pytest.mark.parametrize("operator", BACKTRACKING)
def test_pattern_that_backtracks_does_not_delay_an_execution(cluster_at: ClusterAt, operator: str) -> None:
    cluster = cluster_at(execution_s=60.0)
    declare(cluster, APPLICATION + MATCHING.format(operator=operator))
    patterns = ["fire", *BACKTRACKING[operator]]
    cluster.subscribe("Matching", [{"pattern": pattern} for pattern in patterns], NORTH)
    publish(cluster, "Reports", [report("a", "fire"), report("b", "a" * 10_000), report("c", "a" * 150 + "~")])
    started_s = time.monotonic()
    cluster.execute("Matching")
    assert time.monotonic() - started_s < 30.0
    found = {key: ids(rows) for key, rows in results_of(cluster, "Matching").items()}
    assert found == {("fire",): ["a"], **{(pattern,): ["c"] for pattern in BACKTRACKING[operator]}}


def test_like_with_a_pattern_from_a_row_equals_sparks_own(spark: SparkSession) -> None:
    chance = random.Random(5)
    texts = {"".join(chance.choices("aAbÄ%_!\\\n\U0001f525", k=chance.randrange(8))) for _ in range(300)}
    patterns = {"".join(chance.choices(("a", "b", "Ä", "%", "_", "!%", "!_", "!!", "\n"), k=n % 7)) for n in range(300)}
    spark.createDataFrame([(text,) for text in sorted(texts)], "x STRING").createOrReplaceTempView("texts")
    spark.createDataFrame([(text,) for text in sorted(patterns)], "p STRING").createOrReplaceTempView("patterns")
    for operator in ("LIKE", "ILIKE", "NOT LIKE"):
        frame = spark.sql(f"SELECT x, p FROM texts JOIN patterns ON x {operator} p ESCAPE '!'")
        bounded = with_bounded_patterns(spark, frame)
        assert bounded is not frame
        assert {tuple(row) for row in bounded.collect()} == {tuple(row) for row in frame.collect()}


def test_rlike_with_a_pattern_from_a_row_equals_sparks_own(spark: SparkSession) -> None:
    patterns = [
        "fire",
        "^fi.e$",
        "(?i)FIRE",
        "f[a-z]{2}e|flood",
        r"\bfire\b",
        r"\d+ km",
        "",
        "Ä",
        "fi(?:re|sh)",
        r"\.$",
    ]
    texts = ["fire", "wildfire", "FIRE!", "a fire here", "12 km", "Ärger", "", "flood", "fish.", "fi\nre", None]
    spark.createDataFrame([(text,) for text in texts], "x STRING").createOrReplaceTempView("texts")
    spark.createDataFrame([(text,) for text in [*patterns, None]], "p STRING").createOrReplaceTempView("patterns")
    frame = spark.sql("SELECT x, p, x RLIKE p AS found FROM texts CROSS JOIN patterns")
    bounded = with_bounded_patterns(spark, frame)
    assert {tuple(row) for row in bounded.collect()} == {tuple(row) for row in frame.collect()}


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=fire)", "not valid in RE2 syntax"),
        ("(", "missing closing"),
        ("((a{100}){100}){100}", "repeats its parts too often"),
        ("a" * 1_001, "may have 1000 characters"),
        ("a" * 900, "too long for a text of 30000"),
    ],
)
def test_pattern_beyond_the_bounds_ends_its_subscription(cluster_at: ClusterAt, pattern: str, reason: str) -> None:
    cluster = cluster_at()
    declare(cluster, APPLICATION + MATCHING.format(operator="RLIKE"))
    cluster.subscribe("Matching", [{"pattern": "fire"}, {"pattern": pattern}], NORTH)
    publish(cluster, "Reports", [report("a", "fire"), report("b", "a" * 30_000)])
    cluster.execute("Matching")
    assert {key: ids(rows) for key, rows in results_of(cluster, "Matching").items()} == {("fire",): ["a"]}
    with pytest.raises(TocsinError, match=reason):
        cluster.subscribe("Matching", [{"pattern": pattern}], NORTH)


@pytest.mark.parametrize(
    "expression",
    [
        "regexp_replace(r.kind, :pattern, '')",
        "regexp_extract(r.kind, :pattern, 0)",
        "regexp_count(r.kind, concat('a', :pattern))",
        "split(r.kind, :pattern)[0]",
        "str_to_map(r.kind, ',', :pattern)['a']",
        "parse_url(r.kind, 'QUERY', :pattern)",
        "exists(array(r.kind), kind -> regexp_instr(kind, :pattern) > 0)",
    ],
)
def test_function_without_bounds_refuses_a_pattern_from_a_row(cluster_at: ClusterAt, expression: str) -> None:
    cluster = cluster_at()
    declare(cluster, APPLICATION)
    with pytest.raises(ApplicationRefused) as refused:
        apply(
            cluster,
            f"CREATE CONTINUOUS CHANNEL H (pattern STRING) AS SELECT r.id, {expression} AS found FROM NEW Reports r;",
        )
    assert "its pattern must be a constant" in refused.value.problems[0].message


def test_constant_pattern_of_the_author_stays_sparks(cluster_at: ClusterAt) -> None:
    cluster = cluster_at()
    declare(cluster, APPLICATION)
    apply(
        cluster,
        "CREATE CONTINUOUS CHANNEL H (least INT) AS SELECT r.id, split(r.kind, ',') AS parts FROM NEW Reports r"
        " WHERE r.kind RLIKE '^(?=f)' AND r.kind LIKE 'f%' AND r.severity >= :least;",
    )
    assert not cluster.channel("H").prepared.has_open_patterns
