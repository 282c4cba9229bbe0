"""`tocsin prepare`: once per installation, so that data clusters start in half the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from tocsin.cli.options import AsJson
from tocsin.cli.output import fail, note, tell

if TYPE_CHECKING:
    from tocsin.cluster.spark.session import Session

APPLICATION: Final = """
CREATE STREAM DATASET Reports (id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, at TIMESTAMP) KEY (id);
CREATE KEYED DATASET Places (user STRING, lat DOUBLE, lon DOUBLE) KEY (user);
CREATE REPETITIVE CHANNEL OfKind (kind STRING) EVERY 10 SECONDS AS
  SELECT r.kind, count(*) AS reports, max(r.severity) AS worst FROM NEW Reports r WHERE r.kind = :kind GROUP BY r.kind;
CREATE CONTINUOUS CHANNEL NearMe (user STRING, radius_m DOUBLE) AS
  SELECT r.*, distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m
  FROM NEW Reports r JOIN Places u ON near(r.lat, r.lon, u.lat, u.lon, :radius_m) WHERE u.user = :user;
"""
"""Of each kind one: what they make Spark load is what others will need."""


def register(app: typer.Typer) -> None:
    app.command("prepare")(prepare)


def prepare(as_json: AsJson = False) -> None:
    """Keep what Java has loaded once Spark runs, so that later starts take half the time (about a minute, 180 MB)."""
    from tocsin.cluster.spark.archive import make_archive
    from tocsin.cluster.spark.session import make_session
    from tocsin.wire.errors import TocsinError

    note("starting Spark, running two channels, keeping the classes they needed…")
    try:
        file = make_archive(lambda own: make_session("local[1]", {"spark.driver.memory": "1g", **own}), _use)
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    except OSError as error:
        fail(as_json, f"{error}: expected a folder that may be written; ask whoever installed Tocsin to prepare it")
    size = file.stat().st_size
    tell(as_json, {"file": str(file), "bytes": size}, lambda: print(f"{file} ({size / 1e6:.0f} MB)"))


def _use(session: Session) -> None:
    import tempfile
    import time

    from tocsin.benchmarks.shared.harness import declare, publish
    from tocsin.cluster.engine import DataCluster
    from tocsin.cluster.settings import ClusterSettings
    from tocsin.model.ids import BrokerId

    report = {"id": "r", "kind": "fire", "severity": 4, "lat": 60.17, "lon": 24.94, "at": "2026-01-01T00:00:00Z"}
    with tempfile.TemporaryDirectory(prefix="tocsin-prepare-") as root:
        cluster = DataCluster(session, ClusterSettings(root=root), time.time)
        try:
            declare(cluster, APPLICATION)
            cluster.subscribe("OfKind", [{"kind": "fire"}], BrokerId("b"))
            cluster.subscribe("NearMe", [{"user": "ann", "radius_m": 500.0}], BrokerId("b"))
            publish(cluster, "Places", [{"user": "ann", "lat": 60.17, "lon": 24.94}])
            publish(cluster, "Reports", [report])
            for channel in ("OfKind", "NearMe"):
                cluster.execute(channel)
        finally:
            cluster.close()
