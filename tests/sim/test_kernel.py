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
def test_events_happen_in_order_of_time_priority_and_scheduling(scheduled: list[tuple[float, int]]) -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    for number, (time_s, priority) in enumerate(scheduled):
        kernel.call_at(time_s, seen.append, (time_s, priority, number), priority=priority)
    kernel.run()
    assert seen == sorted((time_s, priority, number) for number, (time_s, priority) in enumerate(scheduled))


def test_event_scheduled_within_an_instant_happens_last_in_it() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []

    def first() -> None:
        seen.append("first")
        kernel.call_after(0.0, seen.append, "scheduled last")

    kernel.call_at(1.0, first)
    kernel.call_at(1.0, seen.append, "second")
    kernel.run()
    assert seen == ["first", "second", "scheduled last"]


def test_run_includes_events_at_until_s_and_stops_the_clock_there() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    for time_s in (1.0, 2.0, 3.0):
        kernel.call_at(time_s, seen.append, time_s)
    assert kernel.run(until_s=2.0) == 2.0
    assert seen == [1.0, 2.0]
    assert kernel.run(until_s=2.5) == kernel.now_s == 2.5
    assert kernel.next_time_s == 3.0


@pytest.mark.parametrize("time_s", [-1.0, float("nan"), float("inf")])
def test_past_infinite_and_nan_times_are_refused(time_s: float) -> None:
    with pytest.raises(ValueError, match="cannot schedule"):
        Kernel(1).call_at(time_s, print)


def test_cancelled_timer_does_not_happen() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    kernel.call_at(1.0, seen.append, "kept")
    kernel.call_at(0.5, seen.append, "dropped").cancel()
    kernel.run()
    assert seen == ["kept"]
    assert kernel.events_happened == 1


def test_periodic_calls_do_not_drift_and_stop_when_cancelled() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    timer = kernel.every(0.1, lambda: seen.append(kernel.now_s))
    kernel.run(until_s=100.05)
    assert len(seen) == 1000
    assert seen[-1] == 0.1 + 999 * 0.1  # a running sum of 0.1 would be off by 1e-12 and more
    timer.cancel()
    kernel.run(until_s=200.0)
    assert len(seen) == 1000


def test_process_waits_for_delays_and_signals_and_returns_value() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    signal = kernel.signal()

    def process() -> Process:
        yield 2.0
        seen.append(("waiting", kernel.now_s))
        value = yield signal
        seen.append((value, kernel.now_s))
        again = yield signal  # it has fired: the process resumes at once
        return again

    done = kernel.spawn(process())
    done.then(lambda value: seen.append(("done", value)))
    kernel.call_at(5.0, signal.fire, "fired")
    kernel.run()
    assert seen == [("waiting", 2.0), ("fired", 5.0), ("done", "fired")]
    with pytest.raises(RuntimeError, match="fires once"):
        signal.fire("twice")


def test_all_of_waits_for_last_signal_and_keeps_order() -> None:
    kernel = Kernel(1)
    seen: list[Any] = []
    first, second = kernel.signal(), kernel.signal()
    kernel.all_of([first, second]).then(lambda values: seen.append((kernel.now_s, values)))
    kernel.all_of([]).then(lambda values: seen.append((kernel.now_s, values)))
    kernel.call_at(1.0, second.fire, "second")
    kernel.call_at(3.0, first.fire, "first")
    kernel.run()
    assert seen == [(0.0, []), (3.0, ["first", "second"])]


def test_failure_lists_the_latest_events() -> None:
    kernel = Kernel(1)

    def breaks() -> None:
        raise RuntimeError("broken invariant")

    kernel.call_at(1.0, len, "fine")
    kernel.call_at(2.0, breaks)
    with pytest.raises(RuntimeError) as caught:
        kernel.run()
    assert "2.000000 s" in caught.value.__notes__[0]
    assert "breaks" in caught.value.__notes__[0]


def test_random_streams_depend_on_seed_and_name_alone() -> None:
    plain, busy = Kernel(7), Kernel(7)
    busy.stream("traffic").random(1000)
    assert np.array_equal(plain.stream("mobility").random(5), busy.stream("mobility").random(5))
    assert not np.array_equal(Kernel(8).stream("mobility").random(5), Kernel(7).stream("mobility").random(5))
    assert seed_from("a", 1) == seed_from("a", 1) != seed_from("a1")
    assert 0 <= seed_from(7, "mobility") < 2**63


def test_pool_serves_in_order_up_to_its_size() -> None:
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


def test_link_keeps_order_when_its_delay_falls() -> None:
    kernel = Kernel(1)
    log: list[Any] = []
    link = DelayLine(kernel, 0.050)
    link.send(log.append, "slow")
    link.delay_s = 0.010
    assert link.send(log.append, "fast") == 0.050
    kernel.run()
    assert log == ["slow", "fast"]


def test_link_with_rate_sends_messages_one_after_another() -> None:
    kernel = Kernel(1)
    link = DelayLine(kernel, 0.1, rate_bytes_per_s=1_000.0)
    assert link.send(lambda: None, size_bytes=500) == pytest.approx(0.6)
    assert link.send(lambda: None, size_bytes=500) == pytest.approx(1.1)
    assert link.sent_bytes == 1000
