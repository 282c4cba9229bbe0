"""Inboxes, credits and load: a burst overloads a node by its backlog, and no node is sent more than it granted."""

from __future__ import annotations

import pytest

from tests.edge.edge_city import City
from tests.edge.edge_readings import STREAMS, readings
from tocsin.edge.inbox import PIECE_OVERHEAD_BYTES, cost_bytes
from tocsin.edge.layout import lay_out, lowest_placement, prepare
from tocsin.edge.load import LoadMeter, NodeBudget
from tocsin.edge.messages import PeriodElapsed, Piece
from tocsin.edge.node import EdgeNode, ReadingsArrived
from tocsin.edge.query import EdgeQuery
from tocsin.model.edge import EdgeNodeId, OperatorId, Tree, Usage
from tocsin.policies.operators.transfer import SCARCEST, Band, TransferRules, TransferThresholds

ROOT, LEAF = EdgeNodeId("root"), EdgeNodeId("leaf")
TREE = Tree({LEAF: ROOT}, ROOT)
QUERY = prepare("CREATE EDGE QUERY q AS SELECT ts, meter, kwh, zone FROM Readings ORDER BY ts, meter", STREAMS)
assert isinstance(QUERY, EdgeQuery)
PLAN = lay_out(QUERY, {"Readings": [LEAF]}, TREE)
BATCH = readings(*[(1.0, "a", 1.0, 1)] * 100)


def test_burst_of_readings_overloads_a_node_before_any_is_processed() -> None:
    rules = TransferRules(measure=SCARCEST)
    node = EdgeNode(LEAF, TREE, [PLAN], lowest_placement(PLAN, TREE), 10 * BATCH.nbytes, rules, has_inbox=True)
    for _ in range(7):
        node.handle(ReadingsArrived("Readings", BATCH), 0.0)
    assert node.dataflow.usage().memory_pct == pytest.approx(70)
    assert rules.band(node.dataflow.usage()) is Band.OVERLOADED
    assert node.dataflow.usage_of([OperatorId("q/map@leaf")]).memory_pct == pytest.approx(70)
    assert not node.has_room, "the entry stops to read at half the memory"


def test_child_sends_what_is_granted_and_stops_when_too_much_waits() -> None:
    """All operators are at the root, so readings travel. The root processes nothing, then everything."""
    memory_bytes = 8 * BATCH.nbytes
    city = City(TREE, PLAN, dict.fromkeys(lowest_placement(PLAN, TREE), ROOT), memory_bytes, has_inbox=True)
    leaf, root = city.nodes[LEAF], city.nodes[ROOT]
    city.read(LEAF, "Readings", BATCH)
    city.process(LEAF)
    assert not city.links[LEAF], "no credit yet"
    city.credit(LEAF)
    assert len(city.links[LEAF]) > 0
    for _ in range(12):
        city.read(LEAF, "Readings", BATCH)
    while leaf.has_work:
        city.process(LEAF)
    while city.links[LEAF]:
        city.carry(LEAF)
    assert root.dataflow.inbox.size_bytes <= memory_bytes // 2 + BATCH.nbytes, "one piece may exceed the credit"
    assert leaf.dataflow.uplink.waiting_bytes <= memory_bytes // 4 + 2 * cost_bytes(Piece(OperatorId("q"), 0, BATCH))
    assert len(leaf.dataflow.inbox) > 0, "the backlog has reached the entry"
    assert leaf.dataflow.usage().memory_pct > 60
    assert len(city.finish({"Readings": [LEAF]})) == 13 * 100


def test_watermarks_cost_credit_too() -> None:
    assert cost_bytes(Piece(OperatorId("q"), 0, None, 5)) == PIECE_OVERHEAD_BYTES


def test_load_is_the_largest_share_of_any_budget() -> None:
    assert SCARCEST.load_pct(Usage(10, 70, 30)) == 70
    assert SCARCEST.load_pct(Usage(10, 7, 30)) == 30
    assert SCARCEST.load_pct(Usage(80, 7, 30)) == 80


