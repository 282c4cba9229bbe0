"""The schedule of channels: periods are kept, overruns counted, and no channel runs twice at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.schedule import SHORT_ROUND_S, Schedule, joint_groups, phase_s, rest_s
from tocsin.model.ids import ChannelName

SLOW, FAST, LIVE = ChannelName("slow"), ChannelName("fast"), ChannelName("live")


def test_repetitive_channel_keeps_its_period() -> None:
    schedule = Schedule()
    schedule.add_repetitive(FAST, 10.0, now_s=0.0)
    ran = []
    for now in range(100):
        for channel in schedule.take_due(float(now)):
            ran.append(now)
            schedule.finished(channel, now + 0.9)
    assert ran == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert schedule.missed(FAST) == 0


@given(st.dictionaries(st.text(max_size=3), st.sampled_from(["reports", "places"])), st.integers(1, 5))
def test_groups_are_small_even_and_read_the_same(reads: dict[str, str], most: int) -> None:
    groups = joint_groups({ChannelName(name): dataset for name, dataset in reads.items()}, most)
    assert groups.keys() == reads.keys()
    members: dict[int, list[str]] = {}
    for name, group in groups.items():
        members.setdefault(group, []).append(name)
    for dataset in set(reads.values()):
        sizes = [len(names) for names in members.values() if reads[names[0]] == dataset]
        assert max(sizes) <= most and max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-list(reads.values()).count(dataset) // most)
    assert all(len({reads[name] for name in names}) == 1 for names in members.values())


def test_channels_of_a_group_wait_until_none_of_them_runs() -> None:
    schedule, other = Schedule(), ChannelName("other")
    for name in (SLOW, FAST, LIVE, other):
        schedule.add_continuous(name)
    schedule.groups = {SLOW: 0, FAST: 0, LIVE: 1}
    for name in (SLOW, LIVE, other):
        schedule.arrived(name, 1.0)
    assert schedule.take_due(1.0) == [LIVE, other, SLOW]
    for name in (FAST, LIVE):
        schedule.arrived(name, 2.0)
    assert schedule.take_due(2.0) == [] and schedule.wait_s(2.0) is None
    schedule.finished(LIVE, 2.5)
    assert schedule.take_due(2.5) == [LIVE], "the other group runs"
    schedule.arrived(SLOW, 2.6)
    schedule.finished(SLOW, 3.0)
    assert schedule.take_due(3.0) == [FAST, SLOW]


def test_group_rests_after_a_long_round_and_others_do_not() -> None:
    schedule = Schedule()
    for name in (SLOW, FAST, LIVE):
        schedule.add_continuous(name)
        schedule.arrived(name, 1.0)
    schedule.groups = {SLOW: 0, FAST: 0}
    schedule.rest(0, 1.5)
    assert schedule.take_due(1.0) == [LIVE]
    assert schedule.wait_s(1.0) == 0.5
    assert schedule.due_since_s(SLOW, 1.2) == 1.0, "the rest counts as waiting"
    assert schedule.take_due(1.5) == [FAST, SLOW]


@given(st.floats(0.0, 100.0))
def test_rest_is_at_most_as_long_as_the_round(round_s: float) -> None:
    assert 0.0 <= rest_s(round_s) <= min(round_s, 0.5)
    assert rest_s(SHORT_ROUND_S) == 0.0


def test_channels_created_together_run_at_different_moments() -> None:
    phases = sorted(phase_s(10.0, number) for number in range(8))
    gaps = [later - earlier for earlier, later in zip(phases, [*phases[1:], 10.0], strict=True)]
    assert phases[0] == 0.0 and phases[-1] < 10.0
    assert min(gaps) > 0.5 and max(gaps) < 2.5


def test_execution_that_overruns_ends_and_its_missed_ticks_are_counted() -> None:
    """An overrun does not stop the channel."""
    schedule = Schedule()
    schedule.add_repetitive(SLOW, 10.0, now_s=0.0)
    assert schedule.take_due(10.0) == [SLOW]
    assert schedule.take_due(20.0) == [], "it is still running"
    assert schedule.finished(SLOW, 47.0) == 3  # the ticks at 20, 30 and 40
    assert schedule.take_due(47.0) == []
    assert schedule.wait_s(47.0) == 3.0
    assert schedule.take_due(50.0) == [SLOW], "the channel still runs"
    assert schedule.missed(SLOW) == 3


def test_tick_due_when_an_execution_ends_is_not_missed() -> None:
    schedule = Schedule()
    schedule.add_repetitive(SLOW, 10.0, now_s=0.0)
    schedule.take_due(10.0)
    assert schedule.finished(SLOW, 20.0) == 0
    assert schedule.take_due(20.0) == [SLOW]


def test_continuous_channel_runs_again_for_records_that_arrived_meanwhile() -> None:
    schedule = Schedule()
    schedule.add_continuous(LIVE)
    assert schedule.take_due(1.0) == [] and schedule.wait_s(1.0) is None
    schedule.arrived(LIVE, 2.0)
    assert schedule.take_due(2.0) == [LIVE]
    schedule.arrived(LIVE, 2.5)
    assert schedule.take_due(2.5) == []
    assert schedule.finished(LIVE, 3.0) == 0
    assert schedule.take_due(3.0) == [LIVE]
    schedule.finished(LIVE, 4.0)
    assert schedule.take_due(4.0) == []


def test_longest_waiting_channel_runs_first_and_removed_channel_never() -> None:
    schedule = Schedule()
    schedule.add_repetitive(FAST, 1.0, now_s=0.0)
    schedule.add_repetitive(SLOW, 5.0, now_s=0.0)
    schedule.add_continuous(LIVE)
    schedule.arrived(LIVE, 0.5)
    assert schedule.take_due(6.0) == [LIVE, FAST, SLOW]
    schedule.remove(FAST)
    assert schedule.finished(FAST, 6.0) == 0
    assert FAST not in schedule.take_due(100.0)


@given(st.floats(0.1, 100), st.lists(st.floats(0, 500), max_size=20))
def test_every_tick_runs_or_counts_as_missed(period_s: float, durations_s: list[float]) -> None:
    schedule = Schedule()
    schedule.add_repetitive(SLOW, period_s, now_s=0.0)
    now, runs, missed = 0.0, 0, 0
    for duration_s in durations_s:
        wait_s = schedule.wait_s(now)
        assert wait_s is not None
        now += wait_s + 1e-9 * period_s
        assert schedule.take_due(now) == [SLOW]
        runs += 1
        now += duration_s
        missed += schedule.finished(SLOW, now)
    assert missed == schedule.missed(SLOW)
    assert abs((runs + missed) * period_s - now) <= period_s * (1 + 1e-6)


def test_channel_is_due_since_its_first_arrival_until_an_execution_succeeds() -> None:
    schedule = Schedule()
    schedule.add_continuous(LIVE)
    assert schedule.due_since_s(LIVE, 5.0) is None
    schedule.arrived(LIVE, 10.0)
    schedule.take_due(11.0)
    schedule.finished(LIVE, 12.0, succeeded=False)
    schedule.arrived(LIVE, 13.0)
    assert schedule.due_since_s(LIVE, 14.0) == 10.0, "a failed execution covers nothing"
    schedule.take_due(14.0)
    schedule.arrived(LIVE, 15.0)
    schedule.finished(LIVE, 16.0)
    assert schedule.due_since_s(LIVE, 17.0) == 15.0
    schedule.take_due(17.0)
    schedule.finished(LIVE, 18.0)
    assert schedule.due_since_s(LIVE, 19.0) is None


def test_repetitive_channel_is_due_since_its_first_uncovered_tick() -> None:
    schedule = Schedule()
    schedule.add_repetitive(FAST, 10.0, now_s=0.0)
    assert schedule.due_since_s(FAST, 9.0) is None
    for at_s in (10.0, 20.0, 30.0):
        schedule.take_due(at_s)
        assert schedule.due_since_s(FAST, at_s) == 10.0
        schedule.finished(FAST, at_s + 1.0, succeeded=at_s == 30.0)
    assert schedule.due_since_s(FAST, 39.0) is None
