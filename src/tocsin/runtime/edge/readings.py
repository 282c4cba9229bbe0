"""Readings that enter over HTTP or from a source, as record batches with exactly the declared columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.edge.plan import Stream
from tocsin.wire.errors import Code, TocsinError

BATCH_BYTES = 256 << 20
"""Most bytes of one batch. Compressed or dictionary-encoded columns can be far larger than the body that has them."""

_TYPES: dict[str, Any] = {
    "STRING": str, "BOOLEAN": bool, "TINYINT": int, "SMALLINT": int, "INT": int, "BIGINT": int, "FLOAT": float,
    "DOUBLE": float, "DATE": date, "TIMESTAMP": datetime,
}  # fmt: skip


def from_json(body: bytes, stream: Stream) -> pa.RecordBatch:
    """A JSON array of objects. A missing column is null; times are ISO 8601, in UTC if they have no zone."""
    columns = tuple((column.name, column.type) for column in stream.schema.columns)
    try:
        rows = _decoder(columns).decode(body)
    except msgspec.ValidationError as error:
        raise TocsinError(Code.BAD_RECORDS, f"the readings do not match their stream: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TocsinError(Code.BAD_REQUEST, f"the body is not JSON: {error}") from None
    return _batch([[row[number] for row in rows] for number in range(len(columns))], stream)


@lru_cache(maxsize=64)
def _decoder(columns: tuple[tuple[str, str], ...]) -> Any:
    """Decodes a JSON array of objects into tuples in the order of the columns."""
    fields = [(f"c{number}", _TYPES[type_] | None, None) for number, (_, type_) in enumerate(columns)]
    names = {f"c{number}": name for number, (name, _) in enumerate(columns)}
    row = msgspec.defstruct("Reading", fields, rename=names, forbid_unknown_fields=True)
    rows = msgspec.json.Decoder(list[row])  # type: ignore[valid-type]

    class Rows:
        def decode(self, body: bytes) -> list[tuple[Any, ...]]:
            return [msgspec.structs.astuple(reading) for reading in rows.decode(body)]

    return Rows()


def from_pylist(rows: Sequence[dict[str, Any]], stream: Stream) -> pa.RecordBatch:
    """Objects that were decoded from JSON already."""
    return from_json(msgspec.json.encode(rows), stream)


def _batch(values: Sequence[list[Any]], stream: Stream) -> pa.RecordBatch:
    schema = stream.arrow()
    arrays = []
    for field, column in zip(schema, values, strict=True):
        if pa.types.is_timestamp(field.type):
            column = [_in_utc(value) for value in column]
        try:
            arrays.append(pa.array(column, field.type))
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise TocsinError(Code.BAD_RECORDS, f"column {field.name}: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_utc(value: datetime | None) -> datetime | None:
    if value is None:
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def from_arrow(body: bytes, stream: Stream, count: int = 1) -> list[pa.RecordBatch]:
    """So many Arrow IPC streams, one behind the other. Each is one batch."""
    reader = pa.BufferReader(body)
    batches = []
    left_bytes = BATCH_BYTES
    for _ in range(count):
        try:
            table = pa.ipc.open_stream(reader).read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise TocsinError(Code.BAD_REQUEST, f"the body is not an Arrow IPC stream: {error}") from None
        batches.append(conform(table, stream, left_bytes))
        left_bytes -= batches[-1].nbytes
    if reader.tell() != len(body):
        raise TocsinError(Code.BAD_REQUEST, f"the body does not end with batch {count}: set Tocsin-Batches")
    return batches


def conform(table: pa.Table, stream: Stream, most_bytes: int = BATCH_BYTES) -> pa.RecordBatch:
    """The declared columns of a table, cast to the declared types. Timestamps without a zone are in UTC."""
    schema = stream.arrow()
    if table.nbytes + sum(_decoded_bytes(column) for column in table.columns) > most_bytes:
        raise TocsinError(Code.TOO_LARGE, f"the batches of a request have at most {BATCH_BYTES} bytes as plain columns")
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise TocsinError(Code.BAD_RECORDS, f"column {missing[0]} is missing")
    try:
        columns = [_cast(table.column(field.name), field.type) for field in schema]
        table = pa.Table.from_arrays(columns, schema=schema).combine_chunks()
    except (pa.ArrowException, ValueError) as error:
        raise TocsinError(Code.BAD_RECORDS, f"the columns do not match the stream: {error}") from None
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    """An upper bound of the bytes of a column of dictionary-encoded strings as plain values; 0 for other columns."""
    if not pa.types.is_dictionary(column.type):
        return 0
    values = column.type.value_type
    if not (pa.types.is_string(values) or pa.types.is_large_string(values)):
        return 0
    return sum(len(chunk) * (pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0) for chunk in column.chunks)


def _cast(column: Any, type_: pa.DataType) -> Any:
    if pa.types.is_timestamp(type_) and pa.types.is_string(column.type):
        times = [_in_utc(None if value is None else datetime.fromisoformat(value)) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(times, type_)])
    return column.cast(type_)


def newest_us(batch: pa.RecordBatch, stream: Stream) -> int | None:
    """The newest event time; None if no reading has one."""
    times = batch.column(stream.time)
    newest: int | None = pc.max(times.cast(pa.int64())).as_py()
    return newest
