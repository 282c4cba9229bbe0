"""An application of emergencies for tests of the data cluster, and how to declare and fill it."""

from __future__ import annotations

from typing import Any

from tocsin.cluster.engine import DataCluster
from tocsin.cluster.sql.declarations import CreateChannel, CreateDataset, CreateFeed, parse_application
from tocsin.model.ids import BrokerId, DatasetName

REPORTS = DatasetName("Reports")
NORTH, SOUTH = BrokerId("north"), BrokerId("south")

APPLICATION = """
CREATE STREAM DATASET Reports (id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, at TIMESTAMP)
  KEY (id) RETAIN 7 DAYS;
CREATE KEYED DATASET Places (user_id STRING, lat DOUBLE, lon DOUBLE, at TIMESTAMP) KEY (user_id);
CREATE REPETITIVE CHANNEL OfKind (kind STRING) EVERY 10 SECONDS AS
  SELECT r.* FROM NEW Reports r WHERE r.kind = :kind;
CREATE CONTINUOUS CHANNEL NearMe (user STRING, radius_m DOUBLE) AS
  SELECT r.id, distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m
  FROM NEW Reports r JOIN Places u ON near(r.lat, r.lon, u.lat, u.lon, :radius_m)
  WHERE u.user_id = :user AND r.severity >= 4;
"""


WHERE_IS = """
CREATE REPETITIVE CHANNEL Where (user STRING) EVERY 5 SECONDS AS SELECT lat FROM Places WHERE user_id = :user;
"""


def declare(cluster: DataCluster, text: str) -> None:
    application = parse_application(text)
    assert not application.problems, application.problems
    for statement in application.statements:
        if isinstance(statement, CreateDataset):
            cluster.datasets.create(statement.dataset, statement.dataset.source, statement.format or "csv")
        elif isinstance(statement, CreateChannel):
            cluster.channels.create(statement.channel)
        elif isinstance(statement, CreateFeed):
            cluster.datasets.create_feed(statement.feed)


def report(name: str, kind: str = "fire", severity: int = 5, lat: float = 60.17, lon: float = 24.94) -> dict[str, Any]:
    return {"id": name, "kind": kind, "severity": severity, "lat": lat, "lon": lon, "at": "2026-11-15T18:00:00Z"}


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]
