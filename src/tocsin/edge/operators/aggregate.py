"""Aggregates over tumbling and sliding windows of event time.

The operator groups each batch by key and window at once, and folds the small partial results together from time to
time. Its state is one row per open window and key (plus a bounded number of unfolded rows), never the readings.
Windows start at multiples of the slide since 1970, half-open [start, end), as Spark's do. The operator emits a window
when the watermark reaches its end, ordered by window and key. Results depend neither on how readings are cut into
batches nor on where the operator runs. (Sums of floats depend on the order of addition in the last bit.)

One aggregate may be several operators of a tree: a *partial* operator where each stream enters, a *merging* one where
streams meet, and a *final* one. **Parts** travel between them, one row per window and key, instead of readings. A
partial or merging operator drops nothing: a reading behind its own watermark goes up at once as a part of its own, and
the final operator, which has the lowest watermark of all streams, decides whether it is late. So the results and the
number of late rows are those of one operator that gets all readings.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, batches_of, microseconds, pack, unpack
from tocsin.edge.operators.grouping import group
from tocsin.edge.operators.sketch import REGISTERS, estimates, ranks

_FOLD_ROWS = 8_192
"""Fold when more than this plus twice the folded rows are unfolded: folding then stays a constant share of the work."""
START, END = "_window_start", "_window_end"
_ROWS = "_rows"
"""In a part: the readings in it."""
_REGISTER = "_register"
"""Rows of a sketch: 512 times the number of the sketch plus the register. −1: a row of the other aggregates."""
_FOLDED_BY = {"sum": "sum", "count": "sum", "min": "min", "max": "max"}


@dataclass(frozen=True, slots=True)
class Aggregation:
    """`function` is sum, count, min, max or distinct (a sketch); `column` None counts rows.

    A mean is a sum divided by a count later.
    """

    output: str
    function: str
    column: str | None = None


class WindowAggregate:
    delay_us: int = 0
    """The watermark passes through: a result row carries the last microsecond of its window, which is below the
    watermark that closes the window, and every later window ends after that watermark."""

    def __init__(self, spec: WindowAggregateSpec) -> None:
        self._keys = spec.keys
        self._time = spec.time
        self._size_us = spec.size_us
        self._slide_us = spec.slide_us
        self._reads_parts = spec.role.reads_parts
        self._emits_parts = spec.role.emits_parts
        self._outputs = spec.aggregations
        self._sketches = tuple(item for item in spec.aggregations if item.function == "distinct")
        self._aggregations = tuple(item for item in spec.aggregations if item.function != "distinct")
        if self._reads_parts or self._emits_parts:
            self._aggregations = (*self._aggregations, Aggregation(_ROWS, "count"))
        self._group_keys = (START, *self._keys, *([_REGISTER] if self._sketches else []))
        self._rank = f"v{len(self._aggregations)}"
        """The column of the ranks of sketches."""
        self._folded: pa.Table | None = None
        self._unfolded: list[pa.Table] = []
        self._unfolded_rows = 0
        self._earliest_us: int | None = None
        self._floor_us = BEGINNING_OF_TIME_US
        self.late_rows = 0

    def start_after(self, floor_us: int) -> None:
        """Windows that end at or before the floor are complete. No role of the operator needs them."""
        self._floor_us = floor_us

    def on_batch(self, port: int, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        """Add the rows to their windows. Rows without a time belong to no window, as in Spark."""
        if self._reads_parts:
            return self._on_parts(batch, watermark_us)
        times = microseconds(batch.column(self._time))
        if times.null_count:
            batch, times = batch.filter(times.is_valid()), times.drop_null()
        if batch.num_rows == 0:
            return []
        rows, starts = self._windows(times.to_numpy(zero_copy_only=False))
        if not len(starts):
            return []
        earliest_end_us = int(starts.min()) + self._size_us
        if earliest_end_us <= self._floor_us:
            needed = starts + self._size_us > self._floor_us
            rows = np.flatnonzero(needed) if rows is None else rows[needed]
            starts = starts[needed]
        late: list[pa.RecordBatch] = []
        if earliest_end_us <= watermark_us:
            open_ = starts + self._size_us > watermark_us
            rows = np.arange(len(starts)) if rows is None else rows
            if self._emits_parts:
                late = batches_of(self._parts(batch.take(pa.array(rows[~open_])), starts[~open_]))
            else:
                self.late_rows += int(len(open_) - open_.sum())
            rows, starts = rows[open_], starts[open_]
        if len(starts):
            self._keep(self._parts(batch if rows is None else batch.take(pa.array(rows)), starts))
        return late

    def _on_parts(self, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        if self._floor_us > BEGINNING_OF_TIME_US:
            batch = batch.filter(pc.greater(pc.add(batch.column(START), self._size_us), self._floor_us))
        is_open = pc.greater(pc.add(batch.column(START), self._size_us), watermark_us)
        late = batch.filter(pc.invert(is_open))
        if late.num_rows < batch.num_rows:
            self._keep(pa.Table.from_batches([batch.filter(is_open)]))
        if late.num_rows == 0:
            return []
        if self._emits_parts:
            return [late]
        self.late_rows += int(pc.sum(late.column(f"v{len(self._aggregations) - 1}")).as_py())
        return []

    def _windows(
        self, times: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.intp]] | None, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """The row numbers (None: each row once, in order) and the start of a window for each of them."""
        newest = times - np.mod(times, self._slide_us)
        count = -(-self._size_us // self._slide_us)
        if count == 1 and self._size_us == self._slide_us:
            return None, newest
        starts = np.concatenate([newest - step * self._slide_us for step in range(count)])
        rows = np.tile(np.arange(len(times)), count)
        inside = starts + self._size_us > times[rows]
        return rows[inside], starts[inside]

    def _parts(self, batch: pa.RecordBatch, starts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
        keys = {START: pa.array(starts)} | {key: batch.column(key) for key in self._keys}
        # A count of START, which has no nulls, counts rows.
        values = [keys[START] if item.column is None else batch.column(item.column) for item in self._aggregations]
        parts = group(keys, values, [item.function for item in self._aggregations])
        if not self._sketches:
            return parts
        registers = pa.array(np.full(parts.num_rows, -1, np.int32))
        tables = [parts.append_column(_REGISTER, registers)]
        for number, sketch in enumerate(self._sketches):
            value = batch.column(sketch.column)
            known = {key: column.filter(value.is_valid()) for key, column in keys.items()}
            register, rank = ranks(value.drop_null())
            known[_REGISTER] = pc.add(register, pa.scalar(number * REGISTERS, pa.int32()))
            tables.append(group(known, [rank], ["max"]).rename_columns([*known, self._rank]))
        names = [*self._group_keys, *(f"v{number}" for number in range(len(self._aggregations) + 1))]
        return pa.concat_tables(tables, promote_options="default").select(names)

    def _keep(self, parts: pa.Table) -> None:
        earliest_us = pc.min(parts.column(START)).as_py()
        self._earliest_us = earliest_us if self._earliest_us is None else min(self._earliest_us, earliest_us)
        self._unfolded.append(parts)
        self._unfolded_rows += parts.num_rows
        if self._unfolded_rows > _FOLD_ROWS + 2 * (0 if self._folded is None else self._folded.num_rows):
            self._fold()

    def _fold(self) -> pa.Table | None:
        if self._unfolded:
            parts = self._unfolded if self._folded is None else [self._folded, *self._unfolded]
            self._folded = parts[0]
            if len(parts) > 1:
                table = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
                functions = [_FOLDED_BY[item.function] for item in self._aggregations]
                functions += ["max"] if self._sketches else []
                keys = {key: table.column(key).chunk(0) for key in self._group_keys}
                values = [table.column(f"v{number}").chunk(0) for number in range(len(functions))]
                self._folded = group(keys, values, functions)
            self._unfolded, self._unfolded_rows = [], 0
        return self._folded

    def notify_at(self) -> int | None:
        return None if self._earliest_us is None else self._earliest_us + self._size_us

    def on_notify(self, watermark_us: int) -> list[pa.RecordBatch]:
        folded = self._fold()
        if folded is None:
            return []
        is_closed = pc.less_equal(folded.column(START), watermark_us - self._size_us)
        closed, self._folded = folded.filter(is_closed), folded.filter(pc.invert(is_closed))
        if self._folded.num_rows == 0:
            self._folded, self._earliest_us = None, None
        else:
            self._earliest_us = pc.min(self._folded.column(START)).as_py()
        return batches_of(closed if self._emits_parts else self._results(closed))

    def on_idle(self) -> list[pa.RecordBatch]:
        """Parts leave before their windows are complete; the final operator adds later ones."""
        folded = self._fold() if self._emits_parts else None
        if folded is None:
            return []
        self._folded, self._earliest_us = None, None
        return batches_of(folded)

    def _results(self, closed: pa.Table) -> pa.Table:
        # Of each window and key the row of the other aggregates comes first: its register is −1.
        ordered = closed.sort_by([(name, "ascending") for name in self._group_keys])
        values, ordered = self._estimates(ordered) if self._sketches else ({}, ordered)
        values |= {item.output: ordered.column(f"v{number}") for number, item in enumerate(self._aggregations)}
        starts = ordered.column(START)
        columns = {key: ordered.column(key) for key in self._keys}
        columns |= {item.output: values[item.output] for item in self._outputs}
        columns[START] = starts.cast(pa.timestamp("us", "UTC"))
        columns[END] = pc.add(starts, self._size_us).cast(pa.timestamp("us", "UTC"))
        return pa.table(columns)

    def _estimates(self, ordered: pa.Table) -> tuple[dict[str, pa.Array], pa.Table]:
        """The estimates of each sketch, one per window and key, and the rows of the other aggregates."""
        registers = ordered.column(_REGISTER).to_numpy()
        groups = np.cumsum(registers < 0) - 1
        sketched = {}
        for number, sketch in enumerate(self._sketches):
            rows = np.flatnonzero(registers // REGISTERS == number)
            rank = ordered.column(self._rank).take(pa.array(rows)).to_numpy()
            sketched[sketch.output] = estimates(groups[rows], rank, int(groups[-1]) + 1 if len(groups) else 0)
        return sketched, ordered.filter(pa.array(registers < 0))

    def snapshot(self) -> bytes:
        folded = self._fold()
        facts = {"earliest_us": self._earliest_us, "late_rows": self.late_rows}
        return pack(facts, [] if folded is None else [folded])

    def restore(self, state: bytes) -> None:
        facts, tables = unpack(state)
        self._earliest_us, self.late_rows = facts["earliest_us"], facts["late_rows"]
        self._folded, self._unfolded, self._unfolded_rows = (tables[0] if tables else None), [], 0

    def state_bytes(self) -> int:
        return sum(table.nbytes for table in (*self._unfolded, *([] if self._folded is None else [self._folded])))


class AggregateRole(Enum):
    """The part of an aggregate that an operator does."""

    WHOLE = "aggregate"
    PARTIAL = "partial"
    MERGING = "merge"
    FINAL = "final"

    @property
    def reads_parts(self) -> bool:
        return self in (AggregateRole.MERGING, AggregateRole.FINAL)

    @property
    def emits_parts(self) -> bool:
        return self in (AggregateRole.PARTIAL, AggregateRole.MERGING)


@dataclass(frozen=True, slots=True)
class WindowAggregateSpec:
    keys: tuple[str, ...]
    time: str
    size_us: int
    slide_us: int
    aggregations: tuple[Aggregation, ...]
    role: AggregateRole = AggregateRole.WHOLE

    def create(self) -> WindowAggregate:
        return WindowAggregate(self)
