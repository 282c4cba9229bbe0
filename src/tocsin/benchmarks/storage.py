"""`tocsin bench storage`: rows per second that Spark reads through Arrow, beside its own reader of Parquet.

Timed: Spark reads all columns of stored reports and discards the rows: natively from a folder, through the data source
on Arrow from the same folder, and with `--root` also from copies of the files there. Rounds take turns.
Checked by: the number of rows and the sum of a column, before anything is timed.
Prints: rows per second of each, and the ratios to native reading (bar: 0.5).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder, timed

if TYPE_CHECKING:
    from tocsin.cluster.store.storage import Storage

_SCHEMA = (
    "report_id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, message STRING, reported_at TIMESTAMP, "
    "_tocsin_version BIGINT, _tocsin_sequence BIGINT"
)


def storage(
    rows: Annotated[int, typer.Option(min=1, help="Rows.")] = 4_000_000,
    files: Annotated[int, typer.Option(min=1, help="Files that hold them.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds, after one that warms up.")] = 5,
    root: Annotated[str | None, typer.Option(help="Read from here as well: s3://bucket/prefix.")] = None,
    s3_endpoint: Annotated[str | None, typer.Option(help="Server of that bucket, if it is not AWS.")] = None,
) -> dict[str, Any]:
    """Read stored files with Spark: natively, and through Arrow."""
    from tocsin.cluster.spark.file_source import SizedPath, read_with_arrow
    from tocsin.cluster.spark.session import make_session
    from tocsin.cluster.store.s3_place import S3
    from tocsin.cluster.store.storage import Storage

    session = make_session("local[*]")
    with temporary_folder() as folder:
        local = Storage(folder)
        sized = [SizedPath(*_written(local, number, rows // files)) for number in range(files)]
        announce(f"{sum(file.bytes for file in sized) / 1e6:,.0f} MB in {files} files")

        def native() -> Any:
            return session.read.schema(_SCHEMA).parquet(*(local.uri(file.path) for file in sized))

        ways: dict[str, Callable[[], Any]] = {"native": native}
        ways["arrow"] = lambda: read_with_arrow(session, local, _SCHEMA, sized)
        if root is not None:
            remote = Storage(root, S3(s3_endpoint))
            for file in sized:
                remote.write(file.path, [local.read(file.path).to_pybytes()])
            ways["root"] = lambda: read_with_arrow(session, remote, _SCHEMA, sized)
        checks = {str(way().selectExpr("count(*)", "sum(severity)").collect()) for way in ways.values()}
        times_s: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                _, took_s = timed(lambda way=way: way().write.format("noop").mode("overwrite").save())  # type: ignore[misc]
                announce(f"{name}: {rows / took_s:,.0f} rows/s")
                if number:
                    times_s[name].append(took_s)
        if root is not None:
            for file in sized:
                remote.delete(file.path)
    rates = {f"{name}_rows_per_s": rows / statistics.median(each) for name, each in times_s.items()}
    ratios = {
        f"{name}_ratio": statistics.median(
            native_s / own_s for native_s, own_s in zip(times_s["native"], each, strict=True)
        )
        for name, each in times_s.items()
        if name != "native"
    }
    return {**rates, **ratios, "rows": rows, "files": files, "correct": len(checks) == 1}


register = command(storage)


def _written(storage: Storage, number: int, rows: int) -> tuple[str, int]:
    """(path, size in bytes) of a file of reports."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tocsin.cluster.store.filewriting import ROW_GROUP_ROWS

    random = np.random.default_rng(number)
    first = number * rows
    table = pa.table(
        {
            "report_id": [f"r-{index}" for index in range(first, first + rows)],
            "kind": pa.array(("fire", "flood", "storm", "crash")).take(pa.array(random.integers(0, 4, rows))),
            "severity": pa.array(random.integers(1, 6, rows), pa.int32()),
            "lat": 60.1 + random.random(rows),
            "lon": 24.9 + random.random(rows),
            "message": [f"message of report {index} " * 4 for index in range(rows)],
            "reported_at": pa.array(random.integers(0, 1 << 50, rows), pa.timestamp("us", "UTC")),
            "_tocsin_version": pa.array(np.full(rows, number + 1)),
            "_tocsin_sequence": pa.array(np.arange(rows)),
        }
    )
    path = f"bench-{number}.parquet"
    with storage.create(path) as file:
        pq.write_table(table, file, compression="zstd", row_group_size=ROW_GROUP_ROWS)
        size_bytes = file.tell()
    return path, size_bytes
