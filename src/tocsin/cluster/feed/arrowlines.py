"""Canonical JSON lines as an Arrow table: what Spark's `from_json` makes of them, without Spark.

For micro-batches so small that a Spark job would cost more than the work. Both ways must give the same table; a test
compares them. Driven by `cluster.spark.ingestion`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pyarrow as pa

from tocsin.cluster.feed.columntypes import json_type
from tocsin.model.schema import Schema

_TYPES = {
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def arrow_type(column_type: str) -> pa.DataType:
    if column_type.startswith("ARRAY<"):
        return pa.list_(arrow_type(column_type[6:-1]))
    if match := _DECIMAL.fullmatch(column_type):
        return pa.decimal128(int(match[1]), int(match[2]))
    return _TYPES[column_type]


class LineReader:
    """One per dataset."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._types = [arrow_type(column.type) for column in schema.columns]
        # Fields go by number: a column may be named as Python names something else.
        record: Any = msgspec.defstruct(
            "Record",
            [
                (f"c{index}", json_type(column.type) | None, msgspec.field(default=None, name=column.name))
                for index, column in enumerate(schema.columns)
            ],
        )
        self._decoder = msgspec.json.Decoder(record)

    def read(self, lines: bytes) -> pa.Table:
        rows = self._decoder.decode_lines(lines)
        return pa.table(
            [pa.array([getattr(row, f"c{index}") for row in rows], kind) for index, kind in enumerate(self._types)],
            names=list(self._schema.names),
        )
