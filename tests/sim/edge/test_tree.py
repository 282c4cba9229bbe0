"""The tree of edge nodes in virtual time: the thesis' workloads, and runs that lose no operator."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.model.edge import EdgeNodeId, OperatorGraph, OperatorId, Tree
from tocsin.sim.edge.tree import EdgeRun, EdgeSimulation
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
    still = EdgeSimulation(Kernel(2), world, changes, EdgeRun(protocol=False)).run()
    assert (still.operators_moved, still.messages) == (0, {})
    twice = [EdgeSimulation(Kernel(2), world, changes, EdgeRun(length_s=300.0)).run() for _ in range(2)]
    assert np.array_equal(twice[0].samples, twice[1].samples)
    assert twice[0].samples.sum(axis=1) == pytest.approx(still.samples[: len(twice[0].samples)].sum(axis=1))
