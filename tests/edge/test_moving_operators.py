"""Operators that move while they work give the results of a run without moves [AMI §2.1.3.2, figure 6].

The thesis accepts inaccurate windows after a transfer of a stateful operator. Here readings, pieces on links, messages
(lost, late, out of order) and transfers are interleaved at random, and no row may differ.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.edge.edge_city import City
from tests.edge.edge_readings import STREAMS, alarm_batches, alarms, in_seconds, reading_batches, readings
from tocsin.edge.layout import lay_out, lowest_placement, prepare
from tocsin.edge.messages import EdgeCode, MessageType, Parcel, PeerDied, PeriodElapsed, Piece
from tocsin.edge.node import PieceReceived, ReadingsArrived, RejectData
from tocsin.edge.operators.aggregate import AggregateRole, WindowAggregateSpec
from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, END_OF_TIME_US
from tocsin.edge.operators.stateless import Call, ColumnRef, Constant, Filter
from tocsin.edge.plan import QueryPlan
from tocsin.edge.query import EdgeQuery
from tocsin.model.edge import EdgeNodeId, OperatorId, Tree, Usage
from tocsin.policies.operators.transfer import TransferRules, TransferThresholds

N = {number: EdgeNodeId(f"n{number}") for number in range(1, 8)}
TREE = Tree.perfect_binary(7)
DEEP = Tree({N[2]: N[1], N[3]: N[2], N[4]: N[3]}, N[1])
QUERIES = {
    "exact": "CREATE EDGE QUERY q AS SELECT meter, window.start AS since, SUM(kwh) AS total, COUNT(*) AS n "
    "FROM Readings GROUP BY meter, WINDOW(ts, '20 seconds')",
    "again": "CREATE EDGE QUERY p AS SELECT meter, window.start AS since, SUM(kwh) AS total, COUNT(*) AS n "
    "FROM Readings GROUP BY meter, WINDOW(ts, '20 seconds')",
    "windows": "CREATE EDGE QUERY q LATENESS 20 SECONDS AS SELECT meter, window.start AS since, SUM(kwh) AS total, "
    "COUNT(*) AS n FROM Readings WHERE zone = 1 GROUP BY meter, WINDOW(ts, '40 seconds', '20 seconds') HAVING n > 0",
    "ordered": "CREATE EDGE QUERY q LATENESS 200 SECONDS AS SELECT ts, meter, kwh, zone FROM Readings "
    "ORDER BY ts, meter, kwh, zone",
    "joined": "CREATE EDGE QUERY q LATENESS 200 SECONDS AS SELECT r.ts, r.meter, r.kwh, a.level FROM Readings r "
    "JOIN Alarms a ON r.meter = a.meter AND a.at BETWEEN r.ts - INTERVAL 10 SECONDS AND r.ts + INTERVAL 30 SECONDS",
}


def plan_of(name: str, entries: dict[str, list[EdgeNodeId]], tree: Tree = DEEP) -> QueryPlan:
    query = prepare(QUERIES[name], STREAMS)
    assert isinstance(query, EdgeQuery), query
    return lay_out(query, entries, tree)


def test_aggregate_moving_up_keeps_its_open_windows_and_queued_tuples() -> None:
    plan = plan_of("windows", {"Readings": [N[4]]})
    city = City(DEEP, plan, lowest_placement(plan, DEEP))
    aggregate = next(stage.operator for stage in plan.stages if "aggregate" in stage.operator)
    city.read(N[4], "Readings", readings((1, "a", 1.0, 1)))
    ordered = next(
        move for node, move in city.possible_moves() if aggregate in move.operators and move.destination == N[3]
    )
    city.order(N[4], ordered)
    city.read(N[4], "Readings", readings((2, "a", 2.0, 1)))  # while the operator is in transit
    assert city.nodes[N[4]].dataflow.usage().memory_pct > 0
    city.settle()
    assert aggregate in city.nodes[N[3]].dataflow.running
    city.read(N[4], "Readings", readings((3, "a", 4.0, 1)))
    assert city.finish({"Readings": [N[4]]}) == [("a", -20.0, 7.0, 3), ("a", 0.0, 7.0, 3)]


def test_tuples_that_passed_an_operator_moving_down_are_processed_first() -> None:
    plan = plan_of("ordered", {"Readings": [N[4]]})
    everything = [stage.operator for stage in plan.stages]
    city = City(DEEP, plan, dict.fromkeys(everything, N[3]))
    city.read(N[4], "Readings", readings((1, "a", 1.0, 1)))  # on the link to n3, not yet delivered
    down = next(move for _, move in city.possible_moves() if set(move.operators) == set(everything))
    down = type(down)(down.operators, N[4])
    city.order(N[3], down)
    city.deliver(0)  # n4 now holds the operators and accepts
    city.read(N[4], "Readings", readings((2, "b", 1.0, 1)))
    city.deliver(0)  # n3 receives the acceptance, but not yet the data that n4 sent before it
    assert not city.messages
    city.carry(N[4])
    city.settle()
    assert set(everything) <= city.nodes[N[4]].dataflow.running
    assert city.finish({"Readings": [N[4]]}) == [(1.0, "a", 1.0, 1), (2.0, "b", 1.0, 1)]


@pytest.mark.parametrize(
    "lost", [MessageType.OP_OFFER_TRANSFER_REQUEST, MessageType.OP_OFFER_TRANSFER_REPLY, MessageType.CLEAR]
)
def test_hand_over_completes_after_the_loss_of_any_message(lost: MessageType) -> None:
    plan = plan_of("windows", {"Readings": [N[4]]})
    city = City(DEEP, plan, lowest_placement(plan, DEEP))
    city.read(N[4], "Readings", readings((1, "a", 1.0, 1)))
    node, move = next(
        (node, move) for node, move in city.possible_moves() if move.destination == N[3] and len(move.operators) > 1
    )
    city.order(node, move)
    while city.messages[0].type is not lost:
        city.deliver(0)
    city.messages.clear()
    city.read(N[4], "Readings", readings((2, "a", 2.0, 1)))
    assert city.finish({"Readings": [N[4]]}) == [("a", -20.0, 3.0, 2), ("a", 0.0, 3.0, 2)]
    assert set(move.operators) <= city.nodes[N[3]].dataflow.running


def test_memory_is_state_plus_queued_data() -> None:
    plan = plan_of("ordered", {"Readings": [N[4]]})
    city = City(DEEP, plan, lowest_placement(plan, DEEP))
    flow = city.nodes[N[4]].dataflow
    city.read(N[4], "Readings", readings((1, "a", 1.0, 1)))
    state_pct = flow.usage().memory_pct
    assert state_pct > 0
    node, move = next((node, move) for node, move in city.possible_moves() if len(move.operators) > 1)
    city.order(node, move)
    batch = readings(*[(2.0, "b", 1.0, 1)] * 100)
    city.read(N[4], "Readings", batch)
    assert flow.usage().memory_pct == pytest.approx(state_pct + 100 * batch.nbytes / 1_000_000)


def test_node_with_full_memory_hands_an_aggregate_to_its_parent() -> None:
    """The whole protocol with real operators: state is measured, offered, accepted and moved; no window loses a row."""
    plans = [plan_of("exact", {"Readings": [N[4]]}), plan_of("again", {"Readings": [N[4]]})]
    placement = lowest_placement(plans[0], DEEP) | lowest_placement(plans[1], DEEP)
    city = City(
        DEEP,
        plans,
        placement,
        memory_bytes=80_000,
        rules=TransferRules(TransferThresholds(lower_pct=-20, upper_pct=60)),
    )
    aggregates = {operator for operator in placement if "aggregate" in operator}
    for step in range(8):
        rows = [(float(step), f"meter {step} {number}", 1.0, 1) for number in range(100)]
        city.read(N[4], "Readings", readings(*rows))
        for node in (N[4], N[3], N[2], N[1]):
            city.handle(node, PeriodElapsed())
            city.settle()
    assert len(aggregates & city.nodes[N[4]].dataflow.running) == 1
    assert len(aggregates & city.nodes[N[3]].dataflow.running) == 1
    assert all(node.dataflow.usage().memory_pct <= 60 for node in city.nodes.values())
    assert len(city.finish({"Readings": [N[4]]})) == 2 * 800


def test_giver_resumes_its_own_copy_when_the_taker_dies() -> None:
    plan = plan_of("exact", {"Readings": [N[4]]})
    city = City(DEEP, plan, dict.fromkeys((stage.operator for stage in plan.stages), N[3]))
    city.read(N[4], "Readings", readings((1, "a", 1.0, 1)))
    city.settle()
    city.order(*next((node, move) for node, move in city.possible_moves() if move.destination == N[4]))
    city.read(N[4], "Readings", readings((2, "a", 2.0, 1)))
    city.carry(N[4])  # reaches n3 while the operators are frozen there
    city.messages.clear()
    city.handle(N[3], PeerDied(N[4]))
    assert set(city.nodes[N[3]].dataflow.running) == {stage.operator for stage in plan.stages}
    for stage in plan.stages:
        if "aggregate" in stage.operator:
            usage = city.nodes[N[3]].dataflow.usage_of([stage.operator])
            assert usage.memory_pct > 0
    city.handle(N[3], PieceReceived(N[4], Piece(plan.stages[0].operator, 0, None, END_OF_TIME_US)))
    city.settle()
    assert in_seconds(city.results) == [("a", 0.0, 3.0, 2)]


def test_usage_includes_cpu_and_network_observed_by_the_driver() -> None:
    plan = plan_of("exact", {"Readings": [N[4]]})
    flow = City(DEEP, plan, lowest_placement(plan, DEEP)).nodes[N[4]].dataflow
    first, second = (stage.operator for stage in plan.stages[:2])
    flow.observed[first] = Usage(cpu_pct=30.0, network_pct=2.0)
    flow.observed[second] = Usage(cpu_pct=5.0)
    assert (flow.usage().cpu_pct, flow.usage().network_pct) == (35.0, 2.0)


def test_invalid_pieces_readings_and_states_are_rejected_without_effect() -> None:
    plan = plan_of("exact", {"Readings": [N[4]]})
    first = plan.stages[0].operator
    node = City(DEEP, plan, dict.fromkeys((stage.operator for stage in plan.stages), N[3])).nodes[N[3]]
    top = City(DEEP, plan, dict.fromkeys((stage.operator for stage in plan.stages), N[3])).nodes[N[1]]
    piece = Piece(first, 0, readings((1, "a", 1.0, 1)))
    unknown_operator, unknown_port = Piece(OperatorId("?"), 0, None, 5), Piece(first, 9, None, 5)
    for sender, wrong in ((N[2], piece), (N[4], unknown_operator), (N[4], unknown_port)):
        assert node.handle(PieceReceived(sender, wrong), 0.0) == [RejectData(sender, EdgeCode.UNKNOWN_OPERATOR)]
    assert top.handle(PieceReceived(N[2], piece), 0.0) == [RejectData("n2", EdgeCode.UNKNOWN_OPERATOR)]
    leaf = City(DEEP, plan, lowest_placement(plan, DEEP)).nodes[N[4]]
    wrong_columns = ReadingsArrived("Readings", alarms((1, "a", 1)))
    assert leaf.handle(wrong_columns, 0.0) == [RejectData("Readings", EdgeCode.WRONG_COLUMNS)]
    for state in (b"", b"nonsense of some length", (1 << 60).to_bytes(8, "little") + b"{"):
        assert not leaf.dataflow.hold([Parcel(OperatorId("q/1-aggregate"), Usage(), state)])
    assert leaf.dataflow.usage().memory_pct == 0


def run_with_moves(
    name: str,
    tree: Tree,
    entries: dict[str, list[EdgeNodeId]],
    feed: list[tuple[str, EdgeNodeId, pa.RecordBatch]],
    seed: int | None,
) -> tuple[list[tuple[object, ...]], int]:
    """Run a query and return its results and the number of moves.

    Without a seed no operator moves. With a seed operators start low or all at the root, and actions are random.
    """
    plan = plan_of(name, entries, tree)
    placement = lowest_placement(plan, tree)
    chance = random.Random(seed)
    if seed is not None and chance.random() < 0.5:
        placement = dict.fromkeys(placement, tree.root)
    city = City(tree, plan, placement)
    for stream, node, batch in feed:
        city.read(node, stream, batch)
        if seed is None:
            city.settle()
        for _ in range(chance.randrange(24) if seed is not None else 0):
            _act_at_random(city, chance)
    return city.finish(entries), city.moves


def _act_at_random(city: City, chance: random.Random) -> None:
    links = [child for child, pieces in city.links.items() if pieces]
    action = chance.choices(["move", "carry", "deliver", "lose", "time out"], [3, 12, 8, 1, 3])[0]
    if action == "move" and (moves := city.possible_moves()):
        city.order(*chance.choice(moves))
    elif action == "carry" and links:
        city.carry(chance.choice(links))
    elif action == "deliver" and city.messages:
        city.deliver(chance.randrange(len(city.messages)))
    elif action == "lose" and city.messages:
        city.messages.pop(chance.randrange(len(city.messages)))
    elif action == "time out":
        city.time_out(chance.choice(list(city.nodes)))


feeds = st.lists(st.sampled_from([4, 5, 6, 7]), min_size=6, max_size=6)
seeds = st.integers(0, 2**32 - 1)
SLOW = settings(max_examples=60, suppress_health_check=list(HealthCheck))
FEW = settings(SLOW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
"""Without shrinking: another seed is another walk, not a smaller one."""


@FEW
@given(reading_batches, feeds, seeds)
def test_sorted_readings_are_the_same_with_and_without_transfers(
    batches: list[pa.RecordBatch], nodes: list[int], seed: int
) -> None:
    entries = {"Readings": [N[number] for number in (4, 5, 6, 7)]}
    feed = [("Readings", N[node], batch) for node, batch in zip(nodes, batches, strict=False)]
    moved, _ = run_with_moves("ordered", TREE, entries, feed, seed)
    still, _ = run_with_moves("ordered", TREE, entries, feed, None)
    assert moved == still, "rows and their order"


@FEW
@given(reading_batches, seeds)
def test_windows_and_late_readings_are_the_same_with_and_without_transfers(
    batches: list[pa.RecordBatch], seed: int
) -> None:
    """With one entry the late readings do not depend on the order in which streams are interleaved."""
    entries = {"Readings": [N[4]]}
    feed = [("Readings", N[4], batch) for batch in batches]
    moved, _ = run_with_moves("windows", DEEP, entries, feed, seed)
    still, _ = run_with_moves("windows", DEEP, entries, feed, None)
    assert moved == still


@FEW
@given(reading_batches, alarm_batches, seeds)
def test_joined_rows_are_the_same_with_and_without_transfers(
    batches: list[pa.RecordBatch], others: list[pa.RecordBatch], seed: int
) -> None:
    entries = {"Readings": [N[4], N[5]], "Alarms": [N[6]]}
    feed = [("Readings", N[4 + number % 2], batch) for number, batch in enumerate(batches)]
    feed += [("Alarms", N[6], batch) for batch in others]
    mixed = random.Random(seed).sample(feed, len(feed))
    moved, _ = run_with_moves("joined", TREE, entries, mixed, seed)
    still, _ = run_with_moves("joined", TREE, entries, feed, None)
    assert Counter(moved) == Counter(still)


@FEW
@given(reading_batches, feeds)
def test_parts_of_an_aggregate_give_the_results_of_one_operator(
    batches: list[pa.RecordBatch], nodes: list[int]
) -> None:
    entries = [N[number] for number in (4, 5, 6, 7)]
    plan = plan_of("windows", {"Readings": entries}, TREE)
    city = City(TREE, plan, lowest_placement(plan, TREE))
    (spec,) = (stage.spec for stage in plan.stages if stage.operator.endswith("-final"))
    assert isinstance(spec, WindowAggregateSpec)
    alone = replace(spec, role=AggregateRole.WHOLE).create()
    in_zone = Filter(Call("=", (ColumnRef("zone"), Constant(1))))
    newest_us = dict.fromkeys(entries, BEGINNING_OF_TIME_US)
    results: list[pa.RecordBatch] = []
    for node, batch in zip(nodes, batches, strict=False):
        city.read(N[node], "Readings", batch)
        city.settle()
        for kept in in_zone.on_batch(0, batch, 0):
            results += alone.on_batch(0, kept, min(newest_us.values()))
        times = [at.value for at in batch.column("ts") if at.is_valid]
        newest_us[N[node]] = max([newest_us[N[node]], *(at - plan.lateness_us for at in times)])
        if (alone.notify_at() or END_OF_TIME_US) <= min(newest_us.values()):
            results += alone.on_notify(min(newest_us.values()))
    results += alone.on_notify(END_OF_TIME_US)
    split = city.finish({"Readings": entries})
    assert Counter(split) == Counter((meter, since, total, n) for meter, total, n, since, _ in in_seconds(results))
    assert city.late_rows() == alone.late_rows


@pytest.mark.parametrize("seed", range(25))
def test_parts_of_an_aggregate_stay_exact_while_its_operators_move(seed: int) -> None:
    """Every reading is in one part, and every part in one result."""
    leaves = [N[number] for number in (4, 5, 6, 7)]
    feed = [
        ("Readings", leaf, readings(*((float(start + step), "a", 0.25, 1) for step in range(10))))
        for start in range(0, 100, 10)
        for leaf in leaves
    ]
    rows, moves = run_with_moves("exact", TREE, {"Readings": leaves}, feed, seed)
    assert rows == [("a", float(start), 20.0, 80) for start in range(0, 100, 20)]
    assert moves >= 1


@pytest.mark.parametrize("seed", range(25))
def test_windows_stay_exact_through_long_walks_on_a_deep_tree(seed: int) -> None:
    """Times rise and every window is counted, so a tuple lost, repeated or overtaken by a watermark is visible."""
    feed = [
        ("Readings", N[4], readings(*((float(start + step), "a", 1.0, 1) for step in range(10))))
        for start in range(0, 400, 10)
    ]
    rows, moves = run_with_moves("exact", DEEP, {"Readings": [N[4]]}, feed, seed)
    assert rows == [("a", float(start), 20.0, 20) for start in range(0, 400, 20)]
    assert moves >= 1


def test_random_transfers_really_move_operators() -> None:
    """A check of the tests above: a fixed series of such transfers moves operators and their state."""
    plan = plan_of("ordered", {"Readings": [N[4], N[5]]}, TREE)
    city = City(TREE, plan, lowest_placement(plan, TREE))
    for number in range(30):
        city.read(N[4 + number % 2], "Readings", readings((float(number), "a", 1.0, 1)))
        moves = city.possible_moves()
        city.order(*moves[(number * 7) % len(moves)])
        city.settle()
    assert city.moves >= 25
    assert [row[0] for row in city.finish({"Readings": [N[4], N[5]]})] == [float(number) for number in range(30)]


def test_join_of_streams_at_two_leaves_by_hand() -> None:
    entries = {"Readings": [N[4]], "Alarms": [N[5]]}
    feed = [("Readings", N[4], readings((100, "a", 1.5, 1))), ("Alarms", N[5], alarms((95, "a", 2), (89, "a", 3)))]
    rows, _ = run_with_moves("joined", TREE, entries, feed, None)
    assert rows == [(100.0, "a", 1.5, 2)]


def test_operator_ids_of_a_plan_are_unique() -> None:
    plan = plan_of("joined", {"Readings": [N[4], N[5]], "Alarms": [N[6]]}, TREE)
    assert len({stage.operator for stage in plan.stages}) == len(plan.stages)
    assert plan.result_of == OperatorId("q/5-map")
