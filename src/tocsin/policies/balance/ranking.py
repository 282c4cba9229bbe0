"""Who is the most and who is the least loaded, while loads change one at a time: a tournament over an array.

The winner of a tournament of m is found in no time and a changed value costs log₂ m comparisons. Ties go to the lower
index, so that a plan depends on its snapshot alone. Compiled; driven by the planners of this folder.
"""

from __future__ import annotations

import numba
import numpy as np

from tocsin.model.snapshot import Floats, Ints


@numba.njit(cache=True)
def tournament(values: Floats, largest: bool) -> Ints:
    """A tree whose root (index 1) is the index of the largest, or smallest, value."""
    leaves = 1
    while leaves < values.size:
        leaves *= 2
    tree = np.full(2 * leaves, -1, dtype=np.int32)
    for j in range(values.size):
        tree[leaves + j] = j
    for node in range(leaves - 1, 0, -1):
        tree[node] = _winner(values, tree[2 * node], tree[2 * node + 1], largest)
    return tree


@numba.njit(cache=True)
def _winner(values: Floats, one: int, other: int, largest: bool) -> int:
    if one < 0 or other < 0:
        return max(one, other)
    better = values[other] > values[one] if largest else values[other] < values[one]
    return other if better else one


@numba.njit(cache=True)
def replay(tree: Ints, values: Floats, j: int, largest: bool) -> None:
    """`values[j]` has changed."""
    node = (tree.size // 2 + j) // 2
    while node:
        tree[node] = _winner(values, tree[2 * node], tree[2 * node + 1], largest)
        node //= 2
