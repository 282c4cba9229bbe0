"""A data cluster that dies where it is told to; run by test_crash.py in a process of its own.

    python crash_child.py ROOT ROUND WHERE

WHERE names a commit of the catalog and whether to die before or after it, or is `never`: then it drains and reports.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.cluster.test_engine import declare
from tests.conftest import results_of
from tocsin.cluster.catalog import Catalog, dataset_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.gateway import RecordForm
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.spark.frames import dataset_frame
from tocsin.cluster.spark.session import make_session
from tocsin.cluster.upkeep import maintain
from tocsin.model.ids import BrokerId

APPLICATION = """
CREATE STREAM DATASET Reports (id STRING, kind STRING) KEY (id);
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.* FROM NEW Reports r WHERE r.kind = :kind;
"""
LOOPS = 2


def die_at(where: str) -> None:
    """Kill this process, as the kernel would, around the last of the LOOPS calls of a commit."""
    moment, _, method = where.partition(" ")
    original: Callable[..., Any] = getattr(Catalog, method)
    calls = 0

    def commit(self: Catalog, *args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == LOOPS and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        outcome = original(self, *args, **named)
        if calls == LOOPS and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    setattr(Catalog, method, commit)


def say(what: str, value: object) -> None:
    sys.stdout.write(json.dumps([what, value]) + "\n")
    sys.stdout.flush()


def main(root: str, round_number: str, where: str) -> None:
    spark = make_session("local[2]", {"spark.driver.memory": "1g"})
    cluster = DataCluster(spark, ClusterSettings(root=root), time.time)
    if not cluster.channels():
        declare(cluster, APPLICATION)
        cluster.subscribe("OfKind", [{"kind": "fire"}, {"kind": "flood"}], BrokerId("north"))
    if where != "never":
        die_at(where)
        for loop in range(20):
            names = [f"{round_number}-{loop}-{index}" for index in range(40)]
            gateway = cluster.gateway("Reports")
            kinds = ("fire", "flood")
            records = [{"id": name, "kind": kinds[index % 2]} for index, name in enumerate(names)]
            gateway.accept(json.dumps(records).encode(), RecordForm.JSON)
            gateway.sync()
            say("acknowledged", names)
            cluster.catch_up("Reports")
            cluster.execute("OfKind")
        raise AssertionError("this process should have died by now")
    cluster.catch_up("Reports")
    while cluster.execute("OfKind") is not None:
        pass
    maintain(cluster)
    live = cluster.dataset("Reports")
    files = cluster.catalog.files(dataset_owner("Reports"))
    frame = dataset_frame(spark, cluster.storage, live.dataset, files)
    say("stored", [row.id for row in frame.collect()])
    say("results", [row["id"] for rows in results_of(cluster, "OfKind").values() for row in rows])
    say("announced", sum(news.results for news in _news(cluster)))
    cluster.close()
    spark.stop()


def _news(cluster: DataCluster) -> list[Any]:
    heard, after = [], 0
    while True:
        news = cluster.announcements.since(BrokerId("north"), after)
        heard += [subscription for execution in news.announcements for subscription in execution.subscriptions]
        if news.sequence == after:
            return heard
        after = news.sequence


if __name__ == "__main__":
    main(*sys.argv[1:])
