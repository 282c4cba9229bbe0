"""Channel queries: the datasets they read, forbidden constructs, and the SQL for all subscriptions."""

from __future__ import annotations

import pytest

from tocsin.cluster.sql.channel_query import ChannelQuery, parse_channel_query
from tocsin.cluster.sql.problems import Problem
from tocsin.cluster.sql.query_sql import to_lateral_sql
from tocsin.model.schema import Schema

PARAMETERS = Schema.of(kind="STRING", radius_m="DOUBLE")


def parsed(text: str) -> ChannelQuery:
    query = parse_channel_query(text, PARAMETERS)
    assert isinstance(query, ChannelQuery), query
    return query


def refused(text: str) -> list[Problem]:
    problems = parse_channel_query(text, PARAMETERS)
    assert isinstance(problems, list), problems
    return problems


def view_of(dataset: str, is_new: bool) -> str:
    return f"{'new' if is_new else 'all'}_{dataset.lower()}"


def body_of(sql: str) -> str:
    return sql.split("LATERAL (\n")[1].split("\n) _tocsin_q")[0]


@pytest.mark.parametrize(
    ("text", "whole", "new"),
    [
        ("SELECT * FROM NEW Reports r JOIN Users u ON r.id = u.id", {"Users"}, {"Reports"}),
        ("SELECT * FROM Reports, NEW\n  Reports r", {"Reports"}, {"Reports"}),
        ("SELECT * FROM (NEW A JOIN B) JOIN (SELECT * FROM NEW C, D) q", {"B", "D"}, {"A", "C"}),
        ("WITH a AS (SELECT * FROM NEW X), b AS (SELECT * FROM a, b) SELECT * FROM A, b", {"b"}, {"X"}),
        ("WITH RECURSIVE t AS (SELECT 1 UNION ALL SELECT x FROM t) SELECT * FROM t, Y", {"Y"}, set()),
        ("SELECT * FROM A UNION ALL SELECT * FROM NEW B WHERE x IN (SELECT y FROM C)", {"A", "C"}, {"B"}),
        ("SELECT * FROM A WHERE (WITH B AS (SELECT 1) SELECT * FROM B) = (SELECT y FROM B)", {"A", "B"}, set()),
        ("SELECT /*+ BROADCAST(u) */ * FROM Reports u", {"Reports"}, set()),
        ("SELECT * FROM Reports LATERAL VIEW explode(items) t AS item", {"Reports"}, set()),
        ("SELECT id, new mood, new FROM Reports", {"Reports"}, set()),
        ("SELECT extract(DAY FROM new) d, trim(BOTH 'x' FROM new) FROM NEW A", set(), {"A"}),
        ("SELECT a IS DISTINCT FROM new, new FROM A JOIN NEW B ON a IS NOT DISTINCT FROM new", {"A"}, {"B"}),
        ("SELECT (SELECT max(x) FROM NEW A WHERE extract(DAY FROM new) = 1) FROM NEW B, NEW C", set(), {"A", "B", "C"}),
        ("WITH a AS (SELECT 1) FROM NEW X SELECT * UNION ALL (FROM NEW Y SELECT *)", set(), {"X", "Y"}),
        ("SELECT * FROM reports a JOIN Reports b", {"reports"}, set()),
        ("SELECT * FROM NEW `Reports`, range(3)", set(), {"Reports"}),
    ],
)
def test_query_reads_exactly_the_datasets_it_names(text: str, whole: set[str], new: set[str]) -> None:
    query = parsed(text)
    assert (set(query.datasets), set(query.new_datasets)) == (whole, new)


def test_markers_are_found_in_any_case_and_not_inside_strings() -> None:
    query = parsed("SELECT ':radius_m', CAST(x AS STRUCT<a:INT>), x::INT FROM A WHERE kind = :KIND -- :radius_m")
    assert query.markers == {"kind"}


@pytest.mark.parametrize(
    ("text", "place", "code"),
    [
        ("SELECT *\nFROM A WHERE x = :knd", (2, 18), "unknown-parameter"),
        ("SELECT rand() FROM A", (1, 8), "refused-function"),
        ("SELECT `java_method`('a', 'b') FROM A", (1, 8), "refused-function"),
        ("SELECT system.builtin.reflect('a') FROM A", (1, 23), "refused-function"),
        ("SELECT * FROM read_files('/etc')", (1, 15), "refused-function"),
        ("SELECT * FROM IDENTIFIER('x')", (1, 15), "refused-function"),
        ("SELECT * FROM A,\n parquet.`/etc/x`", (2, 2), "qualified-name"),
        ("SELECT * FROM other.A", (1, 15), "qualified-name"),
        ("SELECT * FROM NEW a.b", (1, 15), "qualified-name"),
        ("SELECT * FROM _tocsin_subscriptions", (1, 15), "reserved-name"),
        ("SELECT 1 AS `_TOCSIN_x` FROM A", (1, 13), "reserved-name"),
        ("SELECT x INTO b FROM A", (1, 15), "not-a-query"),
        ("SELECT TRANSFORM(x) USING 'cat' FROM A", (1, 21), "refused-function"),
        ("SELECT * FROM A TABLESAMPLE (5 PERCENT)", (1, 30), "not-a-query"),
        ("FROM NEW A r |> PIVOT (max(x) FOR kind IN ('a')) |> AS t", (1, 6), "not-a-query"),
        ("INSERT INTO A SELECT 1", (1, 1), "not-a-query"),
        ("DROP TABLE A", (1, 1), "not-a-query"),
        ("SELECT 1 FROM A; SELECT 2", (1, 16), "not-a-query"),
        ("SELECT * FROM A WHERE x = ?", (1, 27), "marker"),
        ("SELECT * FROM NEW WHERE x", (1, 19), "syntax"),
        ("SELECT * FROM A WHERE x = 'abc", (1, 27), "unfinished"),
        ("WITH c AS (SELECT 1) SELECT * FROM NEW c", (1, 36), "new-of-cte"),
        ("SELECT * FROM A\nWHERE (x > 1", (2, 12), "syntax"),
        ("", (1, 1), "syntax"),
    ],
)
def test_forbidden_construct_is_refused_at_its_position(text: str, place: tuple[int, int], code: str) -> None:
    assert (*place, code) in [(problem.line, problem.column, problem.code) for problem in refused(text)]


