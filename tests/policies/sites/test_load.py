"""Load states over time, and the counters of a live broker."""

from __future__ import annotations

import pytest

from tests.policies.sites.offload_worlds import EDGE, THRESHOLDS
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.load import LoadMeter, LoadStates
from tocsin.policies.sites.migration import (
    TIMEOUT_S,
    LeaveBusy,
    OffloadDeadlinePassed,
    OffloadMigrations,
    OffloadOrdered,
)
from tocsin.policies.sites.types import NO_LOAD, Load, LoadState, Offload, SiteId, SiteMove, total
from tocsin.policies.topics.types import TopicName

A, B = BrokerId("a"), BrokerId("b")


def matching(load: float) -> Load:
    return Load(0.0, 0.0, load)


def test_state_follows_the_average_of_two_seconds() -> None:
    states = LoadStates(THRESHOLDS)
    seen = [states.state(A, EDGE)]
    for load in (800.0, 1_000.0, 1_000.0, 910.0, 100.0):
        states.measure(A, matching(load))
        seen.append(states.state(A, EDGE))
    low, high, overload = LoadState.LOW, LoadState.HIGH, LoadState.OVERLOAD
    assert seen == [low, low, high, overload, high, low]


def test_busy_hides_the_measured_state_until_it_is_left() -> None:
    states = LoadStates(THRESHOLDS)
    states.measure(A, matching(990.0))
    states.enter_busy((A, B))
    states.measure(A, matching(990.0))
    assert [states.state(broker, EDGE) for broker in (A, B)] == [LoadState.BUSY] * 2
    states.leave_busy(A, matching(500.0))
    assert states.state(A, EDGE) is LoadState.LOW, "earlier measurements do not count"
    assert states.state(B, EDGE) is LoadState.BUSY
    states.leave_busy(B, matching(960.0))
    assert states.state(B, EDGE) is LoadState.OVERLOAD


def test_busy_is_left_at_the_time_out_if_no_client_confirms() -> None:
    states, migrations = LoadStates(THRESHOLDS), OffloadMigrations()
    move = SiteMove(TopicName("t"), (SubscriberId("s"),), A, B, SiteId("here"), NO_LOAD)
    migrations.handle(OffloadOrdered(Offload(A, (move,), "overloaded")), 0.0)
    states.enter_busy((A, B))
    for effect in migrations.handle(OffloadDeadlinePassed(), TIMEOUT_S):
        if isinstance(effect, LeaveBusy):
            for broker in effect.brokers:
                states.leave_busy(broker, matching(100.0))
    assert [states.state(broker, EDGE) for broker in (A, B)] == [LoadState.LOW] * 2


def test_meter_gives_loads_per_second_and_topic() -> None:
    meter = LoadMeter(now_s=10.0)
    first, second = TopicName("t1"), TopicName("t2")
    for _ in range(10):
        meter.count(first, received_bytes=100, sent_bytes=300, matched=1)
    meter.count(second, sent_bytes=50)
    assert meter.take(10.0) == {}, "no time has passed, and nothing is lost"
    loads = meter.take(12.0)
    assert loads == {first: Load(500.0, 1_500.0, 5.0), second: Load(0.0, 25.0, 0.0)}
    assert total(loads.values()) == pytest.approx(Load(500.0, 1_525.0, 5.0))
    assert meter.take(13.0) == {}
