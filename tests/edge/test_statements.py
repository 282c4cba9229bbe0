"""The statements of an edge application, and what a live query says about time."""

from __future__ import annotations

import pytest

from tests.edge.edge_readings import STREAMS
from tocsin.edge.layout import lay_out, prepare
from tocsin.edge.query import EdgeQuery, QueryCode, QueryRejected
from tocsin.edge.statements import parse_statements
from tocsin.edge.tree_events import QueryDeployed, QueryDropped, StreamDeclared
from tocsin.model.edge import EdgeNodeId, Tree

APPLICATION = """
-- Meters; of one district
CREATE EDGE STREAM Readings (meter STRING, ts TIMESTAMP, kwh DOUBLE) TIME ts;
CREATE EDGE QUERY Use LATENESS 10 SECONDS INTO UseByHour AS
SELECT meter, SUM(kwh) AS total FROM Readings WHERE meter <> 'a;b' GROUP BY meter, WINDOW(ts, '1 hour');
DROP EDGE QUERY Old
"""


def compiled(text: str) -> EdgeQuery:
    query = prepare(text, STREAMS)
    assert isinstance(query, EdgeQuery), query
    return query


def test_application_is_a_list_of_statements() -> None:
    statements = parse_statements(APPLICATION)
    assert not isinstance(statements, QueryRejected)
    declared, deployed, dropped = statements
    assert isinstance(declared, StreamDeclared)
    assert (declared.name, declared.stream.time) == ("Readings", "ts")
    assert [column.type for column in declared.stream.schema.columns] == ["STRING", "TIMESTAMP", "DOUBLE"]
    assert isinstance(deployed, QueryDeployed)
    query = prepare(deployed.text, {declared.name: declared.stream})
    assert isinstance(query, EdgeQuery)
    assert (query.name, query.dataset, query.lateness_us) == ("Use", "UseByHour", 10_000_000)
    assert dropped == QueryDropped("Old")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CREATE TABLE x", QueryCode.SYNTAX),
        ("CREATE EDGE STREAM S (a STRING)", QueryCode.SYNTAX),
        ("CREATE EDGE STREAM S (a STRING, A STRING) TIME a", QueryCode.SYNTAX),
        ("CREATE EDGE STREAM S (a STRING) TIME a", QueryCode.WRONG_TYPE),
        ("CREATE EDGE STREAM S (a TIMESTAMP) TIME b", QueryCode.WRONG_TYPE),
        ("CREATE EDGE STREAM S (a ARRAY<INT>, t TIMESTAMP) TIME t", QueryCode.WRONG_TYPE),
        ("CREATE EDGE STREAM S (a TIMESTAMP, b) TIME a", QueryCode.SYNTAX),
    ],
)
def test_wrong_statement_is_rejected(text: str, code: QueryCode) -> None:
    rejected = parse_statements(text)
    assert isinstance(rejected, QueryRejected) and rejected.code is code


def test_results_without_into_go_to_a_dataset_named_like_the_query() -> None:
    assert compiled("CREATE EDGE QUERY x AS SELECT ts FROM Readings ORDER BY ts").dataset == "x"
    rejected = prepare("CREATE EDGE QUERY x INTO a-b AS SELECT ts FROM Readings ORDER BY ts", STREAMS)
    assert isinstance(rejected, QueryRejected) and rejected.code is QueryCode.SYNTAX


@pytest.mark.parametrize(
    ("select", "histories_us"),
    [
        ("SELECT COUNT(*) AS n FROM Readings GROUP BY WINDOW(ts, '9 seconds', '3 seconds')", {"Readings": 9_000_000}),
        ("SELECT ts, kwh FROM Readings ORDER BY ts", {"Readings": 1}),
        ("SELECT r.ts, a.at FROM Readings r JOIN Alarms a ON r.meter = a.meter AND a.at BETWEEN "
         "r.ts - INTERVAL 2 SECONDS AND r.ts + INTERVAL 7 SECONDS ORDER BY a.at",
         {"Readings": 7_000_001, "Alarms": 2_000_001}),
    ],
)  # fmt: skip
def test_plan_knows_how_long_a_reading_can_count(select: str, histories_us: dict[str, int]) -> None:
    query = compiled(f"CREATE EDGE QUERY x AS {select}")
    assert query.is_ordered
    node = EdgeNodeId("n")
    plan = lay_out(query, {"Readings": [node], "Alarms": [node]}, Tree({}, node))
    assert {stream: plan.history_us(stream) for stream in histories_us} == histories_us


def test_rows_without_windows_or_order_come_in_no_order_of_time() -> None:
    assert not compiled("CREATE EDGE QUERY x AS SELECT ts, kwh FROM Readings").is_ordered
