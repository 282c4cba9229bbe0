"""Operator selection: the exact scenarios of the thesis, and random worlds compared with brute force."""

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
        {OperatorId(name): tuple(map(OperatorId, fed)) for name, fed in edges.items()},
        {OperatorId(name): tuple(map(EdgeNodeId, nodes)) for name, nodes in entries.items()},
    )


def transfers_of(selection: OperatorSelection, node: str, *here: str) -> set[tuple[str, ...]]:
    """Each transfer as (destination, operators…)."""
    transfers = selection.available_transfers(EdgeNodeId(node), [OperatorId(name) for name in here])
    result = {(transfer.destination, *transfer.operators) for transfer in transfers}
    assert len(result) == len(transfers)
    return result


CHAIN = tree(child="middle", middle="top")
FORK = tree(left="middle", right="middle", middle="top")


def test_single_operator_can_move_to_parent_or_feeding_child() -> None:
    """First scenario [AMI §2.2.2]."""
    selection = OperatorSelection(graph({"A": ()}, A=("child",)), CHAIN)
    assert transfers_of(selection, "middle", "A") == {("top", "A"), ("child", "A")}


def test_dependent_operators_give_the_transfers_of_figures_8_and_9() -> None:
    selection = OperatorSelection(graph({"A": ("B",), "B": ()}, A=("child",)), CHAIN)
    assert transfers_of(selection, "middle", "A", "B") == {
        ("child", "A"),
        ("top", "B"),
        ("child", "A", "B"),
        ("top", "A", "B"),
    }


def test_operator_fed_by_two_children_can_only_move_up() -> None:
    """Third scenario, figure 10."""
    selection = OperatorSelection(graph({"L": ("A",), "R": ("A",), "A": ()}, L=("left",), R=("right",)), FORK)
    assert transfers_of(selection, "middle", "A") == {("top", "A")}


def test_operator_with_two_feeders_below_one_child_can_move_down() -> None:
    """Listing 2 refuses this, the prose does not: one child feeds both."""
    selection = OperatorSelection(graph({"P": ("A",), "Q": ("A",), "A": ()}, P=("left",), Q=("left",)), FORK)
    assert transfers_of(selection, "middle", "A") == {("top", "A"), ("left", "A")}
    assert ("left", "P", "Q", "A") in transfers_of(selection, "middle", "A", "P", "Q")


def test_deep_chain_can_move_as_a_whole() -> None:
    selection = OperatorSelection(graph({"A": ("B",), "B": ("C",), "C": ("D",), "D": ()}, A=("child",)), CHAIN)
    transfers = transfers_of(selection, "middle", "A", "B", "C", "D")
    assert ("top", "A", "B", "C", "D") in transfers
    assert ("child", "A", "B", "C", "D") in transfers
    assert len(transfers) == 8


def test_operator_cannot_move_below_its_entry_or_above_the_root() -> None:
    selection = OperatorSelection(graph({"A": ()}, A=("middle",)), CHAIN)
    assert transfers_of(selection, "middle", "A") == {("top", "A")}
    assert transfers_of(selection, "top", "A") == {("middle", "A")}


@settings(max_examples=200)
@given(worlds())
def test_selection_equals_the_smallest_feasible_sets_of_brute_force(world: World) -> None:
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
        actual = {(move.destination, frozenset(move.operators)) for move in selection.available_transfers(node, here)}
        assert actual == expected


@settings(max_examples=100)
@given(worlds())
def test_transfers_that_share_no_operator_are_feasible_together(world: World) -> None:
    """One round may move some operators up and others down: listing 5 relies on it."""
    selection = OperatorSelection(world.graph, world.tree)
    for node in world.tree.nodes:
        here = [operator for operator, place in world.placement.items() if place == node]
        moved = dict(world.placement)
        taken: set[OperatorId] = set()
        for transfer in selection.available_transfers(node, here):
            if not transfer.shares_operators_with(taken):
                taken.update(transfer.operators)
                moved.update(dict.fromkeys(transfer.operators, transfer.destination))
        assert is_feasible(world, moved)
