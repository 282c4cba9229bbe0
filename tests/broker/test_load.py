"""Load: moving averages, and the load report [BAD §4]."""

from __future__ import annotations

import pytest

from tests.broker.simulated import FIRE, A, linked_network, state_of, subscribed
from tocsin.broker.message_encoding import Encoding
from tocsin.wire import link


def test_backlog_of_a_prepared_subscriber_is_not_a_rate() -> None:
    """The first fetch of a migration's target starts at the subscriber's old cursor."""
    network = linked_network()
    for _ in range(30):
        network.cluster.execute({"fire": 20})
    network.coordinator.send(A, link.Prepare("m1", state_of("ann", "fire"), 30.0))
    network.settle()
    load, backend = network.brokers[A].state.load, network.brokers[A].state.backends[FIRE]
    assert load.in_bytes == load.catch_up_bytes > 0 and backend.rate.value_per_s == 0.0
    network.cluster.execute({"fire": 20})
    network.settle()
    assert backend.rate.value_per_s > 0.0
    assert load.in_bytes - load.catch_up_bytes == round(backend.rate.value_per_s * backend.rate.window_s)


def test_load_report_counts_shared_results_once_in_and_twice_out() -> None:
    """Two subscribers share one backend subscription [BAD §4, eq. 1, 4]."""
    network = subscribed("ann", "bob")
    core = network.brokers[A]
    network.cluster.execute({"fire": 4})
    network.settle()
    report = core._reports.load_report()
    batch = core.state.backends[FIRE].batches[0]
    frames = batch.encoded(Encoding.JSON)
    assert report.rates[FIRE] == pytest.approx(batch.raw_bytes / core.state.limits.rate_window_s), "as it was fetched"
    assert (report.in_bytes, report.out_bytes) == (batch.raw_bytes, 2 * len(frames))
    assert report.delivery_ratio == pytest.approx(len(frames) / batch.raw_bytes)
    assert core.state.load.notifications == 8
    assert core.state.load.out_bytes == 2 * len(core.state.backends[FIRE].batches[0].encoded(Encoding.JSON))
