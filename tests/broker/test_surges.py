"""Announcements that foretell a burst: the broker restarts its averages and reports at once."""

from __future__ import annotations

import pytest

from tests.broker.simulated import FIRE, A, SimulatedNetwork, subscribed
from tests.broker.simulated_ends import CHANNEL
from tocsin.broker import events
from tocsin.broker.effects import SendToCoordinator
from tocsin.model.ids import SubscriptionId
from tocsin.model.rate import MovingAverage
from tocsin.wire import link


def announce(
    network: SimulatedNetwork, number: int, size_bytes: int, parts: int = 1, period_s: float = 10.0
) -> link.LoadReport:
    """Announce an execution a period after the last one, and return the load report before its results arrive."""
    core = network.brokers[A]
    network.now_s += period_s
    for part in range(parts):
        is_last = part == parts - 1
        subscription = FIRE if is_last else SubscriptionId(f"of-another-broker-{part}")
        event = events.ExecutionAnnounced(
            CHANNEL, 1, number, [subscription], network.now_s, [size_bytes], is_last_part=is_last
        )
        core.handle(event, network.now_s)
    report = core._reports.load_report()
    core.state.load.fetched(size_bytes, size_bytes, network.now_s)
    core.state.load.delivered(2 * size_bytes, 2 * size_bytes, 2, network.now_s)
    core.state.backends[FIRE].rate.add(size_bytes, network.now_s)
    return report


@pytest.mark.parametrize("parts", [1, 4])
def test_surge_is_reported_with_the_announced_rate(parts: int) -> None:
    network = subscribed("ann", "bob")
    for number in range(1, 13):
        assert not announce(network, number, 1_000, parts).surge
    report = announce(network, 13, 20_000, parts)
    assert report.surge
    share = report.shares.get(FIRE, 1.0)
    assert report.rates[FIRE] / share == pytest.approx(2_000.0, rel=0.05), "20,000 bytes in ten seconds"
    assert not announce(network, 14, 20_000, parts).surge, "the average has followed"


def test_larger_execution_of_a_minor_channel_is_no_surge() -> None:
    network = subscribed("ann", "bob")
    core = network.brokers[A]
    for number in range(1, 13):
        core.state.load.delivered(1_000_000, 1_000_000, 1, network.now_s + 10.0)
        announce(network, number, 1_000)
    assert not announce(network, 13, 20_000).surge


@pytest.mark.parametrize("period_s", [10.0, 60.0, 120.0, 300.0, 600.0])
def test_steady_channel_never_surges_whatever_its_period(period_s: float) -> None:
    network = subscribed("ann", "bob")
    assert not any(announce(network, number, 1_000, 1, period_s).surge for number in range(1, 30))


def test_outage_followed_by_a_backlog_is_no_surge() -> None:
    network = subscribed("ann", "bob")
    for number in range(1, 13):
        announce(network, number, 1_000)
    assert not announce(network, 13, 30_000, period_s=300.0).surge


def test_execution_announced_again_counts_once() -> None:
    network = subscribed("ann", "bob")
    for number in range(1, 13):
        announce(network, number, 1_000)
    core = network.brokers[A]
    network.now_s += 10.0
    for last in (False, False, False, False, True):
        core.handle(
            events.ExecutionAnnounced(CHANNEL, 1, 13, [FIRE], network.now_s, [1_000], is_last_part=last), network.now_s
        )
    assert not core._surges.unreported


def test_first_results_count_for_the_whole_period() -> None:
    """A subscription made just before an execution gets the results of a whole period at once."""
    network = subscribed("ann")
    core = network.brokers[A]
    announce(network, 1, 1_000)
    announce(network, 2, 1_000)
    core.state.backends[FIRE].rate = MovingAverage(began_s=network.now_s + 9.0)
    report = announce(network, 3, 1_000)
    assert report.shares[FIRE] == pytest.approx(0.154, abs=0.01), "ten seconds of sixty, not one"


def test_results_after_a_long_silence_count_for_one_period() -> None:
    network = subscribed("ann")
    core = network.brokers[A]
    announce(network, 1, 1_000)
    announce(network, 2, 1_000)
    core.state.backends[FIRE].rate = MovingAverage(began_s=network.now_s + 595.0)
    report = announce(network, 3, 1_000, period_s=600.0)
    assert report.shares[FIRE] == pytest.approx(0.154, abs=0.01), "executions without results are not announced"


def test_burst_above_the_limit_is_reported_although_it_is_no_surge() -> None:
    """1,000 bytes in ten seconds for two sessions are a load of 300 bytes/s; 1,800 bytes are 540."""
    network = subscribed("ann", "bob")
    core = network.brokers[A]
    core.handle(events.CoordinatorMessageReceived(link.Accepting(True, False, 450.0)), network.now_s)
    for number in range(1, 31):
        assert not announce(network, number, 1_000).overload
    report = announce(network, 31, 1_800)
    assert (report.surge, report.overload) == (False, True)
    assert report.rates[FIRE] == pytest.approx(180.0, rel=0.05), "the model exceeds the limit as well"
    assert not announce(network, 32, 1_800).overload, "reported once"


def test_burst_without_limit_or_below_it_is_not_reported() -> None:
    for limit in (0.0, 600.0):
        network = subscribed("ann", "bob")
        network.brokers[A].handle(events.CoordinatorMessageReceived(link.Accepting(True, False, limit)), network.now_s)
        assert not any(announce(network, number, 1_000).overload for number in range(1, 31))
        assert not announce(network, 31, 1_800).overload


def test_report_of_a_burst_above_the_limit_does_not_wait() -> None:
    network = subscribed("ann")
    network.coordinator.link_up(A)
    core = network.brokers[A]
    core.handle(events.Ticked(), network.now_s)
    for due in (False, True):
        network.now_s += 0.6
        core._surges.overload_unreported = due
        effects = core.handle(events.Ticked(), network.now_s)
        sent = [effect.message for effect in effects if isinstance(effect, SendToCoordinator)]
        assert [message.overload for message in sent if isinstance(message, link.LoadReport)] == [True] * due
