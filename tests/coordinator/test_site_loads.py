"""The table of reported loads: averages, states, capacities."""

from __future__ import annotations

import math

from tocsin.coordinator.site_loads import SiteLoads
from tocsin.model.ids import BrokerId, TopicName
from tocsin.policies.sites.types import Load, LoadState
from tocsin.wire.site_link import Capacity, Role, SiteLoad, TopicLoad

A, B = BrokerId("a"), BrokerId("b")
LIMITED = Capacity(1_000.0, 10_000.0, 100.0)


def load(matched_per_s: float, *, in_bytes_per_s: float = 0.0, out_bytes_per_s: float = 0.0) -> SiteLoad:
    topics = [
        TopicLoad(TopicName("t"), in_bytes_per_s, out_bytes_per_s, matched_per_s, 3, 1),
        TopicLoad(TopicName("idle"), 0.0, 0.0, 0.0, 1, 0),
    ]
    return SiteLoad(topics, 500, 7, 9_000.0)


def test_report_has_the_average_of_two_seconds_and_its_state() -> None:
    loads = SiteLoads()
    loads.set_capacity(A, LIMITED)
    loads.receive(A, load(80.0), 1.0)
    loads.receive(A, load(100.0, in_bytes_per_s=500.0, out_bytes_per_s=5_000.0), 2.0)
    report = loads.report(A)
    assert report is not None
    assert report.load == Load(350.0, 3_500.0, 94.0)
    assert report.state is LoadState.HIGH
    assert report.used.matching == 0.94
    assert TopicName("idle") in report.topics
    assert loads.topics(A)[TopicName("t")].receivers == 3
    assert (loads.waiting(A), loads.sent_bytes_per_s(A), loads.received_s(A)) == ((500, 7), 9_000.0, 2.0)


def test_broker_without_a_report_has_none() -> None:
    loads = SiteLoads()
    loads.set_capacity(A, LIMITED)
    assert loads.report(A) is None
    assert (loads.topics(A), loads.waiting(A), loads.received_s(A)) == ({}, (0, 0), None)


def test_broker_without_limits_is_never_overloaded() -> None:
    loads = SiteLoads()
    loads.receive(A, load(1e6), 1.0)
    report = loads.report(A)
    assert (
        report is not None and report.state is LoadState.LOW and report.capacity == Load(math.inf, math.inf, math.inf)
    )


def test_changed_capacity_changes_the_state_at_once() -> None:
    loads = SiteLoads()
    loads.receive(A, load(100.0), 1.0)
    states = []
    for limit in (None, 101.0, 200.0):
        loads.set_capacity(A, Capacity(matched_per_s=limit))
        report = loads.report(A)
        assert report is not None
        states.append(report.state)
    assert states == [LoadState.LOW, LoadState.OVERLOAD, LoadState.LOW]


def test_matching_of_a_head_is_not_limited() -> None:
    loads = SiteLoads()
    loads.set_capacity(A, LIMITED)
    loads.set_role(A, Role.HEAD)
    loads.receive(A, load(1_000.0), 1.0)
    report = loads.report(A)
    assert report is not None and report.is_head and report.state is LoadState.LOW
    loads.set_role(A, Role.EDGE)
    report = loads.report(A)
    assert report is not None and not report.is_head and report.state is LoadState.OVERLOAD


def test_busy_is_left_with_the_state_of_the_latest_second() -> None:
    loads = SiteLoads()
    for broker in (A, B):
        loads.set_capacity(broker, LIMITED)
        loads.receive(broker, load(100.0), 1.0)
    loads.enter_busy((A, B))
    loads.receive(A, load(10.0), 2.0)
    loads.leave_busy((A, B))
    states = [report.state for broker in (A, B) if (report := loads.report(broker)) is not None]
    assert states == [LoadState.LOW, LoadState.OVERLOAD]


def test_forgotten_broker_starts_a_new_average_with_its_capacity() -> None:
    loads = SiteLoads()
    loads.set_capacity(A, LIMITED)
    loads.receive(A, load(100.0), 1.0)
    loads.forget(A)
    assert loads.report(A) is None
    loads.receive(A, load(40.0), 2.0)
    report = loads.report(A)
    assert report is not None and report.load.matched_per_s == 40.0 and report.capacity.matched_per_s == 100.0


def test_absurd_numbers_of_a_broker_count_as_nothing() -> None:
    loads = SiteLoads()
    loads.set_capacity(A, Capacity(0.0, -1.0, math.nan))
    message = SiteLoad([TopicLoad(TopicName("t"), math.nan, math.inf, -5.0, -1, -1)], -3, -4, math.inf)
    loads.receive(A, message, 1.0)
    report = loads.report(A)
    assert report is not None and report.load == Load() and report.capacity == Load(math.inf, math.inf, math.inf)
    assert loads.topics(A)[TopicName("t")].receivers == 0
    assert (loads.waiting(A), loads.sent_bytes_per_s(A)) == ((0, 0), 0.0)
