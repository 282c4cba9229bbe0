"""Filter, map and union: operators without state [AMI §2.1.2]. They never change, so each is its own specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from tocsin.edge.operators.expressions import Expression, evaluate


class Stateless:
    delay_us = 0
    late_rows = 0

    def create(self) -> Self:
        return self

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


@dataclass(frozen=True)
class Filter(Stateless):
    predicate: Expression

    def on_batch(self, port: int, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        """Null is not true: such rows are dropped, as in SQL."""
        kept = batch.filter(evaluate(self.predicate, batch), null_selection_behavior="drop")
        return [kept] if kept.num_rows else []


@dataclass(frozen=True)
class Map(Stateless):
    columns: tuple[tuple[str, Expression], ...]

    def on_batch(self, port: int, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        arrays = [evaluate(expression, batch) for _, expression in self.columns]
        return [pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in self.columns])]


@dataclass(frozen=True)
class Union(Stateless):
    """Several streams with the same columns as one; its watermark is the lowest of theirs."""

    def on_batch(self, port: int, batch: pa.RecordBatch, watermark_us: int) -> list[pa.RecordBatch]:
        return [batch]
