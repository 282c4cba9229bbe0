"""Operator selection: the thesis' scenarios exactly, and random worlds against brute force."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings

from tests.edge.edge_worlds import World, is_feasible, worlds
from tocsin.edge.placement import OperatorSelection
from tocsin.model.edge import EdgeNodeId, OperatorGraph, OperatorId, Tree


def tree(**parents: str) -> Tree:
    root = next(iter(set(parents.values()) - set(parents)))
    return Tree({EdgeNodeId(child): EdgeNodeId(parent) for child, parent in parents.items()}, EdgeNodeId(root))


def graph(edges: dict[str, tuple[str, ...]], **entries: tuple[str, ...]) -> OperatorGraph:
    return OperatorGraph(
        {OperatorId(one): tuple(map(OperatorId, fed)) for one, fed in edges.items()},
        {OperatorId(one): tuple(map(EdgeNodeId, nodes)) for one, nodes in entries.items()},
    )


def found(selection: OperatorSelection, node: str, *here: str) -> set[tuple[str, ...]]:
    """Each transfer as (destination, operators…)."""
    transfers = selection.available_transfers(EdgeNodeId(node), [OperatorId(one) for one in here])
    assert len({(one.destination, one.operators) for one in transfers}) == len(transfers)
    return {(one.destination, *one.operators) for one in transfers}


CHAIN = tree(child="middle", middle="top")
FORK = tree(left="middle", right="middle", middle="top")


def test_a_single_operator_can_go_to_the_parent_or_to_the_child_that_feeds_it() -> None:
    """First scenario [AMI §2.2.2]."""
    selection = OperatorSelection(graph({"A": ()}, A=("child",)), CHAIN)
    assert found(selection, "middle", "A") == {("top", "A"), ("child", "A")}


def test_dependent_operators_of_one_node_give_the_four_transfers_of_figures_8_and_9() -> None:
    selection = OperatorSelection(graph({"A": ("B",), "B": ()}, A=("child",)), CHAIN)
    assert found(selection, "middle", "A", "B") == {
        ("child", "A"),
        ("top", "B"),
        ("child", "A", "B"),
        ("top", "A", "B"),
    }


def test_an_operator_fed_by_two_children_can_only_go_up() -> None:
    """Third scenario, figure 10."""
    selection = OperatorSelection(graph({"L": ("A",), "R": ("A",), "A": ()}, L=("left",), R=("right",)), FORK)
    assert found(selection, "middle", "A") == {("top", "A")}


def test_two_upstream_peers_below_the_same_child_let_an_operator_go_down() -> None:
    """Listing 2 refuses this; the prose does not: one child feeds both."""
    selection = OperatorSelection(graph({"P": ("A",), "Q": ("A",), "A": ()}, P=("left",), Q=("left",)), FORK)
    assert found(selection, "middle", "A") == {("top", "A"), ("left", "A")}
    assert ("left", "P", "Q", "A") in found(selection, "middle", "A", "P", "Q")


def test_a_deep_chain_moves_as_a_whole() -> None:
    selection = OperatorSelection(graph({"A": ("B",), "B": ("C",), "C": ("D",), "D": ()}, A=("child",)), CHAIN)
    transfers = found(selection, "middle", "A", "B", "C", "D")
    assert ("top", "A", "B", "C", "D") in transfers
    assert ("child", "A", "B", "C", "D") in transfers
    assert len(transfers) == 8


def test_an_operator_where_its_readings_enter_cannot_go_down_and_at_the_root_not_up() -> None:
    selection = OperatorSelection(graph({"A": ()}, A=("middle",)), CHAIN)
    assert found(selection, "middle", "A") == {("top", "A")}
    assert found(selection, "top", "A") == {("middle", "A")}


@settings(max_examples=200)
@given(worlds())
def test_selection_finds_exactly_the_smallest_feasible_sets_of_brute_force(world: World) -> None:
    assert is_feasible(world, world.placement)
    selection = OperatorSelection(world.graph, world.tree)
    for node in world.tree.nodes:
        here = [operator for operator, place in world.placement.items() if place == node]
        expected = set()
        for destination in world.tree.neighbours(node):
            feasible = [
                frozenset(chosen)
                for size in range(1, len(here) + 1)
                for chosen in combinations(here, size)
                if is_feasible(world, world.placement | dict.fromkeys(chosen, destination))
            ]
            for operator in here:
                containing = [chosen for chosen in feasible if operator in chosen]
                if containing:
                    smallest = min(containing, key=len)
                    assert all(smallest <= chosen for chosen in containing), "the set that must move together is unique"
                    expected.add((destination, smallest))
        actual = {(one.destination, frozenset(one.operators)) for one in selection.available_transfers(node, here)}
        assert actual == expected


@settings(max_examples=100)
@given(worlds())
def test_transfers_that_share_no_operator_are_feasible_together(world: World) -> None:
    """One round may give some operators up and others down: listing 5 relies on it."""
    selection = OperatorSelection(world.graph, world.tree)
    for node in world.tree.nodes:
        here = [operator for operator, place in world.placement.items() if place == node]
        moved = dict(world.placement)
        taken: set[OperatorId] = set()
        for one in selection.available_transfers(node, here):
            if not one.shares_operators_with(taken):
                taken.update(one.operators)
                moved.update(dict.fromkeys(one.operators, one.destination))
        assert is_feasible(world, moved)
