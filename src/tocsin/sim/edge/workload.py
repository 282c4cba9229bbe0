"""Worlds and fluctuations for the edge tier: the thesis' evaluation set-up, with its undisclosed details as settings.

A world is drawn from one generator and a sequence of changes from another, so that two runs with the same seed see the
same operators at the same places and the same changes, whatever the protocol does to them [AMI §4.2].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.model.edge import EdgeNodeId, OperatorGraph, OperatorId, Tree


@dataclass(frozen=True, slots=True)
class Fluctuation:
    """How operators change [AMI table 4, table 5]."""

    first_s: float = 2.0
    """After the nodes have loaded their operators."""
    rising_s: float = 480.0
    falling_s: float = 480.0
    timespan_s: float = 16.0
    """How long one operator is altered before the next is chosen."""
    period_s: float = 1.0
    increase_mean: float = 2.0
    """λ of the Poisson distribution, in units of memory."""
    unit_pct: float = 0.25
    """What one unit of memory is in percent of a node. The thesis does not say."""
    at_once: int = 1
    """Operators altered side by side. The thesis alters one in a system of 15 nodes."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is where at the start. The thesis says: 360 operators at random on 15 nodes, none of which is overloaded."""

    nodes: int = 15
    operators: int = 360
    mean_load_pct: float = 40.0
    """Of a node, at the start. The thesis does not say."""
    size_spread: float = 0.5
    """Sizes are uniform within this share of their mean, either way. The thesis does not say."""
    linked: float = 0.5
    """The share of operators that feed another one here or above. The thesis does not say."""
    upper_pct: float = 60.0
    """No node starts above it [AMI §4.2]."""


@dataclass(frozen=True)
class EdgeWorld:
    tree: Tree
    graph: OperatorGraph
    placement: dict[OperatorId, EdgeNodeId]
    sizes_pct: dict[OperatorId, float]


@dataclass(frozen=True, slots=True)
class Change:
    time_s: float
    operator: OperatorId
    delta_pct: float


def deploy(settings: Deployment, rng: np.random.Generator) -> EdgeWorld:
    """Operators one after another at nodes drawn uniformly; a node that would start overloaded is drawn again."""
    if settings.mean_load_pct > 0.9 * settings.upper_pct:
        raise ValueError(f"no placement of {settings} starts without an overloaded node")
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
    """Some operators feed one at their node or above it; those that nobody feeds read a stream of a leaf below them."""
    at: dict[EdgeNodeId, list[OperatorId]] = {node: [] for node in tree.nodes}
    downstream: dict[OperatorId, tuple[OperatorId, ...]] = {}
    fed: set[OperatorId] = set()
    # In the order of the nodes, parents come first: an operator feeds only one already seen, so there is no cycle.
    for operator in sorted(placement, key=lambda one: (len(tree.path_up(placement[one])), one)):
        node = placement[operator]
        candidates = [one for place in tree.path_up(node) for one in at[place]]
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


def fluctuate(settings: Fluctuation, operators: list[OperatorId], rng: np.random.Generator) -> list[Change]:
    """Every change of a run, in order of time [AMI §4.1].

    Rising, an operator is chosen uniformly among all; falling, among those that are still larger than they were at the
    start. None falls below its first size: the thesis only decreases what it has increased.
    """
    changes: list[Change] = []
    raised: dict[OperatorId, float] = {}
    steps = round(settings.timespan_s / settings.period_s)
    for phase, length_s in ((+1, settings.rising_s), (-1, settings.falling_s)):
        start_s = settings.first_s + (settings.rising_s if phase < 0 else 0.0)
        for span in range(int(length_s // settings.timespan_s)):
            candidates = operators if phase > 0 else [one for one, size in raised.items() if size > 0]
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
                        changes.append(Change(time_s, operator, delta_pct))
    return changes
