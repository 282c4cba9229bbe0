"""The data root of a data cluster: locked by one process, and restored from an older copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster.emergency import NORTH, REPORTS, declare, report
from tests.conftest import Clock, ClusterAt, publish
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.pulling import open_pull, pulled
from tocsin.cluster.restored import start_new_epochs
from tocsin.wire.errors import TocsinError

pytestmark = pytest.mark.spark

RESTORED_APPLICATION = """
CREATE STREAM DATASET Reports (id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, at TIMESTAMP) KEY (id);
CREATE REPETITIVE CHANNEL OfKind (kind STRING) EVERY 10 SECONDS AS
  SELECT r.id FROM NEW Reports r WHERE r.kind = :kind;
"""


def test_cursor_of_a_lost_epoch_is_a_gap_after_the_restore(cluster_at: ClusterAt, clock: Clock, tmp_path: Path) -> None:
    cluster = cluster_at()
    settings = cluster.settings
    declare(cluster, RESTORED_APPLICATION)
    [granted] = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("OfKind")
    publish(cluster, "Reports", [report("b")])
    with pytest.raises(TocsinError, match="another process"):
        start_new_epochs(settings, clock())
    cluster.close()
    copy = tmp_path / "copy"
    shutil.copytree(settings.root, copy)

    cluster = cluster_at()
    for number in range(3):
        publish(cluster, "Reports", [report(f"lost-{number}")])
        cluster.execute("OfKind")
    lost = open_pull(cluster, "OfKind", {granted.id: str(granted.cursor)}).upto
    cluster.close()
    shutil.rmtree(settings.root)
    shutil.copytree(copy, settings.root)

    assert start_new_epochs(settings, clock()) == ["OfKind"]
    cluster = cluster_at()
    for number in range(5):  # more executions than were lost
        publish(cluster, "Reports", [report(f"new-{number}")])
        cluster.execute("OfKind")
    pull = open_pull(cluster, "OfKind", {granted.id: str(lost)})
    assert list(pull.gaps) == [granted.id] and pull.upto.epoch > lost.epoch
    new = [f"new-{number}" for number in range(5)]
    names = sorted(row.result["id"] for page in pulled(cluster.results, pull) for row in page)
    assert names == ["b", *new], "b was stored and not matched yet when the copy was made"
    assert cluster.dataset(REPORTS).writer.version == 7


def test_root_is_open_in_one_process_at_a_time(cluster: DataCluster) -> None:
    with pytest.raises(TocsinError, match="another process"):
        DataCluster(cluster.spark, cluster.settings, cluster.now_s)
