"""An entry whose publishers have become silent holds nothing back, and what it has read still counts."""

from __future__ import annotations

import pytest

from tests.edge.edge_readings import STREAMS, in_seconds, readings
from tocsin.edge.layout import lay_out, lowest_placement
from tocsin.edge.messages import EdgeDeadlinePassed
from tocsin.edge.node import EdgeNode, EmitResult, Event, PieceReceived, ReadingsArrived, SendPiece
from tocsin.edge.operators.aggregate import AggregateRole
from tocsin.edge.query import EdgeQuery, parse_edge_query
from tocsin.model.edge import EdgeNodeId, Tree

ROOT, MIDDLE, LEFT, RIGHT = (EdgeNodeId(name) for name in ("root", "middle", "left", "right"))
TREE = Tree({MIDDLE: ROOT, LEFT: MIDDLE, RIGHT: ROOT}, ROOT)
SILENCE_S = 20.0


class Nodes:
    """A tree without delays."""

    def __init__(self, query: EdgeQuery) -> None:
        plan = lay_out(query, {"Readings": [LEFT, MIDDLE, RIGHT]}, TREE)
        assert any(stage.operator.endswith(f"/{AggregateRole.MERGING.value}@middle") for stage in plan.stages)
        placement = lowest_placement(plan, TREE)
        self.nodes = {
            node: EdgeNode(node, TREE, [plan], placement, 1_000_000, silence_s=SILENCE_S) for node in TREE.nodes
        }
        self.rows: list[tuple[object, ...]] = []

    def handle(self, node: EdgeNodeId, event: Event, now_s: float) -> None:
        for effect in self.nodes[node].handle(event, now_s):
            if isinstance(effect, SendPiece):
                self.handle(effect.receiver, PieceReceived(node, effect.piece), now_s)
            elif isinstance(effect, EmitResult) and effect.batch is not None:
                self.rows += in_seconds([effect.batch])

    def read(self, node: EdgeNodeId, at_s: float, kwh: float, now_s: float) -> None:
        self.handle(node, ReadingsArrived("Readings", readings((at_s, "a", kwh, 1)), f"meters of {node}"), now_s)


@pytest.mark.parametrize("first", [LEFT, MIDDLE])
def test_readings_of_silent_entries_count_in_windows_that_others_close(first: EdgeNodeId) -> None:
    """The partial and the merging operator below hold parts of an open window when their entries become silent."""
    text = (
        "CREATE EDGE QUERY Use AS SELECT meter, window.start AS since, SUM(kwh) AS total, COUNT(*) AS n FROM Readings "
        "GROUP BY meter, WINDOW(ts, '10 seconds')"
    )
    query = parse_edge_query(text, STREAMS)
    assert isinstance(query, EdgeQuery)
    tree = Nodes(query)
    tree.read(first, 3, 1.0, 0.0)
    tree.read(MIDDLE if first is LEFT else LEFT, 4, 2.0, 0.0)
    tree.read(RIGHT, 5, 4.0, 0.0)
    for node in (first, MIDDLE, LEFT):
        tree.handle(node, EdgeDeadlinePassed(), SILENCE_S + 1)
    tree.read(RIGHT, 33, 8.0, SILENCE_S + 1)
    assert tree.rows == [("a", 0.0, 7.0, 3)]
    tree.read(LEFT, 34, 16.0, SILENCE_S + 2)
    tree.read(RIGHT, 55, 8.0, SILENCE_S + 2)
    tree.read(LEFT, 55, 8.0, SILENCE_S + 2)
    assert tree.rows[1:] == [("a", 30.0, 24.0, 2)], "a silent entry that returns is waited for again"
