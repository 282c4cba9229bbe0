"""Who makes an execution fail is found among the newcomers, in few tries; nobody is blamed for what fails for all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.spark.culprits import MOST, culprits


class Channel:
    def __init__(self, bad: set[int], *, everybody: bool = False) -> None:
        self.bad = bad
        self.everybody = everybody
        self.tries = 0

    def fails(self, first: int, last: int) -> str | None:
        self.tries += 1
        return "no" if self.everybody or any(first <= one <= last for one in self.bad) else None


@given(st.integers(0, 40), st.sets(st.integers(41, 400), max_size=8))
def test_the_bad_ones_among_many_are_found(tried: int, bad: set[int]) -> None:
    channel = Channel(bad)
    untried = range(41, 401)
    if not tried and {untried[0], untried[len(untried) // 2], untried[-1]} <= bad:
        return
    assert culprits(range(1, tried + 1), untried, channel.fails) == dict.fromkeys(bad, "no")
    assert channel.tries <= 5 + 20 * len(bad)


def test_what_fails_for_everybody_is_nobodys_fault() -> None:
    assert culprits([], range(100), Channel(set(), everybody=True).fails) == {}
    assert culprits(range(50), range(50, 100), Channel({7}).fails) == {}, "it went well before: a record, perhaps"
    assert culprits([], [5], Channel({5}).fails) == {}, "with nobody to compare it with"
    assert culprits([3], [5], Channel({5}).fails) == {5: "no"}
    assert culprits(range(5), [], Channel({3}).fails) == {}


def test_of_very_many_some_are_found_at_a_time() -> None:
    bad = set(range(100, 300))
    found = culprits(range(10), range(10, 1_000), Channel(bad).fails)
    assert len(found) == MOST and found.keys() <= bad


def test_one_that_fails_once_is_not_blamed() -> None:
    channel = Channel({7})

    def once(first: int, last: int) -> str | None:
        failed = channel.fails(first, last)
        if first == last == 7:
            channel.bad = set()
        return failed

    assert culprits([1], range(2, 20), once) == {}
