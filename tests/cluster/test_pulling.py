"""Pulling results: retention during a pull is an error, not a silent gap."""

from __future__ import annotations

import pytest

from tests.cluster.emergency import NORTH, report
from tests.conftest import publish
from tocsin.cluster.catalog import results_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.pulling import open_pull, pulled
from tocsin.wire.errors import TocsinError

pytestmark = pytest.mark.spark


def test_pull_fails_when_results_expire_after_it_was_opened(cluster: DataCluster) -> None:
    [granted] = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for name in ("a", "b"):
        publish(cluster, "Reports", [report(name)])
        cluster.execute("OfKind")
    live = cluster.channel("OfKind")
    cluster.results.forget_latest(live.name)  # a pull from memory has its results already
    pull = open_pull(cluster, "OfKind", {granted.id: str(granted.cursor)})
    assert not pull.gaps
    cluster.catalog.executions.expire(live.prepared.channel.name, cluster.now_s() + 1)
    cluster.catalog.files.expire(results_owner("OfKind", live.epoch), cluster.now_s() + 1, 2, cluster.now_s())
    with pytest.raises(TocsinError, match="request them again"):
        list(pulled(cluster.results, pull))
    again = open_pull(cluster, "OfKind", {granted.id: str(granted.cursor)})
    assert list(again.gaps) == [granted.id] and list(pulled(cluster.results, again)) == []
    assert cluster.catalog.executions.last_sequence() == 2, "a restart does not count from the start again"
