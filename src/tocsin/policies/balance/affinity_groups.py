"""Who belongs together: subscribers grouped by the BE subscriptions they share.

[BAD §7] names it as future work: cluster subscribers by similarity and move them in groups. Groups are found by label
propagation over the graph of subscribers and BE subscriptions: a subscriber takes the label that carries most of its
rates, a BE subscription the label most of its subscribers have. A few rounds over all wants, in time linear in them.
A world without communities gives groups that share nothing in particular; `affinity` weighs what moving one would
save, so that does no harm. Pure and compiled.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from tocsin.model.snapshot import Floats, Ints
from tocsin.policies.balance.load import LoadModel, Longs

ROUNDS: Final = 3
"""Neighbourhoods are found in two; a third settles those at their edges."""


def groups_of(model: LoadModel) -> Ints:
    """A label per subscriber; equal labels share interests. -1 if all its BE subscriptions have the rate 0."""
    a = model.arrays
    n, q = a.start.size - 1, a.rate.size
    if not a.wants.size:
        return np.full(n, -1, dtype=np.int32)
    # What everybody wants tells nobody apart.
    degree = np.maximum(1, np.diff(model.people_start))
    telling = a.rate * np.log1p(n / degree)
    label = np.arange(q, dtype=np.int32)
    found = _labels_of_people(a.start, a.wants, telling, label)
    for _ in range(ROUNDS - 1):
        _label_subscriptions(model.people_start, model.people, found, label)
        found = _labels_of_people(a.start, a.wants, telling, label)
    return found


@numba.njit(cache=True)
def _labels_of_people(start: Longs, wants: Ints, telling: Floats, label: Ints) -> Ints:
    found = np.full(start.size - 1, -1, dtype=np.int32)
    votes = np.zeros(label.size)
    for i in range(start.size - 1):
        best = 0.0
        for p in range(start[i], start[i + 1]):
            candidate = label[wants[p]]
            votes[candidate] += telling[wants[p]]
            if votes[candidate] > best or (votes[candidate] == best and candidate < found[i]):
                best, found[i] = votes[candidate], candidate
        for p in range(start[i], start[i + 1]):
            votes[label[wants[p]]] = 0.0
    return found


@numba.njit(cache=True)
def _label_subscriptions(people_start: Longs, people: Ints, found: Ints, label: Ints) -> None:
    votes = np.zeros(label.size, dtype=np.int32)
    for k in range(label.size):
        best = 0
        for p in range(people_start[k], people_start[k + 1]):
            candidate = found[people[p]]
            if candidate < 0:  # a subscriber of nothing but quiet BE subscriptions has no label to vote for
                continue
            votes[candidate] += 1
            if votes[candidate] > best or (votes[candidate] == best and candidate < label[k]):
                best, label[k] = votes[candidate], candidate
        for p in range(people_start[k], people_start[k + 1]):
            if found[people[p]] >= 0:
                votes[found[people[p]]] = 0
