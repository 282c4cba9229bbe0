"""The whole recovery under faults: after any walk the outbox holds exactly the results of all acknowledged readings."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.edge.edge_tree_world import TreeWorld

FAULTS = 9


@pytest.mark.parametrize("seed", [*range(7), 14])
def test_results_are_exact_after_deaths_silences_lost_links_and_transfers(seed: int) -> None:
    world = TreeWorld(seed)
    chance = world.chance
    world.run(3.0)
    for _ in range(FAULTS):
        world.harm()
        until_s = world.now_s + chance.uniform(0.3, 6)
        while world.now_s < until_s:
            world.run(min(until_s, world.now_s + 0.3))
            chance.choice(list(world.processes.values())).order_transfer()
    world.run(300.0, world.is_complete)
    assert world.is_complete(), (world.root.floors_us, {item.name: item.next_number for item in world.publishers})
    for query in ("Use", "Sorted", "Near"):
        rows = world.results(query)
        assert Counter(rows) == world.expected(query), query
    for query in ("Sorted", "Near"):
        times = [row[0] for row in world.results(query)]
        assert times == sorted(times), "rows come in order of time, across all generations"
    assert world.replayed > 20 and world.ordered > 5 and world.root.stored.generation > 5, "the walk had no faults"
