"""Hypothesis strategies for the edge tier: random trees, graphs and feasible placements."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tocsin.model.edge import EdgeNodeId, OperatorGraph, OperatorId, Tree


@dataclass(frozen=True)
class World:
    tree: Tree
    graph: OperatorGraph
    placement: dict[OperatorId, EdgeNodeId]


@st.composite
def trees(draw: st.DrawFn, most_nodes: int = 8) -> Tree:
    count = draw(st.integers(1, most_nodes))
    parents = {EdgeNodeId(f"n{k}"): EdgeNodeId(f"n{draw(st.integers(0, k - 1))}") for k in range(1, count)}
    return Tree(parents, EdgeNodeId("n0"))


@st.composite
def worlds(draw: st.DrawFn, most_nodes: int = 8, most_operators: int = 7) -> World:
    """Operators in topological order, fed by earlier ones or by readings, each at a node that sees all its input."""
    tree = draw(trees(most_nodes))
    operators = [OperatorId(f"op{k}") for k in range(draw(st.integers(1, most_operators)))]
    downstream: dict[OperatorId, tuple[OperatorId, ...]] = dict.fromkeys(operators, ())
    entries: dict[OperatorId, tuple[EdgeNodeId, ...]] = {}
    for number, operator in enumerate(operators):
        feeding = draw(st.lists(st.sampled_from(operators[:number]), unique=True, max_size=3)) if number else []
        for feeder in feeding:
            downstream[feeder] = (*downstream[feeder], operator)
        if not feeding or draw(st.booleans()):
            entries[operator] = tuple(draw(st.lists(st.sampled_from(tree.nodes), unique=True, min_size=1, max_size=2)))
    graph = OperatorGraph(downstream, entries)
    placement: dict[OperatorId, EdgeNodeId] = {}
    for operator in operators:
        below = [*graph.all_entries[operator], *(placement[feeding] for feeding in graph.upstream[operator])]
        placement[operator] = draw(st.sampled_from(tree.path_up(tree.lowest_seeing(below))))
    return World(tree, graph, placement)


def small_world(parents: dict[str, str], places: dict[str, str], feeds: dict[str, tuple[str, ...]]) -> World:
    """The readings of every operator without a feeder enter at the last node of `parents`."""
    tree = Tree({EdgeNodeId(child): EdgeNodeId(parent) for child, parent in parents.items()}, EdgeNodeId("n0"))
    fed = {name for targets in feeds.values() for name in targets}
    lowest = EdgeNodeId(list(parents)[-1])
    graph = OperatorGraph(
        {OperatorId(name): tuple(map(OperatorId, feeds.get(name, ()))) for name in places},
        {OperatorId(name): (lowest,) for name in places if name not in fed},
    )
    return World(tree, graph, {OperatorId(name): EdgeNodeId(place) for name, place in places.items()})


def is_feasible(world: World, placement: dict[OperatorId, EdgeNodeId]) -> bool:
    """The definition, checked directly: every stream flows upwards only [AMI §2.2.1]."""
    return all(
        all(world.tree.is_at_or_above(place, entry) for entry in world.graph.entries.get(operator, ()))
        and all(world.tree.is_at_or_above(placement[fed], place) for fed in world.graph.downstream[operator])
        for operator, place in placement.items()
    )
