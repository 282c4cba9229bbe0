"""A data cluster that kills itself at a chosen commit; run by test_crash.py in a process of its own.

    python crash_child.py SETTINGS ROUND WHERE

SETTINGS is a JSON object of the data cluster's settings. WHERE names a commit of the catalog, and whether to die
before or after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.cluster.emergency import declare
from tocsin.cluster.catalog.definitions import DatasetTable
from tocsin.cluster.catalog.executions import ExecutionTable
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.gateway import RecordForm
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.spark.session import make_session
from tocsin.model.ids import BrokerId

APPLICATION = """
CREATE STREAM DATASET Reports (id STRING, kind STRING) KEY (id);
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.* FROM NEW Reports r WHERE r.kind = :kind;
"""
KINDS = ("fire", "flood")
LOOPS = 2
COMMITS: dict[str, tuple[type[Any], str]] = {
    "records": (DatasetTable, "commit_records"),
    "execution": (ExecutionTable, "commit"),
}


def die_at(where: str) -> None:
    """Kill this process, as the kernel would, around the last of the LOOPS calls of a commit."""
    moment, _, commit_of = where.partition(" ")
    table, method = COMMITS[commit_of]
    original: Callable[..., Any] = getattr(table, method)
    calls = 0

    def commit(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == LOOPS and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        outcome = original(self, *args, **named)
        if calls == LOOPS and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    setattr(table, method, commit)


def report_acknowledged(acknowledged: list[str]) -> None:
    sys.stdout.write(json.dumps(acknowledged) + "\n")
    sys.stdout.flush()


def main(settings: str, round_number: str, where: str) -> None:
    spark = make_session("local[2]", {"spark.driver.memory": "1g"})
    cluster = DataCluster(spark, ClusterSettings(**json.loads(settings)), time.time)
    if not cluster.channels.all():
        declare(cluster, APPLICATION)
        cluster.subscribe("OfKind", [{"kind": kind} for kind in KINDS], BrokerId("north"))
    die_at(where)
    gateway = cluster.gateway("Reports")
    for loop in range(20):
        names = [f"{round_number}-{loop}-{index}" for index in range(40)]
        records = [{"id": name, "kind": KINDS[index % 2]} for index, name in enumerate(names)]
        gateway.accept(json.dumps(records).encode(), RecordForm.JSON)
        gateway.sync()
        report_acknowledged(names)
        cluster.catch_up("Reports")
        cluster.execute("OfKind")
    raise AssertionError("this process should have died by now")


if __name__ == "__main__":
    main(*sys.argv[1:])
