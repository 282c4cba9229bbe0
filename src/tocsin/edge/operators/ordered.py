"""Join and sort: operators that keep rows until no join partner, or no earlier row, can arrive."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, batches_of, microseconds, pack, unpack


class IntervalJoin:
    """Joins rows of two streams with equal keys and close times: right − left within [−before, after].

    The bound on time allows the join to drop old rows. Port 0 is left, port 1 is right; their columns must have
    different names. Rows older than the watermark are late and dropped.
    """

    def __init__(self, spec: IntervalJoinSpec) -> None:
        self._spec = spec
        self._sides: list[pa.Table | None] = [None, None]
        self.late_rows = 0

    @property
    def delay_us(self) -> int:
        """Microseconds by which a partner of an arriving row can be older than the watermark."""
        return max(self._spec.before_us, self._spec.after_us, 0)

    def start_after(self, floor_us: int) -> None:
        """The operator behind the join drops rows: an old row here may still be the partner of a new one."""

    def on_batch(self, port: int, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        times = microseconds(batch.column(self._spec.times[port]))
        fresh = pc.fill_null(pc.greater_equal(times, watermark_us), False)
        rows = pa.Table.from_batches([batch.filter(fresh)])
        self.late_rows += batch.num_rows - rows.num_rows
        if rows.num_rows == 0:
            return []
        kept, other = self._sides[port], self._sides[1 - port]
        self._sides[port] = rows if kept is None else pa.concat_tables([kept, rows])
        if other is None:
            return []
        left, right = (rows, other) if port == 0 else (other, rows)
        return batches_of(self._matches(left, right))

    def _matches(self, left: pa.Table, right: pa.Table) -> pa.Table:
        spec = self._spec
        # Arrow keeps one copy of the keys: rename the right keys for the join, then copy them back from the left keys.
        names = [f"_key_{name}" if name in spec.keys[1] else name for name in right.column_names]
        right_keys = [f"_key_{name}" for name in spec.keys[1]]
        joined = left.join(
            right.rename_columns(names), list(spec.keys[0]), right_keys, join_type="inner", use_threads=False
        )
        for left_key, right_key in zip(spec.keys[0], spec.keys[1], strict=True):
            if right_key not in joined.column_names:
                joined = joined.append_column(right_key, joined.column(left_key))
        apart = pc.subtract(self._times(joined, 1), self._times(joined, 0))
        near = pc.and_(pc.greater_equal(apart, -spec.before_us), pc.less_equal(apart, spec.after_us))
        return joined.filter(near).select([*left.column_names, *right.column_names])

    def _times(self, table: pa.Table, port: int) -> pa.ChunkedArray:
        return microseconds(table.column(self._spec.times[port]))

    def _keep_us(self, port: int) -> int:
        """Microseconds after its own time for which a row can still match a new partner."""
        return self._spec.after_us if port == 0 else self._spec.before_us

    def notify_at(self) -> int | None:
        oldest = [
            pc.min(self._times(side, port)).as_py() + self._keep_us(port) + 1
            for port, side in enumerate(self._sides)
            if side is not None
        ]
        return min(oldest, default=None)

    def on_notify(self, watermark_us: int) -> list[pa.RecordBatch]:
        for port, side in enumerate(self._sides):
            if side is not None:
                kept = side.filter(pc.greater_equal(self._times(side, port), watermark_us - self._keep_us(port)))
                self._sides[port] = kept.combine_chunks() if kept.num_rows else None
        return []

    def on_idle(self) -> list[pa.RecordBatch]:
        """The only operator for these rows keeps them until the next watermark."""
        return []

    def snapshot(self) -> bytes:
        facts = {"late_rows": self.late_rows, "held": [side is not None for side in self._sides]}
        return pack(facts, [side for side in self._sides if side is not None])

    def restore(self, state: bytes) -> None:
        facts, tables = unpack(state)
        self.late_rows = facts["late_rows"]
        sides = iter(tables)
        self._sides = [next(sides) if is_held else None for is_held in facts["held"]]

    def state_bytes(self) -> int:
        return sum(side.nbytes for side in self._sides if side is not None)


@dataclass(frozen=True, slots=True)
class IntervalJoinSpec:
    keys: tuple[tuple[str, ...], tuple[str, ...]]
    """The key columns of the left and the right stream, compared pairwise."""
    times: tuple[str, str]
    before_us: int
    after_us: int

    def create(self) -> IntervalJoin:
        return IntervalJoin(self)


class Sort:
    """Emits rows in the order of `keys`. The first key is a time: an endless stream has no other first row.

    A row is emitted when its time plus `lag_us` is below the watermark. A row that arrives later than that would break
    the order and is dropped as late.
    """

    delay_us = 0

    def __init__(self, spec: SortSpec) -> None:
        self._keys, self._lag_us = spec.keys, spec.lag_us
        self._rows: pa.Table | None = None
        self._floor_us = BEGINNING_OF_TIME_US
        self.late_rows = 0

    def start_after(self, floor_us: int) -> None:
        self._floor_us = floor_us

    def on_batch(self, port: int, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        times = microseconds(batch.column(self._keys[0]))
        if self._floor_us > BEGINNING_OF_TIME_US:
            batch = batch.filter(pc.fill_null(pc.greater_equal(pc.add(times, self._lag_us), self._floor_us), False))
            times = microseconds(batch.column(self._keys[0]))
        fresh = pc.fill_null(pc.greater_equal(pc.add(times, self._lag_us), watermark_us), False)
        rows = pa.Table.from_batches([batch.filter(fresh)])
        self.late_rows += batch.num_rows - rows.num_rows
        if rows.num_rows:
            self._rows = rows if self._rows is None else pa.concat_tables([self._rows, rows])
        return []

    def notify_at(self) -> int | None:
        if self._rows is None:
            return None
        earliest: int = pc.min(microseconds(self._rows.column(self._keys[0]))).as_py()
        return earliest + self._lag_us + 1

    def on_notify(self, watermark_us: int) -> list[pa.RecordBatch]:
        if self._rows is None:
            return []
        is_ripe = pc.less(pc.add(microseconds(self._rows.column(self._keys[0])), self._lag_us), watermark_us)
        ripe, rest = self._rows.filter(is_ripe), self._rows.filter(pc.invert(is_ripe))
        self._rows = rest.combine_chunks() if rest.num_rows else None
        return batches_of(ripe.take(self._order(ripe)))

    def _order(self, rows: pa.Table) -> pa.Array:
        """Row numbers in order, nulls first as in Spark: the validity of each key sorts before the key."""
        columns: dict[str, pa.ChunkedArray] = {}
        keys: list[tuple[str, str]] = []
        for number, key in enumerate(self._keys):
            columns |= {f"valid{number}": rows.column(key).is_valid(), f"key{number}": rows.column(key)}
            keys += [(f"valid{number}", "ascending"), (f"key{number}", "ascending")]
        return pc.sort_indices(pa.table(columns), sort_keys=keys)

    def on_idle(self) -> list[pa.RecordBatch]:
        """The only operator for these rows keeps them until the next watermark."""
        return []

    def snapshot(self) -> bytes:
        return pack({"late_rows": self.late_rows}, [] if self._rows is None else [self._rows])

    def restore(self, state: bytes) -> None:
        facts, tables = unpack(state)
        self.late_rows, self._rows = facts["late_rows"], tables[0] if tables else None

    def state_bytes(self) -> int:
        return 0 if self._rows is None else self._rows.nbytes


@dataclass(frozen=True, slots=True)
class SortSpec:
    keys: tuple[str, ...]
    lag_us: int = 0

    def create(self) -> Sort:
        return Sort(self)
