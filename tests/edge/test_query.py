"""CREATE EDGE QUERY: the plan of a query, and the codes with which queries are rejected."""

from __future__ import annotations

import pytest

from tests.edge.edge_readings import STREAMS
from tocsin.edge.layout import lay_out, lowest_placement, output_schema, prepare
from tocsin.edge.plan import graph_of
from tocsin.edge.query import EdgeQuery, QueryCode, QueryRejected
from tocsin.model.edge import EdgeNodeId, OperatorId, Tree

HIGH_USE = """
CREATE EDGE QUERY HighUse LATENESS 10 SECONDS AS
SELECT meter, window.start AS since, SUM(kwh) AS total, AVG(kwh) AS mean FROM Readings WHERE kwh > 0 AND zone = 1
GROUP BY meter, WINDOW(ts, '1 hour', '15 minutes') HAVING total > 5 ORDER BY since, meter
"""
TREE = Tree.perfect_binary(7)
LEAVES = [EdgeNodeId(name) for name in ("n4", "n5", "n6")]


def compiled(text: str) -> EdgeQuery:
    query = prepare(text, STREAMS)
    assert isinstance(query, EdgeQuery), query
    return query


def test_aggregate_is_split_into_parts_that_merge_where_streams_meet() -> None:
    plan = lay_out(compiled(HIGH_USE), {"Readings": LEAVES}, TREE)
    entered = [f"HighUse/{kind}@{leaf}" for leaf in LEAVES for kind in ("filter", "map")]
    parts = ["HighUse/partial@n4", "HighUse/partial@n5", "HighUse/merge@n2", "HighUse/partial@n6"]
    closing = ["HighUse/final", "HighUse/having", "HighUse/map", "HighUse/sort"]
    assert [stage.operator for stage in plan.stages] == entered + parts + closing
    assert plan.lateness_us == 10_000_000
    placement = lowest_placement(plan, TREE)
    assert [placement[OperatorId(f"HighUse/{name}")] for name in ("filter@n4", "map@n4")] == ["n4", "n4"]
    assert placement[OperatorId("HighUse/partial@n4")] == "n4"
    assert placement[OperatorId("HighUse/merge@n2")] == "n2"
    assert placement[OperatorId("HighUse/final")] == "n1"
    graph = graph_of([plan])
    assert set(graph.upstream[OperatorId("HighUse/final")]) == {"HighUse/merge@n2", "HighUse/partial@n6"}


def test_aggregate_of_one_entry_is_one_operator() -> None:
    plan = lay_out(compiled(HIGH_USE), {"Readings": LEAVES[:1]}, TREE)
    names = [stage.operator.removeprefix("HighUse/") for stage in plan.stages]
    assert names == ["filter@n4", "map@n4", "aggregate", "having", "map", "sort"]


def test_only_needed_columns_leave_the_entry() -> None:
    query = compiled(HIGH_USE)
    assert [name for name, _ in query.sides[0].columns] == ["ts", "meter", "kwh"]


def test_result_columns_are_known_before_any_reading() -> None:
    schema = output_schema(compiled(HIGH_USE), STREAMS)
    assert not isinstance(schema, QueryRejected)
    assert [(field.name, str(field.type)) for field in schema] == [
        ("meter", "string"),
        ("since", "timestamp[us, tz=UTC]"),
        ("total", "double"),
        ("mean", "double"),
    ]


JOINED = (
    "CREATE EDGE QUERY Suspicious AS SELECT r.meter, r.kwh, a.level FROM Readings r JOIN Alarms a "
    "ON r.meter = a.meter AND a.at BETWEEN r.ts - INTERVAL 5 MINUTES AND r.ts + INTERVAL '1' MINUTE "
    "WHERE a.level > r.zone"
)


