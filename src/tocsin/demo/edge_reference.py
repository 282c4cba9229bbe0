"""The rows of figure 3's queries, computed from the raw readings with Arrow alone: no edge node and no Spark.

The sums are exact in any order (`edge_meters`), so one division gives the same bits as any other correct program.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.experiments.edge_rows import EdgeSelect


def averages(readings: pa.Table, query: EdgeSelect, above: float) -> pa.Table:
    """Per key and window: mean, total and number of readings, of those with a mean above a threshold."""
    key = query.keys[0]
    times = readings.column("ts").cast(pa.int64())
    since = pc.multiply(pc.divide(times, query.window_us), query.window_us)
    grouped = readings.select([key, "kwh"]).append_column("since", since)
    groups = grouped.group_by([key, "since"]).aggregate([("kwh", "sum"), ("kwh", "count")])
    total, number = groups.column("kwh_sum"), groups.column("kwh_count")
    rows = pa.table(
        {
            key: groups.column(key),
            "since": groups.column("since").cast(pa.timestamp("us", "UTC")),
            "mean": pc.divide(total, number.cast(pa.float64())),
            "total": total,
            "readings": number,
        }
    )
    return rows.filter(pc.greater(rows.column("mean"), above))
