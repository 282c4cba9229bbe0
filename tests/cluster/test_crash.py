"""kill -9 around every commit: nothing that was acknowledged is lost, nothing is stored or matched twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ClusterAt, results_of
from tocsin.cluster.catalog import dataset_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.spark.frames import dataset_frame
from tocsin.cluster.spark.session import Session
from tocsin.cluster.upkeep import maintain
from tocsin.model.ids import BrokerId

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parent.parent.parent
DEATHS = (
    "before commit_records",  # the files are written, the catalog does not know them
    "after commit_records",  # the catalog has the batch, Spark's checkpoint does not: Spark runs it again
    "before commit_execution",  # results are written, nobody may ever see them
    "after commit_execution",  # results are visible, nobody was told
)


def killed(root: Path, round_number: int, where: str) -> list[str]:
    """The records a data cluster acknowledged before it died as it was told to."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.cluster.crash_child", str(root), str(round_number), where],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr[-3000:]
    return [name for line in child.stdout.splitlines() if line.startswith("[") for name in json.loads(line)]


def test_a_killed_data_cluster_loses_nothing_and_repeats_nothing(
    spark: Session, cluster_at: ClusterAt, tmp_path: Path
) -> None:
    acknowledged: list[str] = []
    for round_number, where in enumerate(DEATHS):
        acknowledged += killed(tmp_path, round_number, where)
    assert len(acknowledged) >= 40 * len(DEATHS)

    cluster = cluster_at(tmp_path)
    cluster.catch_up("Reports")
    while cluster.execute("OfKind") is not None:
        pass
    maintain(cluster)
    files = cluster.catalog.files.of(dataset_owner("Reports"))
    frame = dataset_frame(spark, cluster.storage, cluster.dataset("Reports").dataset, files)
    stored = [row.id for row in frame.collect()]
    results = [row["id"] for rows in results_of(cluster, "OfKind").values() for row in rows]
    assert set(acknowledged) <= set(stored), "an acknowledged record was lost"
    assert not [name for name, count in Counter(stored).items() if count > 1], "a record was stored twice"
    assert Counter(results) == Counter(stored), "each record is matched by the channel exactly once"
    assert _announced(cluster) == len(results), "brokers hear of every result"


def _announced(cluster: DataCluster) -> int:
    heard, after = 0, 0
    while (news := cluster.announcements.since(BrokerId("north"), after)).sequence != after:
        heard += sum(one.results for execution in news.announcements for one in execution.subscriptions)
        after = news.sequence
    return heard
