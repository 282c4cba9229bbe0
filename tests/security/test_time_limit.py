"""An execution that runs away is cancelled, reported with advice, and does not stop the channel."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.emergency import APPLICATION, NORTH, declare, ids, report
from tests.conftest import Clock, ClusterAt, publish, results_of
from tocsin.cluster import executions
from tocsin.cluster.spark.execution import execute
from tocsin.cluster.spark.time_limit import TimeOver
from tocsin.cluster.spark.writing import WrittenResults
from tocsin.wire.errors import Code, TocsinError

pytestmark = pytest.mark.spark

PAIRS = """
CREATE REPETITIVE CHANNEL Pairs (most BIGINT) EVERY 1 HOUR AS
  SELECT r.id FROM NEW Reports r JOIN range(1000000) a ON a.id < :most JOIN range(1000000) b ON b.id < :most
  WHERE a.id + b.id >= 0;
"""


def test_runaway_execution_is_cancelled_and_the_channel_continues(cluster_at: ClusterAt, clock: Clock) -> None:
    cluster = cluster_at(execution_s=3.0)
    declare(cluster, APPLICATION + PAIRS)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    (runaway,) = cluster.subscribe("Pairs", [{"most": 1_000_000}], NORTH)
    publish(cluster, "Reports", [report("a")])
    with pytest.raises(TocsinError, match=r"channel Pairs.*longer than 3 s.*execution_s") as refused:
        cluster.execute("Pairs")
    assert refused.value.code is Code.TOO_LARGE
    assert cluster.spark.sparkContext.statusTracker().getActiveJobsIds() == []
    assert cluster.channel("Pairs").subscribers.count == 1, "no subscription is blamed for the time"
    cluster.unsubscribe("Pairs", [runaway.id], NORTH)
    clock.passed_s += cluster.settings.unheld_s
    assert cluster.channels.end_unheld() == 1
    cluster.subscribe("Pairs", [{"most": 1}], NORTH)
    publish(cluster, "Reports", [report("b")])
    patient = cluster_at(execution_s=600.0)  # as with a raised setting: a busy machine must not fail this part
    for channel, key in (("Pairs", (1,)), ("OfKind", ("fire",))):
        patient.execute(channel)
        assert "b" in ids(results_of(patient, channel)[key])


def test_execution_that_takes_too_long_continues_with_half_of_the_records(
    cluster_at: ClusterAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_at()
    declare(cluster, APPLICATION)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for name in "abcd":
        publish(cluster, "Reports", [report(name)])
    sizes: list[int] = []

    def slow(*arguments: Any) -> WrittenResults:
        sizes.append(arguments[6].records)
        if sizes[-1] > 1:
            raise TimeOver("OfKind", 1800.0)
        return execute(*arguments)

    monkeypatch.setattr(executions, "execute", slow)
    for _ in range(4):
        cluster.execute("OfKind")
    assert sizes == [4, 2, 1, 3, 1, 2, 1, 1]
    assert ids(results_of(cluster, "OfKind")["fire",]) == ["a", "b", "c", "d"]
