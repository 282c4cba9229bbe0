"""The event kernel: total order, virtual time, processes, seeded streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.sim.kernel import EARLY, LATE, NORMAL, Kernel, Process, seed_from
from tocsin.sim.topics.migration import Pool
from tocsin.sim.topics.network import DelayLine


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.5]), st.sampled_from([EARLY, NORMAL, LATE])), max_size=40))
@settings(max_examples=60)
def test_events_happen_by_time_then_priority_then_order_of_scheduling(wanted: list[tuple[float, int]]) -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    for number, (time_s, priority) in enumerate(wanted):
        kernel.call_at(time_s, seen.append, (time_s, priority, number), priority=priority)
    kernel.run()
    assert seen == sorted((time_s, priority, number) for number, (time_s, priority) in enumerate(wanted))


def test_an_event_may_schedule_another_in_its_own_instant_and_it_happens_after_those_already_there() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []

    def first() -> None:
        seen.append("first")
        kernel.call_after(0.0, seen.append, "late comer")

    kernel.call_at(1.0, first)
    kernel.call_at(1.0, seen.append, "second")
    kernel.run()
    assert seen == ["first", "second", "late comer"]


def test_run_until_includes_that_instant_and_leaves_the_clock_there() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    for time_s in (1.0, 2.0, 3.0):
        kernel.call_at(time_s, seen.append, time_s)
    assert kernel.run(until_s=2.0) == 2.0
    assert seen == [1.0, 2.0]
    assert kernel.run(until_s=2.5) == kernel.now_s == 2.5
    assert kernel.next_time_s == 3.0


@pytest.mark.parametrize("time_s", [-1.0, float("nan"), float("inf")])
def test_the_past_and_what_is_no_time_at_all_are_refused(time_s: float) -> None:
    with pytest.raises(ValueError, match="cannot schedule"):
        Kernel(1).call_at(time_s, print)


def test_a_cancelled_timer_never_happens() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    kernel.call_at(1.0, seen.append, "kept")
    kernel.call_at(0.5, seen.append, "dropped").cancel()
    kernel.run()
    assert seen == ["kept"]
    assert kernel.events_happened == 1


def test_beats_do_not_drift_and_stop_when_cancelled() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    beat = kernel.every(0.1, lambda: seen.append(kernel.now_s))
    kernel.run(until_s=100.05)
    assert len(seen) == 1000
    assert seen[-1] == 0.1 + 999 * 0.1  # a running sum of 0.1 would be off by 1e-12 and more
    beat.cancel()
    kernel.run(until_s=200.0)
    assert len(seen) == 1000


def test_a_process_waits_for_delays_and_signals_and_returns_its_value() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    door = kernel.signal()

    def guest() -> Process:
        yield 2.0
        seen.append(("at the door", kernel.now_s))
        word = yield door
        seen.append((word, kernel.now_s))
        again = yield door  # already open: goes on at once
        return again

    done = kernel.spawn(guest())
    done.then(lambda value: seen.append(("gone", value)))
    kernel.call_at(5.0, door.fire, "open")
    kernel.run()
    assert seen == [("at the door", 2.0), ("open", 5.0), ("gone", "open")]
    with pytest.raises(RuntimeError, match="fires once"):
        door.fire("twice")


def test_all_of_waits_for_the_last_and_keeps_the_order() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    one, other = kernel.signal(), kernel.signal()
    kernel.all_of([one, other]).then(lambda values: seen.append((kernel.now_s, values)))
    kernel.all_of([]).then(lambda values: seen.append((kernel.now_s, values)))
    kernel.call_at(1.0, other.fire, "second")
    kernel.call_at(3.0, one.fire, "first")
    kernel.run()
    assert seen == [(0.0, []), (3.0, ["first", "second"])]


def test_a_failure_says_which_events_led_to_it() -> None:
    kernel = Kernel(1)

    def breaks() -> None:
        raise RuntimeError("broken invariant")

    kernel.call_at(1.0, len, "fine")
    kernel.call_at(2.0, breaks)
    with pytest.raises(RuntimeError) as caught:
        kernel.run()
    assert "2.000000 s" in caught.value.__notes__[0]
    assert "breaks" in caught.value.__notes__[0]


def test_streams_depend_on_seed_and_name_and_not_on_each_other() -> None:
    plain, busy = Kernel(7), Kernel(7)
    busy.stream("traffic").random(1000)
    assert np.array_equal(plain.stream("mobility").random(5), busy.stream("mobility").random(5))
    assert not np.array_equal(Kernel(8).stream("mobility").random(5), Kernel(7).stream("mobility").random(5))
    assert seed_from("a", 1) == seed_from("a", 1) != seed_from("a1")
    assert 0 <= seed_from(7, "mobility") < 2**63


def test_a_pool_serves_in_the_order_of_asking_and_never_more_than_its_size() -> None:
    kernel = Kernel(1)
    log: list[Any] = []
    pool = Pool(kernel, 2)

    def worker(name: str) -> Process:
        yield pool.acquire()
        assert pool.busy <= 2
        log.append((name, kernel.now_s))
        yield 1.0
        pool.release()

    for name in "abcde":
        kernel.spawn(worker(name))
    kernel.run()
    assert log == [("a", 0.0), ("b", 0.0), ("c", 1.0), ("d", 1.0), ("e", 2.0)]
    assert pool.busy == 0
    with pytest.raises(RuntimeError):
        pool.release()


def test_nothing_overtakes_on_a_link_whose_delay_falls() -> None:
    kernel = Kernel(1)
    log: list[Any] = []
    link = DelayLine(kernel, 0.050)
    link.send(log.append, "slow")
    link.delay_s = 0.010
    assert link.send(log.append, "fast") == 0.050
    kernel.run()
    assert log == ["slow", "fast"]


def test_a_link_with_a_rate_sends_one_message_after_the_other() -> None:
    kernel = Kernel(1)
    link = DelayLine(kernel, 0.1, rate_bytes_per_s=1_000.0)
    assert link.send(lambda: None, size_bytes=500) == pytest.approx(0.6)
    assert link.send(lambda: None, size_bytes=500) == pytest.approx(1.1)
    assert link.sent_bytes == 1000
