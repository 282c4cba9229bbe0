"""The search for failing subscriptions: it needs few runs, and finds none if the query fails for all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.culprits import MOST, culprits


class FailingChannel:
    def __init__(self, bad: set[int], *, fails_for_all: bool = False) -> None:
        self.bad = bad
        self.fails_for_all = fails_for_all
        self.tries = 0

    def fails(self, first: int, last: int) -> str | None:
        self.tries += 1
        return "no" if self.fails_for_all or any(first <= number <= last for number in self.bad) else None


@given(st.integers(0, 40), st.sets(st.integers(41, 400), max_size=8))
def test_failing_subscriptions_among_many_are_found(tried: int, bad: set[int]) -> None:
    channel = FailingChannel(bad)
    untried = range(41, 401)
    if not tried and {untried[0], untried[len(untried) // 2], untried[-1]} <= bad:
        return
    assert culprits(range(1, tried + 1), untried, channel.fails) == (dict.fromkeys(bad, "no"), [])
    assert channel.tries <= 5 + 20 * len(bad)


def test_failure_of_all_subscriptions_names_no_culprit() -> None:
    assert culprits([], range(100), FailingChannel(set(), fails_for_all=True).fails) == ({}, [])
    assert culprits(range(50), range(50, 100), FailingChannel({7}).fails) == ({}, []), (
        "a tried subscription fails: perhaps a record is at fault"
    )
    assert culprits([], [5], FailingChannel({5}).fails) == ({}, []), "no other subscription to compare with"
    assert culprits([3], [5], FailingChannel({5}).fails) == ({5: "no"}, [])
    assert culprits(range(5), [], FailingChannel({3}).fails) == ({}, [])


def test_search_for_many_culprits_is_bounded_and_leaves_none() -> None:
    bad = set(range(100, 300))
    channel = FailingChannel(bad)
    found = culprits(range(10), range(10, 1_000), channel.fails)
    assert len(found.reasons) == MOST and found.reasons.keys() <= bad
    assert bad <= found.reasons.keys() | set(found.postponed)
    assert channel.tries < 5 + 20 * MOST
    late = culprits(range(10), range(10, 1_000), channel.fails, lambda: False)
    assert late == ({}, list(range(10, 1_000)))


def test_subscription_that_fails_only_once_is_no_culprit() -> None:
    channel = FailingChannel({7})

    def once(first: int, last: int) -> str | None:
        failed = channel.fails(first, last)
        if first == last == 7:
            channel.bad = set()
        return failed

    assert culprits([1], range(2, 20), once) == ({}, [])