def test_bounds_of_a_join_may_name_the_streams_in_either_order() -> None:
    query = compiled(JOINED)
    swapped = compiled(
        JOINED.replace(
            "a.at BETWEEN r.ts - INTERVAL 5 MINUTES AND r.ts + INTERVAL '1' MINUTE",
            "r.ts BETWEEN a.at - INTERVAL 1 MINUTE AND a.at + INTERVAL 5 MINUTES",
        )
    )
    assert query.join == swapped.join
    assert query.join is not None
    assert (query.join.before_us, query.join.after_us) == (300_000_000, 60_000_000)
    assert query.residual is not None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CREATE QUERY x AS SELECT 1", QueryCode.SYNTAX),
        ("CREATE EDGE QUERY a;b AS SELECT meter FROM Readings", QueryCode.SYNTAX),
        ("CREATE EDGE QUERY x LATENESS soon AS SELECT meter FROM Readings", QueryCode.SYNTAX),
        ("CREATE EDGE QUERY x AS SELECT FROM WHERE", QueryCode.SYNTAX),
        ("CREATE EDGE QUERY x AS SELECT meter FROM Nowhere", QueryCode.UNKNOWN_STREAM),
        ("CREATE EDGE QUERY x AS SELECT 1", QueryCode.UNSUPPORTED),
        ("CREATE EDGE QUERY x AS SELECT volts FROM Readings", QueryCode.UNKNOWN_COLUMN),
        ("CREATE EDGE QUERY x AS SELECT kwh, SUM(kwh) FROM Readings GROUP BY WINDOW(ts, '1 hour')",
         QueryCode.UNKNOWN_COLUMN),
        ("CREATE EDGE QUERY x AS SELECT SUM(kwh) FROM Readings", QueryCode.UNBOUNDED),
        ("CREATE EDGE QUERY x AS SELECT meter, SUM(kwh) FROM Readings GROUP BY meter", QueryCode.UNBOUNDED),
        ("CREATE EDGE QUERY x AS SELECT meter FROM Readings ORDER BY meter", QueryCode.UNBOUNDED),
        ("CREATE EDGE QUERY x AS SELECT r.kwh FROM Readings r JOIN Alarms a ON r.meter = a.meter", QueryCode.UNBOUNDED),
        ("CREATE EDGE QUERY x AS SELECT * FROM Readings", QueryCode.UNSUPPORTED),
        ("CREATE EDGE QUERY x AS SELECT DISTINCT meter FROM Readings", QueryCode.UNSUPPORTED),
        ("CREATE EDGE QUERY x AS SELECT meter FROM Readings LIMIT 3", QueryCode.UNSUPPORTED),
        ("CREATE EDGE QUERY x AS SELECT meter FROM (SELECT * FROM Readings)", QueryCode.UNKNOWN_STREAM),
        ("CREATE EDGE QUERY x AS SELECT meter FROM Readings WHERE rand() > 0", QueryCode.UNSUPPORTED),
        ("CREATE EDGE QUERY x AS SELECT COUNT(DISTINCT meter) FROM Readings GROUP BY WINDOW(ts, '1 hour')",
         QueryCode.UNSUPPORTED),
        ("CREATE EDGE QUERY x AS SELECT APPROX_COUNT_DISTINCT(meter, 0.01) FROM Readings GROUP BY WINDOW(ts, '1 hour')",
         QueryCode.UNSUPPORTED),
        ("CREATE EDGE QUERY x AS SELECT COUNT(*) FROM Readings GROUP BY WINDOW(ts, '1 hour', '2 hours')",
         QueryCode.SYNTAX),
        ("CREATE EDGE QUERY x AS SELECT COUNT(*) FROM Readings GROUP BY WINDOW(ts, 'often')", QueryCode.SYNTAX),
        ("CREATE EDGE QUERY x AS SELECT meter FROM Readings WHERE meter + 1 > kwh", QueryCode.WRONG_TYPE),
        ("CREATE EDGE QUERY x AS SELECT SUM(meter) FROM Readings GROUP BY WINDOW(ts, '1 hour')", QueryCode.WRONG_TYPE),
    ],
)  # fmt: skip
def test_query_that_an_edge_node_cannot_run_is_rejected(text: str, code: QueryCode) -> None:
    rejected = prepare(text, STREAMS)
    assert isinstance(rejected, QueryRejected), rejected
    assert rejected.code is code, rejected
    assert rejected.reason
