"""kill -9 around every commit: no acknowledged record is lost, and none is stored or matched twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ClusterAt, results_of
from tests.object_storage import ObjectStore
from tocsin.cluster.catalog import dataset_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.spark.frames import dataset_frame
from tocsin.cluster.spark.session import Session
from tocsin.cluster.upkeep import maintain
from tocsin.model.ids import BrokerId

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parent.parent.parent
DEATHS = (
    "before records",  # the files are written, the catalog does not know them
    "after records",  # the catalog has the batch, Spark's checkpoint does not: Spark runs it again
    "before execution",  # results are written and must never become visible
    "after execution",  # results are visible, but not announced
)


def killed(settings: dict[str, str], round_number: int, where: str) -> list[str]:
    """The records that a data cluster acknowledged before it killed itself at `where`."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.cluster.crash_child", json.dumps(settings), str(round_number), where],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr[-3000:]
    return [name for line in child.stdout.splitlines() if line.startswith("[") for name in json.loads(line)]


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_killed_data_cluster_loses_no_record_and_repeats_none(
    spark: Session, cluster_at: ClusterAt, tmp_path: Path, place: str, request: pytest.FixtureRequest
) -> None:
    store: ObjectStore | None = request.getfixturevalue("object_store") if place == "bucket" else None
    settings = {"root": str(tmp_path)} if store is None else store.settings(tmp_path)
    deaths = DEATHS if store is None else DEATHS[::3]
    acknowledged: list[str] = []
    for round_number, where in enumerate(deaths):
        acknowledged += killed(settings, round_number, where)
    assert len(acknowledged) >= 40 * len(deaths)

    cluster = cluster_at(tmp_path, store=store)
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
    assert _announced(cluster) == len(results), "every result is announced"


def _announced(cluster: DataCluster) -> int:
    announced, after = 0, 0
    while (news := cluster.announcements.since(BrokerId("north"), after)).sequence != after:
        announced += sum(row.results for execution in news.announcements for row in execution.subscriptions)
        after = news.sequence
    return announced
