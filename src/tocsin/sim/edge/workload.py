"""Worlds and fluctuations for the edge tier: the thesis' evaluation, with the details it does not give as settings.

A world is drawn from one generator and a sequence of changes from another. Two runs with the same seed therefore have
the same operators at the same nodes and the same changes, with or without the protocol [AMI §4.2].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.model.edge import EdgeNodeId, OperatorGraph, OperatorId, Tree


@dataclass(frozen=True, slots=True)
class Fluctuation:
    """How the sizes of operators change [AMI table 4, table 5]."""

    first_s: float = 2.0
    """When the changes start, after the nodes have loaded their operators."""
    rising_s: float = 480.0
    falling_s: float = 480.0
    timespan_s: float = 16.0
    """How long one operator changes before the next is chosen."""
    period_s: float = 1.0
    increase_mean: float = 2.0
    """λ of the Poisson distribution, in units of memory."""
    unit_pct: float = 0.25
    """One unit of memory in percent of a node. The thesis does not give it."""
    at_once: int = 1
    """How many operators change at the same time. The thesis changes one in a system of 15 nodes."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The start of a run. The thesis: 360 operators at random on 15 nodes, none of them overloaded."""

    nodes: int = 15
    operators: int = 360
    mean_load_pct: float = 40.0
    """The mean load of a node at the start. The thesis does not give it."""
    size_spread: float = 0.5
    """Sizes are uniform within ± this share of their mean. The thesis does not give it."""
    linked: float = 0.5
    """The share of operators that feed another operator at their node or above. The thesis does not give it."""
    upper_pct: float = 60.0
    """No node starts above this load [AMI §4.2]."""


@dataclass(frozen=True)
class EdgeWorld:
    tree: Tree
    graph: OperatorGraph
    placement: dict[OperatorId, EdgeNodeId]
    sizes_pct: dict[OperatorId, float]


@dataclass(frozen=True, slots=True)
class SizeChange:
    time_s: float
    operator: OperatorId
    delta_pct: float


def deploy(settings: Deployment, rng: np.random.Generator) -> EdgeWorld:
    """Place operators one after another at nodes drawn uniformly. A node that would be overloaded is drawn again."""
    if settings.mean_load_pct > 0.9 * settings.upper_pct:
        raise ValueError(f"every placement of {settings} would start with an overloaded node")
    tree = Tree.perfect_binary(settings.nodes)
    operators = [OperatorId(f"o{number:05d}") for number in range(settings.operators)]
    mean_pct = settings.mean_load_pct * settings.nodes / settings.operators
    sizes = mean_pct * rng.uniform(1 - settings.size_spread, 1 + settings.size_spread, size=len(operators))
    loads_pct = [0.0] * len(tree.nodes)
    placement: dict[OperatorId, EdgeNodeId] = {}
    for operator, size_pct in zip(operators, sizes, strict=True):
        index = int(rng.integers(len(loads_pct)))
        while loads_pct[index] + size_pct > settings.upper_pct:
            index = int(rng.integers(len(loads_pct)))
        loads_pct[index] += float(size_pct)
        placement[operator] = tree.nodes[index]
    graph = _link(tree, placement, settings.linked, rng)
    return EdgeWorld(tree, graph, placement, dict(zip(operators, map(float, sizes), strict=True)))


def _link(
    tree: Tree, placement: dict[OperatorId, EdgeNodeId], linked: float, rng: np.random.Generator
) -> OperatorGraph:
    """Let operators feed others at their node or above. An operator without a feeder reads a leaf below it."""
    at: dict[EdgeNodeId, list[OperatorId]] = {node: [] for node in tree.nodes}
    downstream: dict[OperatorId, tuple[OperatorId, ...]] = {}
    fed: set[OperatorId] = set()
    # Operators of higher nodes come first, and an operator feeds only an earlier one, so there is no cycle.
    for operator in sorted(placement, key=lambda operator: (len(tree.path_up(placement[operator])), operator)):
        node = placement[operator]
        candidates = [candidate for place in tree.path_up(node) for candidate in at[place]]
        downstream[operator] = ()
        if candidates and rng.random() < linked:
            chosen = candidates[rng.integers(len(candidates))]
            downstream[operator] = (chosen,)
            fed.add(chosen)
        at[node].append(operator)
    entries = {
        operator: (_leaf_below(tree, placement[operator], rng),) for operator in downstream if operator not in fed
    }
    return OperatorGraph({operator: downstream[operator] for operator in placement}, entries)


def _leaf_below(tree: Tree, node: EdgeNodeId, rng: np.random.Generator) -> EdgeNodeId:
    while children := tree.children[node]:
        node = children[rng.integers(len(children))]
    return node


def fluctuate(settings: Fluctuation, operators: list[OperatorId], rng: np.random.Generator) -> list[SizeChange]:
    """Every change of a run, in order of time [AMI §4.1].

    While sizes rise, an operator is chosen uniformly among all; while they fall, among those still larger than at the
    start. None falls below its first size: the thesis only decreases operators that it has increased.
    """
    changes: list[SizeChange] = []
    raised: dict[OperatorId, float] = {}
    steps = round(settings.timespan_s / settings.period_s)
    for phase, length_s in ((+1, settings.rising_s), (-1, settings.falling_s)):
        start_s = settings.first_s + (settings.rising_s if phase < 0 else 0.0)
        for span in range(int(length_s // settings.timespan_s)):
            candidates = operators if phase > 0 else [operator for operator, size in raised.items() if size > 0]
            count = min(settings.at_once, len(candidates))
            chosen = [candidates[index] for index in rng.choice(len(candidates), size=count, replace=False)]
            for step in range(steps):
                time_s = start_s + span * settings.timespan_s + step * settings.period_s
                for operator in chosen:
                    size_pct = float(rng.poisson(settings.increase_mean)) * settings.unit_pct
                    before_pct = raised.get(operator, 0.0)
                    delta_pct = size_pct if phase > 0 else -min(size_pct, before_pct)
                    raised[operator] = before_pct + delta_pct
                    if delta_pct:
                        changes.append(SizeChange(time_s, operator, delta_pct))
    return changes
