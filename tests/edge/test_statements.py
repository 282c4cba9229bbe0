"""The statements of an edge application, and what a live query says about time."""

from __future__ import annotations

import pytest

from tests.edge.edge_readings import STREAMS
from tocsin.edge.layout import lay_out, prepare
from tocsin.edge.plan import History
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
    ("select", "horizons_us"),
    [
        ("SELECT COUNT(*) AS n FROM Readings GROUP BY WINDOW(ts, '9 seconds', '3 seconds')", {"Readings": -6_000_001}),
        ("SELECT COUNT(*) AS n FROM Readings GROUP BY WINDOW(ts, '9 seconds')", {"Readings": -1}),
        ("SELECT ts, kwh FROM Readings ORDER BY ts", {"Readings": 1_999_999}),
        ("SELECT r.ts, a.at FROM Readings r JOIN Alarms a ON r.meter = a.meter AND a.at BETWEEN "
         "r.ts - INTERVAL 2 SECONDS AND r.ts + INTERVAL 7 SECONDS ORDER BY a.at",
         {"Readings": -5_000_001, "Alarms": -1}),
    ],
)  # fmt: skip
def test_plan_knows_which_readings_count_above_a_floor_of_two_seconds(select: str, horizons_us: dict[str, int]) -> None:
    query = compiled(f"CREATE EDGE QUERY x AS {select}")
    assert query.is_ordered
    node = EdgeNodeId("n")
    plan = lay_out(query, {"Readings": [node], "Alarms": [node]}, Tree({}, node))
    assert {stream: plan.horizon_us(stream, 2_000_000) for stream in horizons_us} == horizons_us


def test_readings_are_needed_from_the_start_of_the_oldest_open_window() -> None:
    history = History(size_us=10, slide_us=5)
    for floor_us in range(-20, 40):
        starts = [start for start in range(-50, 60, 5) if start + 10 > floor_us]
        assert history.horizon_us(floor_us) == min(starts) - 1


def test_rows_without_windows_or_order_come_in_no_order_of_time() -> None:
    assert not compiled("CREATE EDGE QUERY x AS SELECT ts, kwh FROM Readings").is_ordered
