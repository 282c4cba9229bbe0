"""Filter, map and union: one row at a time, nothing to remember [AMI §2.1.2]."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tocsin.edge.expressions import Expression, evaluate


class Stateless:
    """What the three share: no state, nothing to wait for."""

    delay_us = 0

    def __init__(self) -> None:
        self.late_rows = 0

    def on_notify(self, watermark_us: int) -> list[pa.RecordBatch]:
        return []

    def notify_at(self) -> int | None:
        return None

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        pass

    def state_bytes(self) -> int:
        return 0


class Filter(Stateless):
    def __init__(self, predicate: Expression) -> None:
        super().__init__()
        self._predicate = predicate

    def on_batch(self, port: int, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        """Null is not true: such rows go, as in SQL."""
        kept = batch.filter(evaluate(self._predicate, batch), null_selection_behavior="drop")
        return [kept] if kept.num_rows else []


class Map(Stateless):
    def __init__(self, columns: tuple[tuple[str, Expression], ...]) -> None:
        super().__init__()
        self._columns = columns

    def on_batch(self, port: int, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        arrays = [evaluate(expression, batch) for _, expression in self._columns]
        return [pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in self._columns])]


class Union(Stateless):
    """Several streams with the same columns as one; its watermark is the least of theirs."""

    def on_batch(self, port: int, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        return [batch]


@dataclass(frozen=True, slots=True)
class FilterSpec:
    predicate: Expression

    def create(self) -> Filter:
        return Filter(self.predicate)


@dataclass(frozen=True, slots=True)
class MapSpec:
    columns: tuple[tuple[str, Expression], ...]

    def create(self) -> Map:
        return Map(self.columns)


@dataclass(frozen=True, slots=True)
class UnionSpec:
    def create(self) -> Union:
        return Union()
