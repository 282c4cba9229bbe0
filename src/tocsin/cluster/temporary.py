"""A data cluster on a temporary root, for commands that need Spark but no data: `tocsin check`, `tocsin prepare`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from tocsin.cluster.applying import apply, check
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.gateway import RecordForm
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.spark.session import Session, make_session
from tocsin.cluster.sql.problems import Problem
from tocsin.model.ids import BrokerId

_SMALL: Final = {"spark.driver.memory": "1g"}
_SAMPLE: Final = """
CREATE STREAM DATASET Reports (id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, at TIMESTAMP) KEY (id);
CREATE KEYED DATASET Places (user STRING, lat DOUBLE, lon DOUBLE) KEY (user);
CREATE REPETITIVE CHANNEL OfKind (kind STRING) EVERY 10 SECONDS AS
  SELECT r.kind, count(*) AS reports, max(r.severity) AS worst FROM NEW Reports r WHERE r.kind = :kind GROUP BY r.kind;
CREATE REPETITIVE CHANNEL PastOfKind (kind STRING) EVERY 10 SECONDS AS
  SELECT r.id FROM NEW Reports r WHERE r.kind = :kind AND r.at < current_timestamp();
CREATE CONTINUOUS CHANNEL NearMe (user STRING, radius_m DOUBLE) AS
  SELECT r.*, distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m
  FROM NEW Reports r JOIN Places u ON near(r.lat, r.lon, u.lat, u.lon, :radius_m) WHERE u.user = :user;
CREATE REPETITIVE CHANNEL PeopleNear (kind STRING) EVERY 10 SECONDS AS
  SELECT e.* FROM (
    SELECT r.id, r.kind, slice(array_sort(collect_list(struct(distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m, u.user))
      FILTER (WHERE u.user IS NOT NULL)), 1, 3) AS people
    FROM NEW Reports r LEFT JOIN Places u ON near(r.lat, r.lon, u.lat, u.lon, 1000) GROUP BY r.id, r.kind
  ) e WHERE e.kind = :kind;
"""
"""Channels and datasets of each kind: together they make Spark load the classes that other channels need.

`PastOfKind` names the present time, so each of its executions is planned anew.
"""


_LARGE_BACKLOG_RECORDS: Final = 12_000
"""Records of more than 1 MiB: a streaming query moves them, and executors write the results."""


def check_application(text: str, file: Path) -> list[Problem]:
    """Problems that Spark finds when it compiles the channels of an application file. Starts and stops Spark."""
    session = make_session("local[1]", _SMALL)
    try:
        with _temporary_cluster(session) as cluster:
            return check(cluster, text, str(file), str(file.absolute().parent))
    finally:
        session.stop()


def make_small_session(settings: dict[str, str]) -> Session:
    return make_session("local[1]", _SMALL | settings)


def run_sample_channels(session: Session) -> None:
    """Execute each sample channel with one subscription, first over one report, then over many."""
    report = {"kind": "fire", "severity": 4, "lat": 60.17, "lon": 24.94, "at": "2026-01-01T00:00:00Z"}
    with _temporary_cluster(session) as cluster:
        apply(cluster, _SAMPLE, "sample.sql", ".")
        for channel in ("OfKind", "PastOfKind", "PeopleNear"):
            cluster.subscribe(channel, [{"kind": "fire"}], BrokerId("b"))
        cluster.subscribe("NearMe", [{"user": "ann", "radius_m": 500.0}], BrokerId("b"))
        _publish(cluster, "Places", [{"user": "ann", "lat": 60.17, "lon": 24.94}])
        for count in (1, _LARGE_BACKLOG_RECORDS):
            _publish(cluster, "Reports", [{"id": f"{count}-{number}", **report} for number in range(count)])
            for live in cluster.channels.all():
                if cluster.execute(live.name) is None:
                    raise RuntimeError(f"the sample channel {live.name} had no results")


def _publish(cluster: DataCluster, dataset: str, records: list[dict[str, Any]]) -> None:
    gateway = cluster.gateway(dataset)
    gateway.accept(msgspec.json.encode(records), RecordForm.JSON)
    gateway.sync()
    cluster.catch_up(dataset)


@contextmanager
def _temporary_cluster(session: Session) -> Iterator[DataCluster]:
    with tempfile.TemporaryDirectory(prefix="tocsin-") as root:
        cluster = DataCluster(session, ClusterSettings(root=root), time.time)
        try:
            yield cluster
        finally:
            cluster.close()