def test_every_problem_of_a_query_is_reported() -> None:
    problems = refused("SELECT uuid() FROM a.b WHERE x = :knd AND y = randn()")
    assert [problem.column for problem in problems] == [8, 20, 34, 47]
    assert "did you mean kind?" in problems[2].message


def test_now_is_allowed_because_it_is_constant_within_an_execution() -> None:
    assert parsed("SELECT * FROM A WHERE at > current_timestamp() - INTERVAL 1 HOUR AND now() > at").datasets == {"A"}


def test_dataset_of_a_pipeline_is_read_once() -> None:
    query = parsed("FROM NEW Reports |> WHERE kind = :kind |> SELECT id")
    assert [(table.dataset, table.is_new) for table in query.references] == [("Reports", True)]
    assert body_of(to_lateral_sql(query, view_of)).count("new_reports") == 1


def test_quoted_dataset_without_blanks_around_it_stays_apart() -> None:
    assert body_of(to_lateral_sql(parsed("SELECT r.x FROM`Reports`r WHERE r.kind=:kind"), view_of)).startswith(
        "SELECT r.x FROM all_reports r WHERE"
    )


def test_lateral_sql_keeps_the_text_except_markers_and_datasets() -> None:
    sql = to_lateral_sql(
        parsed("SELECT r.x::INT, 'a''b', Users.*  FROM NEW  Reports r, Users WHERE r.kind=:KIND -- the end"), view_of
    )
    assert body_of(sql).rstrip() == (
        "SELECT r.x::INT, 'a''b', Users.*  FROM new_reports r, all_users AS `Users`"
        " WHERE r.kind=_tocsin_s.`_tocsin_p_kind`"
    )
    assert sql.startswith(
        "SELECT _tocsin_s._tocsin_subscription, _tocsin_q.* FROM "
        "(SELECT _tocsin_subscription, `kind` AS `_tocsin_p_kind`"
    )


def test_lateral_sql_uses_the_given_parameters_alias() -> None:
    sql = to_lateral_sql(parsed("SELECT 1 FROM A WHERE k = :kind"), view_of, parameters_alias="p")
    assert body_of(sql) == "SELECT 1 FROM all_a AS `A` WHERE k = p.`_tocsin_p_kind`"


def test_unparsable_query_is_refused_without_the_wording_of_sqlglot() -> None:
    (problem,) = refused("SELECT 1 FROM A WHERE")
    assert str(problem) == "<query>:1:17: the query cannot be parsed: WHERE is incomplete"


def test_deep_nesting_is_refused_without_a_crash() -> None:
    assert refused("SELECT " + "(" * 5_000 + "1" + ")" * 5_000 + " FROM A")[0].code == "syntax"


@pytest.mark.parametrize(
    ("condition", "exploded"),
    [
        ("FROM NEW A a JOIN B b ON near(a.y, a.x, b.y, b.x, 5)", ["A"]),
        ("FROM A a JOIN NEW B b ON near(a.y, a.x, b.y, b.x, 5)", ["B"]),
        ("FROM A a, B b WHERE (b.k = 1 AND near(b.y, b.x, a.y, a.x, 5))", ["B"]),
        ("FROM NEW A LEFT JOIN B ON near(A.y, A.x, B.y, B.x, 5)", ["B"]),
        ("FROM A a LEFT JOIN NEW B ON near(a.y, a.x, B.y, B.x, 5)", ["B"]),
        ("FROM NEW A a WHERE near(a.y, a.x, :radius_m, :radius_m, 5)", ["A"]),
        ("FROM NEW A a JOIN B b ON near(a.y, a.x, b.y, b.x, a.r)", ["B"]),
        ("FROM NEW A a JOIN B b ON near(a.y, a.x, b.y, b.x, a.r + b.r)", []),
        ("FROM NEW A a JOIN B b ON near(y, x, b.y, b.x, 5)", []),
        ("FROM NEW A a JOIN B b ON near(a.y, a.x, b.y, b.x, 5) OR a.k = 1", []),
        ("FROM NEW A a RIGHT JOIN B b ON near(a.y, a.x, b.y, b.x, 5)", []),
        ("FROM NEW A a WHERE near(a.y, a.x, 60, 25, 5)", []),
        ("FROM NEW A a WHERE EXISTS (SELECT 1 FROM B b WHERE near(a.y, a.x, b.y, b.x, 5))", ["B"]),
    ],
)
def test_near_explodes_new_side_unless_join_or_radius_forbids(condition: str, exploded: list[str]) -> None:
    assert [grid.item.name for grid in parsed(f"SELECT 1 {condition}").grids] == exploded


def test_near_and_distance_require_all_arguments() -> None:
    first, second = refused("SELECT distance_m(a.y, a.x) FROM A a WHERE near(a.y, a.x, 60, 25)")
    assert str(first) == "<query>:1:8: expected distance_m(lat1, lon1, lat2, lon2) but found 2 arguments"
    assert str(second) == "<query>:1:44: expected near(lat1, lon1, lat2, lon2, radius_m) but found 4 arguments"
