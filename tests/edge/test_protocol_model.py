"""The protocol: model checking of small worlds and random walks through larger ones.

In every reachable state exactly one node holds an operator (two only during a hand-over), at most one runs it, no node
has accepted operators above U_t, and all streams flow upwards. From every state the network reaches a state without
pending work in which each operator runs at exactly one node.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.edge.edge_interleavings import ROOMY, RULES, Budget, Network
from tests.edge.edge_worlds import World, small_world, worlds
from tocsin.model.edge import OperatorId
from tocsin.policies.operators.transfer import TransferRules

PAIR = {"n1": "n0"}
CHAIN = {"n1": "n0", "n2": "n1"}

FULL_AND_EMPTY = small_world(PAIR, {"a": "n0", "b": "n0", "c": "n1"}, {})
FULL_BETWEEN_EMPTY = small_world(CHAIN, {"a": "n1", "b": "n1", "c": "n2"}, {})
FULL_BELOW_FULL = small_world(CHAIN, {"a": "n2", "b": "n2", "c": "n1", "d": "n1"}, {})
FEEDING = small_world(PAIR, {"u": "n1", "v": "n0", "x": "n0", "y": "n1"}, {"u": ("v",)})

CASES = {
    "simultaneous rounds of an overloaded parent and an underloaded child, messages are lost": (
        FULL_AND_EMPTY, {"a": 10.0, "b": 55.0, "c": 15.0}, Budget(periods=2, time_outs=1, losses=1),
    ),
    "simultaneous rounds of an overloaded parent and an underloaded child, messages are repeated": (
        FULL_AND_EMPTY, {"a": 10.0, "b": 55.0, "c": 15.0}, Budget(periods=2, time_outs=1, repetitions=1),
    ),
    "a full node between two underloaded nodes": (
        FULL_BETWEEN_EMPTY, {"a": 8.0, "b": 54.0, "c": 30.0}, Budget(periods=2, time_outs=0, losses=1),
    ),
    "a node makes room for its child while messages are lost": (
        FULL_BELOW_FULL, {"a": 15.0, "b": 55.0, "c": 12.0, "d": 40.0},
        Budget(periods=1, time_outs=1, losses=1, repetitions=1),
    ),
    "a node that makes room, its child or its parent dies": (
        FULL_BELOW_FULL, {"a": 15.0, "b": 55.0, "c": 12.0, "d": 40.0}, Budget(periods=1, time_outs=2, deaths=1),
    ),
    "a taker or a giver dies": (
        FULL_AND_EMPTY, {"a": 10.0, "b": 55.0, "c": 15.0}, Budget(periods=2, time_outs=1, deaths=1),
    ),
    "a node of a chain dies": (
        FULL_BETWEEN_EMPTY, {"a": 8.0, "b": 54.0, "c": 30.0}, Budget(periods=1, time_outs=1, deaths=1),
    ),
    "the full node becomes empty and the empty one full while operators that feed each other move": (
        FEEDING, {"u": 8.0, "v": 8.0, "x": 54.0, "y": 30.0},
        Budget(periods=1, time_outs=2, changes=(("x", 20.0), ("y", 54.0))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_interleaving_keeps_each_operator_at_one_node(case: str) -> None:
    world, sizes, budget = CASES[case]
    rules = ROOMY if "room" in case else RULES
    first = Network(world, {OperatorId(operator): size for operator, size in sizes.items()}, budget, rules)
    seen = {first.fingerprint()}
    pending = [first]
    moves = 0
    while pending:
        network = pending.pop()
        for action in list(network.actions()):
            after = network.fork()
            after.do(action)
            moves += after.moves > network.moves
            fingerprint = after.fingerprint()
            if fingerprint not in seen:
                seen.add(fingerprint)
                pending.append(after)
        network.settle()
    assert len(seen) > 500, "the world has too few states to prove anything"
    assert moves > 50, "operators moved too rarely"


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@pytest.mark.parametrize("rules", [RULES, ROOMY], ids=["as in the thesis", "making room"])
@given(world=worlds(most_nodes=6, most_operators=10), data=st.data())
def test_random_walks_through_larger_worlds_keep_each_operator_at_one_node(
    rules: TransferRules, world: World, data: st.DataObject
) -> None:
    operators = list(world.graph.downstream)
    sizes = {operator: float(data.draw(st.sampled_from([2, 5, 10, 20, 40]))) for operator in operators}
    changes = tuple(
        (data.draw(st.sampled_from(operators)), float(data.draw(st.sampled_from([1, 5, 30, 60]))))
        for _ in range(data.draw(st.integers(0, 4)))
    )
    budget = Budget(periods=12, time_outs=8, losses=4, repetitions=3, deaths=1, changes=changes)
    network = Network(world, sizes, budget, rules)
    for _ in range(60):
        actions = list(network.actions())
        if not actions:
            break
        network.do(data.draw(st.sampled_from(actions)))
    network.settle()
