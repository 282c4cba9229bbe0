"""The values of the edge tier: the tree, the graph of operators, usage and transfers [AMI §3, tables 1–2].

Streams flow from the leaves of the tree to its root and never the other way [AMI §2.2.1]. An operator therefore runs at
the lowest node that sees all its sources or at an ancestor of that node, and never below an operator that feeds it.
`policies/operators/transfer.py` decides about transfers, and `edge/` makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from typing import NewType, Self

EdgeNodeId = NewType("EdgeNodeId", str)
OperatorId = NewType("OperatorId", str)


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that operators use at one node, each in percent of the node's own.

    The thesis measures memory alone; CPU and network are its future work [AMI §3.3].
    """

    memory_pct: float = 0.0
    cpu_pct: float = 0.0
    network_pct: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.memory_pct + other.memory_pct, self.cpu_pct + other.cpu_pct, self.network_pct + other.network_pct
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.memory_pct - other.memory_pct, self.cpu_pct - other.cpu_pct, self.network_pct - other.network_pct
        )


NOTHING = Usage()


def total_usage(usages: Iterable[Usage]) -> Usage:
    return sum(usages, NOTHING)


@dataclass(frozen=True, slots=True)
class Transfer:
    """An available transfer: operators that must move together, and their destination [AMI table 1]."""

    operators: tuple[OperatorId, ...]
    destination: EdgeNodeId
    usage: Usage = NOTHING
    """The usage that the node with the operators measured when it sent the message."""

    def shares_operators_with(self, taken: set[OperatorId]) -> bool:
        return any(operator in taken for operator in self.operators)


@dataclass(frozen=True)
class Tree:
    """The parent of each node. Streams flow up; messages travel both ways, between neighbours only."""

    parents: Mapping[EdgeNodeId, EdgeNodeId]
    """The parent of every node except the root."""
    root: EdgeNodeId

    @classmethod
    def perfect_binary(cls, nodes: int) -> Self:
        """Nodes `n1`…: the children of `nk` are `n2k` and `n2k+1`. The thesis uses 15 [AMI §4.1]."""
        parents = {EdgeNodeId(f"n{k}"): EdgeNodeId(f"n{k // 2}") for k in range(2, nodes + 1)}
        return cls(parents, EdgeNodeId("n1"))

    @cached_property
    def children(self) -> dict[EdgeNodeId, tuple[EdgeNodeId, ...]]:
        children: dict[EdgeNodeId, list[EdgeNodeId]] = {self.root: []}
        for child, parent in self.parents.items():
            children.setdefault(parent, []).append(child)
            children.setdefault(child, [])
        return {node: tuple(below) for node, below in children.items()}

    @cached_property
    def nodes(self) -> tuple[EdgeNodeId, ...]:
        return tuple(self.children)

    def neighbours(self, node: EdgeNodeId) -> tuple[EdgeNodeId, ...]:
        """The neighbours of a node: the parent first, then the children."""
        return (self.parents[node], *self.children[node]) if node in self.parents else self.children[node]

    def path_up(self, node: EdgeNodeId) -> list[EdgeNodeId]:
        """The nodes from `node` to the root, both included."""
        path = [node]
        while (parent := self.parents.get(path[-1])) is not None:
            path.append(parent)
        return path

    def is_at_or_above(self, node: EdgeNodeId, other: EdgeNodeId) -> bool:
        """True if the streams that leave `other` pass through `node`, or the two are the same."""
        return node in self.path_up(other)

    def child_towards(self, node: EdgeNodeId, below: EdgeNodeId) -> EdgeNodeId | None:
        """The child of `node` through which streams from `below` arrive; None if `below` is not below `node`."""
        current = below
        while (parent := self.parents.get(current)) is not None:
            if parent == node:
                return current
            current = parent
        return None

    def lowest_seeing(self, entries: Iterable[EdgeNodeId]) -> EdgeNodeId:
        """The lowest node through which the streams of all `entries` pass."""
        paths = [self.path_up(entry) for entry in entries] or [[self.root]]
        return next(node for node in paths[0] if all(node in path for path in paths))


@dataclass(frozen=True)
class OperatorGraph:
    """Which operator feeds which, and where raw readings enter. Fixed when a query is deployed.

    In the thesis an operator has one downstream peer and several upstream peers [AMI table 1]. Several downstream peers
    follow the same rule, so any directed acyclic graph is allowed.
    """

    downstream: Mapping[OperatorId, tuple[OperatorId, ...]]
    """The operators that each operator feeds. Every operator is a key."""
    entries: Mapping[OperatorId, tuple[EdgeNodeId, ...]] = field(default_factory=dict)
    """The nodes at which the raw streams that an operator reads directly enter the tree."""

    @cached_property
    def upstream(self) -> dict[OperatorId, tuple[OperatorId, ...]]:
        upstream: dict[OperatorId, list[OperatorId]] = {operator: [] for operator in self.downstream}
        for operator, fed in self.downstream.items():
            for other in fed:
                upstream[other].append(operator)
        return {operator: tuple(feeding) for operator, feeding in upstream.items()}

    @cached_property
    def all_entries(self) -> dict[OperatorId, frozenset[EdgeNodeId]]:
        """The nodes at which readings enter that reach each operator, directly or through other operators."""
        reached: dict[OperatorId, frozenset[EdgeNodeId]] = {}
        for operator in TopologicalSorter(self.upstream).static_order():
            through = (reached[feeding] for feeding in self.upstream[operator])
            reached[operator] = frozenset(self.entries.get(operator, ())).union(*through)
        return {operator: reached[operator] for operator in self.downstream}

    def lowest_places(self, tree: Tree) -> dict[OperatorId, EdgeNodeId]:
        """The lowest node that sees all the input of each operator. The operator runs there or above."""
        meetings: dict[frozenset[EdgeNodeId], EdgeNodeId] = {}
        for entries in self.all_entries.values():
            if entries not in meetings:
                meetings[entries] = tree.lowest_seeing(entries)
        return {operator: meetings[entries] for operator, entries in self.all_entries.items()}
