"""What an operator is: columns in, columns out, and a state that can be moved [AMI §2.1.2].

The shape is bytewax's (`on_batch`, `on_notify`, `notify_at`, `snapshot`), which is what makes an operator movable. Time
is event time in microseconds and arrives as a **watermark**: a promise that no row older than it will come. An operator
is told of a watermark only when it has asked for it (`notify_at`).

The rule for late rows is one for all: a row counts in whatever is still open, and is dropped and counted in `late_rows`
for what a watermark has already closed. A window is closed by the first watermark at or after its end.

Operators do not know their neighbours, ports but their own, or nodes: `dataflow.py` drives them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

END_OF_TIME_US = 2**62
"""The watermark of a stream that has ended: everything open is closed."""
BEGINNING_OF_TIME_US = -(2**62)


class Operator(Protocol):
    late_rows: int
    """Counted once for each window (or order, or partner) a row came too late for."""

    @property
    def delay_us(self) -> int:
        """How far the watermark of its output stays behind that of its input."""

    def on_batch(self, port: int, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        """Rows arrived on an input; `watermark_us` is the least of all inputs so far."""

    def on_notify(self, watermark_us: int) -> list[pa.RecordBatch]:
        """The watermark has reached `notify_at()`."""

    def notify_at(self) -> int | None:
        """The least watermark at which there is something to do; None for none."""

    def snapshot(self) -> bytes:
        """All it needs to go on elsewhere as if nothing had happened."""

    def restore(self, state: bytes) -> None: ...

    def state_bytes(self) -> int:
        """What it keeps in memory between batches."""


class Specification(Protocol):
    """How to make an operator. A value: every node has it with the query, so that only state travels."""

    def create(self) -> Operator: ...


def pack(facts: dict[str, Any], tables: Sequence[pa.Table] = ()) -> bytes:
    """Facts as JSON and tables as Arrow IPC streams, each after its length."""
    parts = [json.dumps(facts, sort_keys=True).encode()]
    for table in tables:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        parts.append(sink.getvalue().to_pybytes())
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def unpack(state: bytes) -> tuple[dict[str, Any], list[pa.Table]]:
    parts: list[bytes] = []
    position = 0
    while position < len(state):
        (length,) = struct.unpack_from("<Q", state, position)
        parts.append(state[position + 8 : position + 8 + length])
        position += 8 + length
    return json.loads(parts[0]), [pa.ipc.open_stream(part).read_all() for part in parts[1:]]


def batches_of(table: pa.Table) -> list[pa.RecordBatch]:
    """The rows of a table as one batch, or none if there are none."""
    return table.combine_chunks().to_batches() if table.num_rows else []


def microseconds(column: Any) -> Any:
    """A timestamp column as whole microseconds."""
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
