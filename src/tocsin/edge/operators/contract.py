"""The contract of an operator: columns in, columns out, and a state that can be moved [AMI §2.1.2].

The interface is bytewax's (`on_batch`, `on_notify`, `notify_at`, `snapshot`), which makes an operator movable. Time is
event time in microseconds and arrives as a **watermark**: a promise that no older row will arrive. An operator receives
a watermark only after it has requested one with `notify_at`.

All operators treat late rows alike: a row counts in every window that is still open. For windows that a watermark has
closed, the row is dropped and counted in `late_rows`. The first watermark at or after a window's end closes the window.

An operator knows its own ports, but neither its neighbours nor its node: `dataflow.py` drives it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

END_OF_TIME_US = 2**62
"""The watermark of a stream that has ended. It closes every window."""
BEGINNING_OF_TIME_US = -(2**62)


class Operator(Protocol):
    @property
    def late_rows(self) -> int:
        """The number of late rows. A row counts once for each window, order or join partner that it missed."""

    @property
    def delay_us(self) -> int:
        """Microseconds by which the output's watermark stays behind the input's watermark."""

    def start_after(self, floor_us: int) -> None:
        """Results up to this time exist already: drop what belongs to them, and do not count it as late."""

    def on_batch(self, port: int, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        """Process rows of one input; `watermark_us` is the lowest watermark of all inputs."""

    def on_notify(self, watermark_us: int) -> list[pa.RecordBatch]:
        """The watermark has reached `notify_at()`."""

    def on_idle(self) -> list[pa.RecordBatch]:
        """All inputs are idle, and no other input waits for this operator any more.

        Rows that a later operator needs in time leave now: it may close their windows before the next watermark.
        """

    def notify_at(self) -> int | None:
        """The lowest watermark at which the operator has work to do; None if it waits for no watermark."""

    def snapshot(self) -> bytes:
        """The complete state, from which another node can continue."""

    def restore(self, state: bytes) -> None: ...

    def state_bytes(self) -> int:
        """The memory the operator uses between batches."""


class Specification(Protocol):
    """How to create an operator. Every node has it with the query, so that only state travels."""

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
    """The rows of a table as one batch; an empty list for an empty table."""
    return table.combine_chunks().to_batches() if table.num_rows else []


def microseconds(column: Any) -> Any:
    """A timestamp column as whole microseconds."""
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
