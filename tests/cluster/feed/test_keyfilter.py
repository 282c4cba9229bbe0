"""The filter in front of the key index never calls a known key new, and seldom calls a new key known."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.feed.keyfilter import U64, KeyFilter

SIMILAR = st.integers(0, 3).map(lambda word: word << 43)
"""Numbers that share a word of the filter with others."""
NUMBERS = st.lists(st.integers(0, (1 << 64) - 1) | st.tuples(SIMILAR, st.integers(0, 63)).map(sum), max_size=40)


def array(numbers: list[int]) -> U64:
    return np.array(numbers, dtype=np.uint64)


@given(first=NUMBERS, second=NUMBERS, few=st.booleans())
def test_added_keys_are_perhaps_known(first: list[int], second: list[int], few: bool) -> None:
    key_filter = KeyFilter()
    for numbers in (first, second):
        key_filter.add_few(numbers) if few else key_filter.add(array(numbers))
    assert key_filter.add(array(first + second)).all()
    assert all(key_filter.add_few(first + second))


@given(earlier=NUMBERS, numbers=st.lists(st.integers(0, (1 << 64) - 1), unique_by=lambda number: number >> 43))
def test_both_ways_to_add_give_the_same_filter(earlier: list[int], numbers: list[int]) -> None:
    one, other = KeyFilter(), KeyFilter()
    one.add(array(earlier))
    other.add_few(earlier)
    assert one.add(array(numbers)).tolist() == other.add_few(numbers)
    assert (one._words == other._words).all()


def test_few_new_keys_are_perhaps_known_among_a_million() -> None:
    random = np.random.default_rng(1)
    key_filter = KeyFilter()
    key_filter.add(random.integers(0, 1 << 64, 1_000_000, dtype=np.uint64))
    assert key_filter.add(random.integers(0, 1 << 64, 100_000, dtype=np.uint64)).mean() < 0.001


def test_filled_filter_knows_every_key() -> None:
    key_filter = KeyFilter()
    key_filter.fill()
    assert key_filter.add(np.arange(100, dtype=np.uint64)).all()
