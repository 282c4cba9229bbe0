"""Latencies and stages of a city's deliveries, on numbers that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.benchmarks.shared.stages import Executions, Stages, merged, pull_share, stages
from tocsin.demo.account import DemoAccount, PublishedReport
from tocsin.demo.deliveries import Deliveries, quantiles_s
from tocsin.model.cursor import offset_of


def account() -> DemoAccount:
    """Reports 0 to 3 at 100, 110, 120 and 130 s. Ann receives all, the last two by execution 8."""
    made = DemoAccount()
    for number in range(4):
        made.publish(number, PublishedReport("fire", 1, 60.0, 24.0, 100.0 + 10.0 * number))
    made.grant("ann", "s", "C", {}, f"1-{offset_of(1)}", 90.0)
    holding = made.holding("ann", "s")
    for number, execution, row, received_s in ((0, 5, 1, 104.0), (1, 6, 1, 117.0), (2, 8, 1, 136.0), (3, 8, 2, 136.0)):
        made.take(holding, f"1-{offset_of(execution, row)}", number, received_s)
    return made


def deliveries(made: DemoAccount) -> Deliveries:
    return Deliveries.of(made, list(made))


EXECUTIONS = Executions.of(
    [
        {"execution": 8, "started_s": 132.0, "finished_s": 134.0},
        {"execution": 5, "started_s": 102.0, "finished_s": 103.0},
        {"execution": 6, "started_s": 112.0, "finished_s": 114.0},
    ]
)


def test_latency_is_from_send_to_receipt_of_each_record() -> None:
    assert deliveries(account()).latencies_s == pytest.approx([4.0, 7.0, 16.0, 6.0])


def test_window_chooses_by_the_time_of_publication() -> None:
    assert deliveries(account()).between(110.0, 130.0).reports.tolist() == [1, 2]


def test_absence_is_subtracted_and_its_own_records_do_not_count() -> None:
    made = account()
    made.log_in("ann", 95.0)
    made.log_out("ann", 112.0)
    made.log_in("ann", 125.0)
    found = deliveries(made)
    assert found.reports.tolist() == [0, 1, 3], "report 2 was published during the absence"
    assert found.latencies_s == pytest.approx([4.0, 7.0 - 5.0, 6.0]), "ann was away from 112 to 117 s"


def test_stages_add_up_to_the_mean_latency() -> None:
    stored_s = np.array([101.0, 113.0, 121.0, 131.0])
    found = stages(deliveries(account()), EXECUTIONS, stored_s, share=0.25)
    assert found is not None and found.deliveries == 4
    # Report 1 was matched by an execution that began before its batch was committed.
    assert found.ingest_s == pytest.approx((1.0 + 2.0 + 1.0 + 1.0) / 4)
    assert found.tick_s == pytest.approx((1.0 + 0.0 + 11.0 + 1.0) / 4)
    assert found.execution_s == pytest.approx((1.0 + 2.0 + 2.0 + 2.0) / 4)
    assert found.pull_s == pytest.approx((1.0 + 3.0 + 2.0 + 2.0) / 4 * 0.25)
    total_s = found.ingest_s + found.tick_s + found.execution_s + found.pull_s + found.delivery_s
    assert total_s == pytest.approx((4.0 + 7.0 + 16.0 + 6.0) / 4)


def test_deliveries_without_known_storing_time_have_no_stages() -> None:
    assert stages(deliveries(account()), EXECUTIONS, np.full(4, np.nan), 0.0) is None
    assert stages(deliveries(account()), Executions.of([]), np.full(4, 100.0), 0.0) is None


def test_pull_share_ends_at_receipt_and_skips_unknown_executions() -> None:
    found = deliveries(account())
    assert pull_share(found, EXECUTIONS, {5: 103.5}) == pytest.approx(0.5)
    assert pull_share(found, EXECUTIONS, {5: 200.0}) == pytest.approx(1.0)
    assert pull_share(found, EXECUTIONS, {}) == 0.0


def test_several_channels_are_weighted_by_their_deliveries() -> None:
    total = merged([Stages(3, 1.0, 2.0, 3.0, 4.0, 5.0), Stages(1, 5.0, 2.0, 3.0, 0.0, 1.0)])
    assert total == Stages(4, 2.0, 2.0, 3.0, 3.0, 4.0)
    assert merged([]) is None


def test_quantiles_of_nothing_are_none() -> None:
    assert quantiles_s([]) == (None, None)
    assert quantiles_s([np.array([1.0]), np.array([3.0])])[0] == pytest.approx(2.0)
