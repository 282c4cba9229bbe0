"""Runs an application on a Spark standalone cluster, for test_standalone.py.  python … ROOT MASTER SECRET_FILE"""

from __future__ import annotations

import json
import sys
import time

from tests.cluster.emergency import APPLICATION, declare, report
from tests.conftest import publish, results_of
from tocsin.cluster.catalog import dataset_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.spark.archive import OPTIONS, java_options
from tocsin.cluster.spark.network import use_secret
from tocsin.cluster.spark.session import make_session
from tocsin.cluster.upkeep import maintain
from tocsin.model.ids import BrokerId

LARGE = 12_000
"""Records in a large batch: executors read, parse and write them, not the driver."""


def main(root: str, master: str, secret_file: str) -> None:
    use_secret(secret_file)
    settings = {"spark.executor.memory": "512m", "spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1"}
    settings["spark.executor.defaultJavaOptions"] = java_options().get(OPTIONS, "")  # executors on this machine
    spark = make_session(master, settings)
    cluster = DataCluster(spark, ClusterSettings(root=root), time.time)
    declare(cluster, APPLICATION)
    cluster.subscribe("OfKind", [{"kind": "fire"}, {"kind": "flood"}], BrokerId("north"))
    cluster.subscribe("NearMe", [{"user": "ann", "radius_m": 500.0}], BrokerId("north"))
    publish(cluster, "Places", [{"user_id": "ann", "lat": 60.17, "lon": 24.94, "at": "2026-11-15T18:00:00Z"}])
    for number, others in enumerate((0, 0, LARGE)):
        noise = [report(f"other{index}", "storm", severity=1) for index in range(others)]
        publish(cluster, "Reports", [report(f"r{number}"), report(f"far{number}", "flood", lat=61.0), *noise])
        cluster.execute("OfKind")
        cluster.execute("NearMe")
    maintain(cluster)
    executors = [str(worker.host()) for worker in spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()]
    results = {name: results_of(cluster, name) for name in ("OfKind", "NearMe")}
    files = cluster.catalog.files.of(dataset_owner("Reports"))
    answer = {
        name: {str(key): sorted(row["id"] for row in rows) for key, rows in by_subscription.items()}
        for name, by_subscription in results.items()
    }
    authenticated = spark.conf.get("spark.authenticate") == "true"
    report_row = {
        "authenticated": authenticated,
        "executors": len(executors),
        "rows": sum(file.rows for file in files),
        "results": answer,
    }
    cluster.close()
    spark.stop()
    sys.stdout.write(json.dumps(report_row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
