"""The search for values that fail a query: it blames the right side, in few runs, and ends in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.failures import SEARCH_S, FailureSearch, Records


class FailingChannel:
    """A query that fails for some (subscription, record) pairs. `meets` are subscriptions that had results."""

    def __init__(
        self,
        subscriptions: int,
        records: int,
        is_bad: Callable[[int, int], bool],
        meets: Sequence[int] = (),
        run_s: float = 0.0,
    ) -> None:
        self.is_bad = is_bad
        self.runs = 0
        self.now_s = 0.0
        self.run_s = run_s
        self.refused: set[int] = set()
        self.postponed: set[int] = set()
        self.strikes: Counter[int] = Counter()
        self.search = FailureSearch(
            self.fails,
            self.refuse,
            set(meets),
            lambda: self.now_s,
            list(range(subscriptions)),
            {"r": pa.table({"id": list(range(records))})},
            self.strikes,
            SEARCH_S,
        )

    def fails(self, first: int, last: int, records: Records) -> str | None:
        self.runs += 1
        self.now_s += self.run_s
        ended = self.refused | self.postponed
        rows = records["r"]["id"].to_pylist()
        numbers = (number for number in range(first, last + 1) if number not in ended)
        return "no" if any(self.is_bad(number, row) for number in numbers for row in rows) else None

    def refuse(self, reasons: Mapping[int, str], postponed: Sequence[int]) -> None:
        self.refused |= set(reasons)
        self.postponed |= set(postponed)

    @property
    def dead(self) -> list[int]:
        return sorted(row for part in self.search.dead for row in part.rows["id"].to_pylist())

    @property
    def kept(self) -> list[int]:
        return self.search.records["r"]["id"].to_pylist()  # type: ignore[no-any-return]


@given(st.integers(1, 40), st.sets(st.integers(0, 199), max_size=4))
def test_records_that_fail_for_all_subscriptions_are_set_aside(subscriptions: int, bad: set[int]) -> None:
    channel = FailingChannel(subscriptions, 200, lambda _, row: row in bad, meets=range(subscriptions))
    assert channel.search.run()
    assert (channel.dead, channel.refused) == (sorted(bad), set())
    assert channel.kept == [row for row in range(200) if row not in bad]
    assert channel.runs <= 3 + 25 * len(bad) + 15 * len(bad)


@given(st.sets(st.integers(0, 39), min_size=1, max_size=3), st.sets(st.integers(0, 199), min_size=1, max_size=20))
def test_few_subscriptions_that_fail_and_never_had_results_are_ended(guilty: set[int], volcanoes: set[int]) -> None:
    channel = FailingChannel(40, 200, lambda number, row: number in guilty and row in volcanoes)
    assert channel.search.run()
    assert (channel.dead, channel.refused, len(channel.kept)) == ([], guilty, 200)


def test_failing_subscription_is_found_without_a_search_through_the_records() -> None:
    channel = FailingChannel(100, 1_000, lambda number, row: number == 70 and row % 2 == 0, meets=[1, 2])
    assert channel.search.run()
    assert (channel.dead, channel.refused, len(channel.kept)) == ([], {70}, 1_000)
    assert channel.runs < 25


def test_record_is_at_fault_if_a_failing_subscription_had_results() -> None:
    channel = FailingChannel(40, 200, lambda number, row: number == 7 and row == 50, meets=[7])
    assert channel.search.run()
    assert (channel.dead, channel.refused) == ([50], set())


def test_many_hostile_subscriptions_are_ended_and_the_record_is_kept() -> None:
    channel = FailingChannel(2_000, 50, lambda number, row: 100 <= number < 1_900 and row == 7, meets=[3, 1_950])
    assert channel.search.run()
    assert channel.dead == [] and len(channel.kept) == 50
    assert set(range(100, 1_900)) <= channel.refused | channel.postponed
    assert not {3, 1_950} & (channel.refused | channel.postponed)


def test_only_subscription_is_ended_after_three_records() -> None:
    channel = FailingChannel(1, 20, lambda _, row: True)
    assert channel.search.run()
    assert (len(channel.dead), channel.refused) == (2, {0})


def test_failure_without_new_records_blames_neither_side() -> None:
    channel = FailingChannel(5, 20, lambda _, row: False)
    channel.search.fails = lambda *_: "the disk is full"
    assert not channel.search.run()
    assert (channel.dead, channel.refused) == ([], set())


def test_records_that_fail_only_all_together_are_not_set_aside() -> None:
    channel = FailingChannel(5, 1_000, lambda _, row: False)
    channel.search.fails = lambda first, last, records: "too many" if records["r"].num_rows > 600 else None
    assert not channel.search.run()
    assert (channel.dead, len(channel.kept)) == ([], 1_000)


def test_search_over_many_bad_records_ends_in_time() -> None:
    channel = FailingChannel(10, 10_000, lambda _, row: row % 350 == 3 and row < 5_000, meets=range(10), run_s=0.5)
    assert channel.search.run()
    assert set(range(3, 5_000, 350)) <= set(channel.dead)
    assert channel.now_s < SEARCH_S + 25 and len(channel.kept) > 0