def test_processor_and_uplink_are_measured_in_percent_of_the_budget() -> None:
    meter = LoadMeter(NodeBudget(1_000, cpu_share=0.5, uplink_bytes_per_s=1_000))
    sort, join = OperatorId("sort"), OperatorId("join")
    assert meter.measure(100.0) is None
    meter.worked(sort, 0.5)
    meter.worked(sort, 0.5)
    meter.sent(join, 2_500)
    assert meter.measure(105.0) == {sort: Usage(0, 40.0, 0.0), join: Usage(0, 0.0, 50.0)}
    assert meter.measure(110.0) == {}


@pytest.mark.parametrize(("arrived", "expected_pct"), [(1_000, 50.0), (2_500, 125.0), (400, 20.0), (9_000, 200.0)])
def test_processor_load_is_the_demand_of_the_data_that_arrives(arrived: int, expected_pct: float) -> None:
    """A backlog that grows means more demand than was measured, and one that shrinks means less."""
    meter = LoadMeter(NodeBudget(1_000, cpu_share=0.5))
    sort, join = OperatorId("sort"), OperatorId("join")
    meter.measure(100.0)
    meter.arrived(arrived + 300)
    meter.arrived(-300)
    meter.worked(sort, 0.75)
    meter.worked(join, 0.25)
    meter.processed(1_000, 1.25)
    usages = meter.measure(105.0)
    assert usages is not None
    assert usages[sort].cpu_pct + usages[join].cpu_pct == pytest.approx(expected_pct)
    assert usages[sort].cpu_pct == pytest.approx(3 * usages[join].cpu_pct), "the rest is divided like the work"
    assert meter.measure(110.0) == {}


def test_node_that_computes_too_much_is_overloaded_with_little_memory() -> None:
    """The clock advances by a second per call: each operator takes a second, and so does each step between them."""
    seconds = iter(range(1_000))
    rules = TransferRules(TransferThresholds(), SCARCEST)
    budget = NodeBudget(1 << 30, cpu_share=0.5)
    placement = lowest_placement(PLAN, TREE)
    node = EdgeNode(LEAF, TREE, [PLAN], placement, budget, rules, cpu_clock=lambda: float(next(seconds)))
    node.handle(PeriodElapsed(), 0.0)
    node.handle(ReadingsArrived("Readings", BATCH), 1.0)
    node.handle(PeriodElapsed(), 5.0)
    usage = node.dataflow.usage()
    assert usage.memory_pct < 1
    assert usage.cpu_pct == pytest.approx(100 * (2 * len(PLAN.stages) + 1) / (5 * 0.5))
    assert rules.band(usage) is Band.OVERLOADED


@pytest.mark.parametrize("destination", ["root", "leaf"])
def test_operators_leave_a_node_without_waiting_for_its_backlog(destination: str) -> None:
    """Node `mid` has 20 batches in its inbox and processes none of them before its operators have moved."""
    mid = EdgeNodeId("mid")
    tree = Tree({mid: ROOT, LEAF: mid}, ROOT)
    assert isinstance(QUERY, EdgeQuery)
    plan = lay_out(QUERY, {"Readings": [LEAF]}, tree)
    everything = [stage.operator for stage in plan.stages]
    city = City(tree, plan, dict.fromkeys(everything, mid), has_inbox=True)
    for child in (mid, LEAF):
        city.credit(child)
    for second in range(20):
        city.read(LEAF, "Readings", readings((float(second), "a", 1.0, 1)))
        city.process(LEAF)
    for _ in range(10):
        city.carry(LEAF)
    assert len(city.nodes[mid].dataflow.inbox) == 10
    move = next(
        move
        for node, move in city.possible_moves()
        if node == mid and move.destination == destination and set(move.operators) == set(everything)
    )
    city.order(mid, move)
    city.deliver(0)
    while city.links[LEAF]:
        city.carry(LEAF)
    while city.messages:
        city.deliver(0)
    assert set(city.nodes[EdgeNodeId(destination)].dataflow.running) == set(everything)
    assert city.moves == 1
    assert [row[0] for row in city.finish({"Readings": [LEAF]})] == [float(second) for second in range(20)]
