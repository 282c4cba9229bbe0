"""The first jobs of a session, run by a standby before it leads: Spark loads most of its classes in them."""

from __future__ import annotations

import tempfile

from pyspark.sql import SparkSession

_ROUNDS = 2
"""The second round finds what only a warm cache uses."""


def warm_up(session: SparkSession) -> None:
    """Write, read, join and group a few rows, as executions do."""
    with tempfile.TemporaryDirectory(prefix="tocsin-warm-up-") as folder:
        for number in range(_ROUNDS):
            rows = session.range(100).selectExpr("id", "cast(id % 7 AS STRING) AS name", "rand() AS value")
            rows.write.parquet(f"{folder}/{number}")
            stored = session.read.schema("id BIGINT, name STRING, value DOUBLE").parquet(f"{folder}/{number}")
            few = session.createDataFrame(rows.limit(10).toPandas())
            stored.join(few, "name").groupBy("name").count().toPandas()
