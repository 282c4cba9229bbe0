"""Sources that a node reads by itself."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from tests.runtime.edge.edge_root import running_root
from tests.runtime.edge.test_http import QUERY, STREAM
from tocsin.edge.plan import Stream
from tocsin.model.schema import Column, Schema
from tocsin.model.topic import Position
from tocsin.runtime.edge.sources import packed, read_file, unpacked

DECLARED = Stream(Schema((Column("meter", "STRING"), Column("ts", "TIMESTAMP"), Column("kwh", "DOUBLE"))), "ts")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 25


def readings(count: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "meter": [f"m{number % 2}" for number in range(count)],
            "ts": pa.array([BEGIN + timedelta(seconds=number) for number in range(count)], pa.timestamp("us", "UTC")),
            "kwh": [number / 4 for number in range(count)],
        }
    )


def write(path: Path, table: pa.Table) -> Path:
    match path.suffix:
        case ".csv":
            pyarrow.csv.write_csv(table, path)
        case ".parquet":
            pyarrow.parquet.write_table(table, path)
        case ".arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
        case _:
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow", ".arrows"])
def test_file_is_read_from_any_position_in_any_format(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"readings{suffix}", readings())

    async def read(position: int) -> list[tuple[int, int]]:
        chunks = []
        numbers: list[Any] = []
        async for batch, through in read_file(path, DECLARED, position, {"batch_rows": "10"}):
            if batch is not None:
                assert batch.schema == DECLARED.arrow()
                chunks.append((batch.num_rows, through))
                numbers += [value * 4 for value in batch.column("kwh").to_pylist()]
        assert numbers == list(range(position, ROWS)), "all rows behind the position, in order"
        return chunks

    for position in (0, 7, 10, 24, 25):
        chunks = asyncio.run(read(position))
        assert all(rows <= 10 for rows, _ in chunks)
        assert not chunks or chunks[-1][1] == ROWS


def test_position_of_a_topic_is_one_rising_number() -> None:
    positions = [Position(0, 5), Position(3, 0), Position(3, 2**39), Position(4, 1)]
    assert [unpacked(packed(position)) for position in positions] == positions
    assert sorted(map(packed, positions)) == list(map(packed, positions))


def test_file_source_continues_at_its_durable_position_after_a_restart(tmp_path: Path) -> None:
    write(tmp_path / "readings.parquet", readings(40))
    source = '[[source]]\nname = "f"\nstream = "Readings"\nkind = "file"\nlocation = "readings.parquet"\n'

    async def run(options: str, rows: int) -> int:
        async with running_root(tmp_path, source + f"options = {options}\n") as root:
            if (await root.status())["queries"] == []:
                await root.apply(STREAM + QUERY)
            await root.until(lambda status: status["queries"][0]["rows"] == rows)
            await asyncio.sleep(0.7)  # the floor travels with the next answer to a beat
            await root.until(lambda status: status["queries"][0]["rows"] == rows)
            entries = (await root.client.get("/v1/edge/results")).json()["entries"]
            totals = [row["total"] for entry in entries for row in entry["rows"]]
            assert sum(totals) * 4 == sum(range(rows * 5))
            assert root.server.root is not None
            return root.server.root.control.state.sources["f"].position

    # Without the end of the file, the last window stays open. Windows have ten seconds of two meters each.
    assert asyncio.run(run("{ batch_rows = 4 }", 6)) == 28
    assert asyncio.run(run('{ batch_rows = 4, at_end = "close" }', 8)) == 40
