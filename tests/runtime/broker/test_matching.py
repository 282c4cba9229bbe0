"""The matching budget: exact rate, order, a bounded queue that loses nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.runtime.broker.matching import MOST_BYTES, MOST_S, Matching


class Budget:
    """A budget with a clock that the test turns."""

    def __init__(self, rate_per_s: float) -> None:
        self.now_s = 50.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.delivered: list[int] = []
        self.matching = Matching(rate_per_s, lambda: self.now_s, self._call_later)

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.now_s + delay_s, callback))

    def offer(self, number: int, messages: int = 1, size_bytes: int = 100) -> bool:
        return self.matching.offer(messages, size_bytes, lambda: self.delivered.append(number))

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.timers and self.timers[0][0] <= end_s:
            self.now_s, callback = self.timers.pop(0)
            callback()
        self.now_s = end_s


def test_messages_leave_at_the_rate_in_order() -> None:
    budget = Budget(1_000.0)
    for number in range(4_000):
        budget.offer(number)
    budget.run(2.0)
    assert len(budget.delivered) == pytest.approx(2_050, rel=0.02)
    assert budget.matching.waiting_messages == 4_000 - len(budget.delivered)
    budget.run(2.0)
    assert budget.delivered == list(range(4_000))
    assert (budget.matching.waiting_messages, budget.matching.waiting_bytes) == (0, 0)


def test_frame_with_many_messages_costs_as_many() -> None:
    budget = Budget(100.0)
    assert budget.offer(1, messages=205)
    assert not budget.offer(2)
    budget.run(1.9)
    assert budget.delivered == [1]
    budget.run(0.2)
    assert budget.delivered == [1, 2]


def test_queue_is_full_by_time_and_by_bytes() -> None:
    by_time, by_bytes = Budget(100.0), Budget(1e9)
    for number in range(int(100 * MOST_S) + 10):
        by_time.offer(number)
    assert by_time.matching.is_full
    assert by_time.matching.delay_s == pytest.approx(MOST_S, rel=0.05)
    by_bytes.matching.set_rate(1.0)
    by_bytes.offer(1, messages=10)
    by_bytes.offer(2, size_bytes=MOST_BYTES + 1)
    assert by_bytes.matching.is_full


def test_reader_continues_once_the_queue_has_room() -> None:
    budget = Budget(100.0)
    for number in range(600):
        budget.offer(number)
    rooms: list[int] = []
    budget.matching.on_room["home"] = lambda: rooms.append(len(budget.delivered))
    budget.run(0.5)
    assert rooms == []
    budget.run(1.0)
    assert len(rooms) == 1
    assert not budget.matching.on_room


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([None, 10.0, 1_000.0, math.inf]))))
def test_changed_rates_lose_and_reorder_nothing(offers: list[tuple[int, float | None]]) -> None:
    budget = Budget(100.0)
    for number, (messages, rate_per_s) in enumerate(offers):
        budget.offer(number, messages)
        if rate_per_s is not None:
            budget.matching.set_rate(rate_per_s)
        budget.run(0.05)
    budget.matching.set_rate(math.inf)
    assert budget.delivered == list(range(len(offers)))
