"""`approx_count_distinct` at the edge and in Spark: equal numbers, for every type and every size of the set."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from tests.edge.edge_city import City
from tests.edge.edge_readings import SECOND, STREAMS, readings
from tests.edge.test_query_spark import LEAVES, TREE, at_the_edge, in_spark
from tocsin.cluster.spark.session import Session
from tocsin.edge.layout import lay_out, lowest_placement, prepare
from tocsin.edge.operators.aggregate import AggregateRole, Aggregation, WindowAggregateSpec
from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, END_OF_TIME_US
from tocsin.edge.operators.sketch import estimates, ranks
from tocsin.edge.plan import Entry
from tocsin.edge.query import EdgeQuery

QUERY = (
    "SELECT zone, window.start AS since, APPROX_COUNT_DISTINCT(meter) AS meters, COUNT(*) AS n, "
    "approx_count_distinct(kwh) AS uses, AVG(kwh) AS mean FROM Readings GROUP BY zone, WINDOW(ts, '1 minute') "
    "HAVING APPROX_COUNT_DISTINCT(meter) >= 0"
)


def many_readings(count: int, seed: int) -> list[pa.RecordBatch]:
    """Sets of about 2,000, 100 and 1 meters, and a zone in which no meter has a name."""
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        zone = chance.choice([1, 2, 3, None, 5])
        limit = {1: 3_000, 2: 100, 3: 1, None: 900}.get(zone, 0)
        meter = f"meter-{'x' * chance.randrange(40)}{chance.randrange(limit)}" if limit else None
        rows.append((chance.uniform(0, 119), meter, chance.choice([None, 0.0, -0.0, chance.randrange(500) / 8]), zone))
    return [readings(*rows[first : first + 500]) for first in range(0, count, 500)]


@pytest.mark.spark
def test_sketches_of_moving_operators_equal_those_of_spark(spark: Session) -> None:
    query = prepare(f"CREATE EDGE QUERY q LATENESS 1 HOUR AS {QUERY}", STREAMS)
    assert isinstance(query, EdgeQuery), query
    batches = {"Readings": many_readings(12_000, 4), "Alarms": []}
    edge, expected = at_the_edge(query, batches, seed=5), in_spark(spark, query, batches)
    assert sorted(map(repr, edge)) == sorted(map(repr, expected))
    assert {row[2] for row in edge if row[0] == 5} == {0}, "a set without a value is empty, not unknown"
    assert max(int(str(row[2])) for row in edge) > 1_000


VALUES = {
    "string": pa.array([f"{'long ' * (number % 23)}{number} ü" for number in range(6_000)]),
    "bigint": pa.array([number * 2**33 - 2**45 for number in range(6_000)], pa.int64()),
    "int": pa.array([number - 3_000 for number in range(6_000)], pa.int32()),
    "tinyint": pa.array([number % 256 - 128 for number in range(6_000)], pa.int8()),
    "boolean": pa.array([number % 2 == 0 for number in range(6_000)]),
    "float": pa.array([0.0, -0.0, float("nan"), *(number / 3 for number in range(5_997))], pa.float32()),
    "double": pa.array([0.0, -0.0, float("nan"), float("inf"), *(number / 7 for number in range(5_996))]),
    "date": pa.array(list(range(6_000)), pa.int32()).cast(pa.date32()),
    "timestamp": pa.array(
        [datetime(1960, 1, 1, tzinfo=UTC) + timedelta(hours=7.001 * number) for number in range(6_000)],
        pa.timestamp("us", "UTC"),
    ),
}
SIZES = [1, 2, 3, 10, 100, 250, 380, 420, 460, 520, 700, 900, 1_100, 1_300, 1_700, 2_300, 2_600, 3_100, 6_000]


def estimate(values: pa.Array) -> int:
    registers, rank = ranks(values)
    highest = pa.table({"register": registers, "rank": rank}).group_by("register").aggregate([("rank", "max")])
    numbers = highest.column("rank_max").to_numpy()
    return int(estimates(numbers * 0, numbers, 1)[0].as_py())


@pytest.mark.spark
@pytest.mark.parametrize("kind", VALUES)
def test_sketch_of_every_type_and_size_equals_that_of_spark(spark: Session, kind: str) -> None:
    values = VALUES[kind]
    whole = pa.table({"x": values, "place": pa.array(range(len(values)))})
    spark.createDataFrame(whole).createOrReplaceTempView("Sets")
    columns = ", ".join(f"approx_count_distinct(x) FILTER (WHERE place < {size})" for size in SIZES)
    (row,) = spark.sql(f"SELECT {columns} FROM Sets").collect()
    assert [estimate(values.slice(0, size)) for size in SIZES] == list(row)


def test_parts_of_a_sketch_have_one_row_per_used_register() -> None:
    sketch = (Aggregation("meters", "distinct", "meter"),)
    spec = WindowAggregateSpec((), "ts", 60 * SECOND, 60 * SECOND, sketch, AggregateRole.PARTIAL)
    operator = spec.create()
    for _ in range(3):
        operator.on_batch(0, readings(*((1, f"m{number % 5}", 1.0, 1) for number in range(50))), BEGINNING_OF_TIME_US)
    (parts,) = operator.on_notify(END_OF_TIME_US)
    assert parts.num_rows == 1 + 5


def test_late_readings_of_a_sketch_count_once() -> None:
    query = prepare(f"CREATE EDGE QUERY q LATENESS 1 SECOND AS {QUERY}", STREAMS)
    assert isinstance(query, EdgeQuery), query
    entries = {"Readings": LEAVES}
    plan = lay_out(query, entries, TREE)
    city = City(TREE, plan, lowest_placement(plan, TREE))
    for leaf in LEAVES:
        city.read(leaf, "Readings", readings((5, f"m-{leaf}", 1.0, 1), (100, f"m-{leaf}", 1.0, 1)))
    city.settle()
    city.read(LEAVES[0], "Readings", readings((6, "late", 1.0, 1)))
    city.settle()
    rows = city.finish(entries)
    assert city.late_rows() == 1
    assert Entry("Readings", LEAVES[0]) in plan.fed_by
    assert sorted(row[2:4] for row in rows) == [(4, 4), (4, 4)]
