"""The same CREATE EDGE QUERY at the edge and in Spark: both return the same rows for the same readings.

Readings enter at four leaves, out of order within the lateness, and operators move while they work.
"""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.edge.edge_city import City
from tests.edge.edge_readings import ALARMS, READINGS, STREAMS, alarm_batches, in_seconds, reading_batches
from tocsin.cluster.spark.session import Session
from tocsin.edge.layout import lay_out, lowest_placement, prepare
from tocsin.edge.query import EdgeQuery
from tocsin.model.edge import EdgeNodeId, Tree

pytestmark = pytest.mark.spark

TREE = Tree.perfect_binary(7)
LEAVES = [EdgeNodeId(f"n{number}") for number in (4, 5, 6, 7)]
QUERIES = {
    "tumbling": "SELECT meter, window.start AS since, window.end AS until, SUM(kwh) AS total, COUNT(*) AS n, "
    "COUNT(kwh) AS known, MIN(kwh) AS least, MAX(kwh) AS most, AVG(kwh) AS mean, SUM(zone) AS zones FROM Readings "
    "GROUP BY meter, WINDOW(ts, '1 minute')",
    "sliding": "SELECT meter, zone, window.start, SUM(kwh) * 2 + 1 AS twice FROM Readings "
    "WHERE kwh > 0.5 AND meter <> 'm3' GROUP BY meter, zone, WINDOW(ts, '40 seconds', '15 seconds') "
    "HAVING COUNT(*) > 1 AND SUM(kwh) BETWEEN 1 AND 15",
    "logic": "SELECT ts, meter, kwh / 4 AS quarter, -zone AS minus, COALESCE(kwh, 0.0) AS known, UPPER(meter) AS name "
    "FROM Readings WHERE NOT (kwh > 3 OR zone = 2) OR meter IS NULL OR (zone IN (1, 3) AND ABS(kwh) < 1)",
    "ordered windows": "SELECT window.start AS since, meter, COUNT(*) AS n FROM Readings "
    "GROUP BY meter, WINDOW(ts, '30 seconds') HAVING n >= 1 ORDER BY since, meter",
    "joined": "SELECT r.ts, r.meter, r.kwh, a.level FROM Readings r JOIN Alarms a ON r.meter = a.meter AND "
    "a.at BETWEEN r.ts - INTERVAL 20 SECONDS AND r.ts + INTERVAL 45 SECONDS WHERE a.level > 0 AND r.zone < a.level",
    "joined windows": "SELECT a.level, window.end AS until, SUM(r.kwh) AS total FROM Readings r JOIN Alarms a "
    "ON r.meter = a.meter AND r.ts BETWEEN a.at AND a.at + INTERVAL 1 MINUTE "
    "GROUP BY a.level, WINDOW(r.ts, '1 minute')",
}


def at_the_edge(query: EdgeQuery, batches: dict[str, list[pa.RecordBatch]], seed: int) -> list[tuple[object, ...]]:
    """Feed the batches of all streams in random order at random leaves, and move operators meanwhile."""
    chance = random.Random(seed)
    entries = {side.stream: LEAVES for side in query.sides}
    plan = lay_out(query, entries, TREE)
    city = City(TREE, plan, lowest_placement(plan, TREE))
    feed = [(name, batch) for name, stream in batches.items() for batch in stream if name in entries]
    for name, batch in chance.sample(feed, len(feed)):
        city.read(chance.choice(LEAVES), name, batch)
        for _ in range(chance.randrange(4)):
            moves = city.possible_moves()
            if moves:
                city.order(*chance.choice(moves))
            if chance.random() < 0.7:
                city.settle()
    rows = city.finish(entries)
    assert city.late_rows() == 0
    return rows


def in_spark(spark: Session, query: EdgeQuery, batches: dict[str, list[pa.RecordBatch]]) -> list[tuple[object, ...]]:
    for name, stream in (("Readings", READINGS), ("Alarms", ALARMS)):
        table = pa.Table.from_batches(batches[name], schema=stream.arrow())
        spark.createDataFrame(table).createOrReplaceTempView(name)
    return in_seconds(spark.sql(query.select).toArrow().to_batches())


@pytest.mark.parametrize("name", QUERIES)
@settings(max_examples=5, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
@given(batches=reading_batches, others=alarm_batches, seed=st.integers(0, 2**32 - 1))
def test_spark_and_the_edge_return_the_same_rows(
    spark: Session, name: str, batches: list[pa.RecordBatch], others: list[pa.RecordBatch], seed: int
) -> None:
    query = prepare(f"CREATE EDGE QUERY q LATENESS 1 HOUR AS {QUERIES[name]}", STREAMS)
    assert isinstance(query, EdgeQuery), query
    readings = {"Readings": batches, "Alarms": others}
    edge, expected = at_the_edge(query, readings, seed), in_spark(spark, query, readings)
    if query.sort is not None:
        assert edge == expected, "rows and their order"
    assert Counter(edge) == Counter(expected)
