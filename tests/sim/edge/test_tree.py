"""The tree of edge nodes in virtual time: the thesis' workloads, and runs that lose no operator."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.model.edge import EdgeNodeId, OperatorGraph, OperatorId, Tree
from tocsin.sim.edge.tree import EdgeRun, EdgeSimulation, Protocol
from tocsin.sim.edge.workload import Deployment, EdgeWorld, Fluctuation, SizeChange, deploy, fluctuate
from tocsin.sim.kernel import Kernel

UPPER_PCT = 60.0


def world_of(seed: int, **settings: float) -> EdgeWorld:
    return deploy(Deployment(**settings), np.random.default_rng(seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_deployment_starts_without_overload_and_streams_flow_upwards(seed: int) -> None:
    world = world_of(seed)
    loads = dict.fromkeys(world.tree.nodes, 0.0)
    for operator, place in world.placement.items():
        loads[place] += world.sizes_pct[operator]
        assert world.tree.is_at_or_above(place, world.graph.lowest_places(world.tree)[operator])
        for fed in world.graph.downstream[operator]:
            assert world.tree.is_at_or_above(world.placement[fed], place)
    assert max(loads.values()) <= UPPER_PCT
    assert np.mean(list(loads.values())) == pytest.approx(40.0, rel=0.05)


def test_sizes_rise_for_eight_minutes_then_fall_to_their_start() -> None:
    operators = [OperatorId(f"o{number}") for number in range(20)]
    changes = fluctuate(Fluctuation(), operators, np.random.default_rng(1))
    rising = [change for change in changes if change.time_s < 482]
    assert all(change.delta_pct > 0 for change in rising)
    assert all(change.delta_pct < 0 for change in changes if change.time_s >= 482)
    assert sum(change.delta_pct for change in rising) == pytest.approx(480 * 2 * 0.25, rel=0.15)
    sizes = dict.fromkeys(operators, 0.0)
    for change in changes:
        sizes[change.operator] += change.delta_pct
        assert sizes[change.operator] >= 0
    assert {change.operator for change in changes if 2 <= change.time_s < 18} == {changes[0].operator}


def test_overloaded_node_is_relieved_within_a_monitoring_period() -> None:
    """One change and one round, with an exact outcome."""
    tree = Tree({EdgeNodeId("leaf"): EdgeNodeId("top")}, EdgeNodeId("top"))
    a, b, c = OperatorId("a"), OperatorId("b"), OperatorId("c")
    graph = OperatorGraph({a: (), b: (), c: ()}, dict.fromkeys((a, b, c), (EdgeNodeId("leaf"),)))
    world = EdgeWorld(
        tree, graph, {a: EdgeNodeId("leaf"), b: EdgeNodeId("leaf"), c: EdgeNodeId("top")}, {a: 10.0, b: 45.0, c: 45.0}
    )
    simulation = EdgeSimulation(Kernel(1), world, [SizeChange(10.0, b, 12.0)], EdgeRun(length_s=30.0))
    log = simulation.run()
    assert simulation.hosts[EdgeNodeId("top")].running == {a, c}
    assert log.operators_moved == 1
    (spell_s,) = log.overload_spells_s
    assert 0 < spell_s <= 5.0 + 4 * 0.02
    assert sum(log.messages.values()) == 5  # request, reply, parcels, reply, Clear


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_every_operator_runs_at_one_node_after_lost_messages(loss: float) -> None:
    world = world_of(5)
    changes = fluctuate(Fluctuation(unit_pct=0.5), list(world.placement), np.random.default_rng(5))
    simulation = EdgeSimulation(Kernel(5), world, changes, EdgeRun(loss=loss))
    log = simulation.run()
    assert log.operators_moved > 50
    assert (log.messages_lost > 100) == (loss > 0)
    running = [operator for host in simulation.hosts.values() for operator in host.running | host.idle]
    assert len(set(running)) == len(world.placement)
    assert len(running) - len(set(running)) <= 3, "only operators in transit are held twice"


def test_nothing_moves_without_protocol_and_equal_seeds_give_equal_runs() -> None:
    world = world_of(2)
    changes = fluctuate(Fluctuation(), list(world.placement), np.random.default_rng(2))
    still = EdgeSimulation(Kernel(2), world, changes, EdgeRun(protocol=Protocol.NONE)).run()
    assert (still.operators_moved, still.messages) == (0, {})
    twice = [EdgeSimulation(Kernel(2), world, changes, EdgeRun(length_s=300.0)).run() for _ in range(2)]
    assert np.array_equal(twice[0].samples, twice[1].samples)
    assert twice[0].samples.sum(axis=1) == pytest.approx(still.samples[: len(twice[0].samples)].sum(axis=1))


def two_nodes(sizes: dict[str, float], at_leaf: str) -> EdgeWorld:
    """Independent operators at a leaf and its parent; those named in `at_leaf` are at the leaf."""
    leaf, top = EdgeNodeId("leaf"), EdgeNodeId("top")
    operators = [OperatorId(name) for name in sizes]
    placement = {operator: leaf if operator in at_leaf else top for operator in operators}
    graph = OperatorGraph(dict.fromkeys(operators, ()), dict.fromkeys(operators, (leaf,)))
    return EdgeWorld(Tree({leaf: top}, top), graph, placement, {OperatorId(name): sizes[name] for name in sizes})


@pytest.mark.parametrize("protocol", [Protocol.LISTINGS, Protocol.LISTINGS_IGNORING])
def test_listings_relieve_an_overloaded_node_by_the_messages_of_figure_13(protocol: Protocol) -> None:
    world = two_nodes({"a": 10.0, "b": 45.0, "c": 45.0}, at_leaf="ab")
    run = EdgeRun(protocol=protocol, length_s=30.0)
    simulation = EdgeSimulation(Kernel(1), world, [SizeChange(10.0, OperatorId("b"), 12.0)], run)
    log = simulation.run()
    assert simulation.hosts[EdgeNodeId("top")].running == {"a", "c"}
    assert simulation.hosts[EdgeNodeId("leaf")].running == {"b"}
    assert sum(log.messages.values()) == 4  # request, reply, transfer request, transfer reply
    assert (log.operators_moved, log.operators_twice, log.streams_downwards) == (1, 0, 0)


def test_listings_answer_the_demand_of_an_underloaded_node() -> None:
    world = two_nodes({"a": 8.0, "b": 50.0, "c": 35.0}, at_leaf="ab")
    simulation = EdgeSimulation(Kernel(1), world, [], EdgeRun(protocol=Protocol.LISTINGS, length_s=30.0))
    log = simulation.run()
    assert simulation.hosts[EdgeNodeId("top")].running == {"a", "c"}
    assert simulation.hosts[EdgeNodeId("leaf")].running == {"b"}
    assert sum(log.messages.values()) == 3  # request, reply, transfer request


def test_neighbours_that_both_ask_wait_for_ever_only_if_they_ignore_requests() -> None:
    """Both nodes are underloaded, and a message takes longer than the time between their periods."""
    world = two_nodes({"a": 10.0, "b": 20.0, "c": 35.0}, at_leaf="ab")
    change = SizeChange(30.0, OperatorId("b"), 35.0)  # the leaf is overloaded from then on
    ended = {}
    for protocol in (Protocol.LISTINGS, Protocol.LISTINGS_IGNORING, Protocol.TOCSIN):
        run = EdgeRun(protocol=protocol, length_s=120.0, delay_s=6.0 if protocol != Protocol.TOCSIN else 0.02)
        ended[protocol] = EdgeSimulation(Kernel(1), world, [change], run).run().samples[-1]
    assert ended[Protocol.LISTINGS_IGNORING].max() == 65.0
    assert ended[Protocol.LISTINGS].max() == ended[Protocol.TOCSIN].max() == 55.0


def test_listings_let_operators_run_at_two_nodes_and_ours_never_do() -> None:
    faults = {}
    for protocol in (Protocol.LISTINGS, Protocol.TOCSIN):
        faults[protocol] = np.zeros(2, dtype=int)
        for seed in range(6):
            world = world_of(seed)
            changes = fluctuate(Fluctuation(unit_pct=0.5), list(world.placement), np.random.default_rng(seed))
            log = EdgeSimulation(Kernel(seed), world, changes, EdgeRun(protocol=protocol, delay_s=0.1)).run()
            faults[protocol] += (log.operators_twice, log.streams_downwards)
    assert list(faults[Protocol.TOCSIN]) == [0, 0]
    assert faults[Protocol.LISTINGS][0] > 0


def test_faults_count_operators_at_two_nodes_and_streams_that_flow_downwards() -> None:
    world = two_nodes({"a": 10.0, "b": 20.0}, at_leaf="a")
    a, b = OperatorId("a"), OperatorId("b")
    fed = OperatorGraph({a: (b,), b: ()}, {a: (EdgeNodeId("leaf"),)})
    simulation = EdgeSimulation(Kernel(1), EdgeWorld(world.tree, fed, world.placement, world.sizes_pct), [], EdgeRun())
    assert simulation.faults() == (0, 0)
    swapped = EdgeWorld(world.tree, fed, {a: EdgeNodeId("top"), b: EdgeNodeId("leaf")}, world.sizes_pct)
    assert EdgeSimulation(Kernel(1), swapped, [], EdgeRun()).faults() == (0, 1)
