"""Filter, map and union, which have no state [AMI §2.1.2], and the expressions they evaluate.

An expression is a value that can be sent and stored. It is evaluated on whole columns at once, with three-valued logic
as in SQL: null is neither true nor false. It never fails on a reading: a division by zero is null, where Spark in ANSI
mode stops the query, because one meter must not silence the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class ColumnRef:
    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Call:
    """`function` is a key of FUNCTIONS."""

    function: str
    arguments: tuple[Expression, ...]


Expression = ColumnRef | Constant | Call


def _divide(left: Any, right: Any) -> Any:
    """`/` divides doubles, as in Spark. Division by zero is null."""
    divisor = pc.cast(right, pa.float64())
    return pc.divide(
        pc.cast(left, pa.float64()), pc.if_else(pc.equal(divisor, 0.0), pa.scalar(None, pa.float64()), divisor)
    )


FUNCTIONS = {
    "+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": _divide, "negate": pc.negate, "abs": pc.abs,
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
    "and": pc.and_kleene, "or": pc.or_kleene, "not": pc.invert, "is null": pc.is_null, "coalesce": pc.coalesce,
    "upper": pc.utf8_upper, "lower": pc.utf8_lower,
}  # fmt: skip


def evaluate(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """The values of the expression, one per row of the batch."""
    value = _value(expression, batch)
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, batch.num_rows)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value


def _value(expression: Expression, batch: pa.RecordBatch) -> Any:
    match expression:
        case ColumnRef(name):
            return batch.column(name)
        case Constant(value):
            return pa.scalar(value)
        case Call(function, arguments):
            return FUNCTIONS[function](*(_value(argument, batch) for argument in arguments))


def columns_of(expression: Expression) -> Iterator[str]:
    """The names of all columns the expression reads."""
    match expression:
        case ColumnRef(name):
            yield name
        case Call(_, arguments):
            for argument in arguments:
                yield from columns_of(argument)


class Stateless:
    """An operator without state. It never changes, so it is also its own specification."""

    delay_us = 0
    late_rows = 0

    def create(self) -> Self:
        return self

    def start_after(self, floor_us: int) -> None:
        pass

    def on_notify(self, watermark_us: int) -> list[pa.RecordBatch]:
        return []

    def on_idle(self) -> list[pa.RecordBatch]:
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
        """Pass on the rows for which the condition is true. Null is not true, as in SQL."""
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
