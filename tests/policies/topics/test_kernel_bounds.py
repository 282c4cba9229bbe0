"""The compiled kernels of topics and network coordinates stay within their arrays, which compiled code does not check.

A child process runs the kernels as plain Python (`NUMBA_DISABLE_JIT`), where an index out of bounds raises IndexError.
This process then runs them compiled. `tests/policies/balance/test_kernel_bounds.py` does the same for balancing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import tocsin
from tests.policies.interpreted import interpreted
from tests.policies.topics.partition_worlds import PARAMS, at, broker, topic, world
from tocsin.coords.coordinate import DIMENSIONS
from tocsin.coords.distances import distances_s
from tocsin.coords.gossip import settle
from tocsin.policies.topics.partition import plan
from tocsin.policies.topics.types import PartitionSnapshot, Topic, TopicBroker

HERE, THERE, FAR = (broker(name, at(x_ms)) for name, x_ms in (("here", 0), ("there", 60), ("far", 200)))
FULL = replace(THERE, cpu=0.99, memory=0.99, network=0.99)
Results = dict[str, list[list[float]] | list[list[str]]]


def some_topics(home: TopicBroker, count: int, bound_ms: float | None = 30, rate_per_s: float = 10.0) -> list[Topic]:
    return [
        topic(f"t{n}", home, [at(10 * n)], [at(60), at(7 * n)], bound_ms=bound_ms, rate_per_s=rate_per_s)
        for n in range(count)
    ]


def worlds() -> Iterator[tuple[str, PartitionSnapshot]]:
    yield "no broker", world(some_topics(HERE, 3), [])
    yield "no topic", world([], [HERE, THERE])
    yield "one broker", world(some_topics(HERE, 5), [HERE])
    yield "three brokers", world(some_topics(HERE, 12), [HERE, THERE, FAR])
    yield "home is not a broker", world(some_topics(FAR, 5), [HERE, THERE])
    yield "topics without clients", world([topic("t", HERE, [], [], bound_ms=30)], [HERE, THERE])
    yield "topics without a bound", world(some_topics(HERE, 5, None), [HERE, THERE])
    yield "bound out of reach", world(some_topics(HERE, 5, 1), [HERE, THERE, FAR])
    yield "quiet topics", world(some_topics(HERE, 5, 30, 0.0), [HERE, THERE])
    yield "home overloaded", world(some_topics(THERE, 9, 100, 20_000.0), [HERE, FULL, FAR])
    yield "targets overloaded", world(some_topics(HERE, 9), [HERE, FULL])


def matrices() -> Iterator[tuple[str, int, int | None, int]]:
    """Nodes, peers of each (None: all others) and near peers."""
    yield "two nodes", 2, None, 0
    yield "a few peers", 9, 3, 0
    yield "near peers", 9, 4, 2
    yield "more near peers than peers", 5, 2, 9


def results() -> Results:
    """The moves in each world, and the coordinates and distances of each cluster."""
    found: Results = {
        name: [[move.topic, str(move.source), move.target] for move in plan(snapshot, PARAMS).moves]
        for name, snapshot in worlds()
    }
    for name, nodes, peers, near in matrices():
        rng = np.random.default_rng(nodes)
        rtt_s = rng.uniform(0.01, 0.1, (nodes, nodes)) * (rng.random((nodes, nodes)) > 0.1)  # 0: unknown
        cluster = settle(rtt_s, 60, rng, peers=peers, near=near)
        lifts_s = cluster.heights_s + cluster.adjustments_s
        found[name] = distances_s(cluster.vectors, lifts_s, cluster.vectors[:1], lifts_s[:1]).tolist()
    empty = np.zeros((0, DIMENSIONS))
    found["no coordinate"] = distances_s(empty, np.zeros(0), empty, np.zeros(0)).tolist()
    return found


def test_kernels_stay_in_bounds_and_agree_interpreted_and_compiled() -> None:
    without_compilation, compiled = interpreted(results), results()
    assert list(without_compilation) == list(compiled)
    for name, result in without_compilation.items():
        if any(name == label for label, *_ in matrices()):
            np.testing.assert_allclose(np.array(result), np.array(compiled[name], float), rtol=1e-9, err_msg=name)
        else:
            assert result == compiled[name], name
    assert compiled["three brokers"] and compiled["home overloaded"], "the worlds reach the kernel"


def test_no_other_folder_has_compiled_kernels() -> None:
    """A kernel elsewhere would run without bounds checks in no test."""
    folders = {
        path.parent.relative_to(_source()).as_posix()
        for path in _source().rglob("*.py")
        if "@numba." in path.read_text("utf-8")
    }
    assert folders == {"policies/balance", "policies/topics", "coords"}


def _source() -> Path:
    return Path(tocsin.__file__).parent
