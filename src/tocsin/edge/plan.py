"""A query as operators: the operators, which feeds which, and where the readings enter.

Every node of the tree gets the same `QueryPlan` when the query is deployed; operators created from it differ only in
their state. `query.py` compiles SQL, `layout.py` makes the plan, `dataflow.py` runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from tocsin.edge.operators.contract import Specification
from tocsin.model.edge import EdgeNodeId, OperatorGraph, OperatorId
from tocsin.model.schema import Schema

_SCALARS = {
    "STRING": pa.string(), "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(),
    "BIGINT": pa.int64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}  # fmt: skip


def is_supported(type_: str) -> bool:
    """True for column types that operators can process."""
    return type_ in _SCALARS


@dataclass(frozen=True, slots=True)
class Stream:
    """The declaration of the readings that enter the tree."""

    schema: Schema
    time: str
    """The TIMESTAMP column with the event time."""

    def arrow(self) -> pa.Schema:
        return pa.schema([(column.name, _SCALARS[column.type]) for column in self.schema.columns])


@dataclass(frozen=True, slots=True)
class Entry:
    """The readings of a stream that enter the tree at one node. They can feed operators, as operators can."""

    stream: str
    node: EdgeNodeId


@dataclass(frozen=True, slots=True)
class Stage:
    operator: OperatorId
    spec: Specification
    inputs: tuple[OperatorId | Entry, ...]
    """The feeder of each port."""


@dataclass(frozen=True, slots=True)
class History:
    """How long a reading of a stream can count in the results of a query: until its last window is complete."""

    size_us: int = 1
    slide_us: int = 1
    """Windows start at multiples of the slide. Without an aggregate each microsecond is a window."""
    partner_us: int = 0
    """A row of the other stream of a join may carry the time that decides; it is at most this much newer."""

    def horizon_us(self, floor_us: int) -> int:
        """If the result is complete up to the floor, readings at or before this time are no longer needed.

        The oldest window that ends behind the floor starts at a multiple of the slide.
        """
        oldest_start_us = (floor_us - self.size_us) // self.slide_us * self.slide_us + self.slide_us
        return oldest_start_us - 1 - self.partner_us


@dataclass(frozen=True)
class QueryPlan:
    name: str
    stages: tuple[Stage, ...]
    """Each stage comes after its feeders; the last stage outputs the query's result."""
    streams: Mapping[str, Stream]
    """The declarations of the streams that the query reads."""
    lateness_us: int
    """Microseconds by which the watermark of an entry stays behind its newest reading."""
    histories: Mapping[str, tuple[History, ...]] = field(default_factory=dict)
    """By stream, one for each side of FROM that reads it."""

    def horizon_us(self, stream: str, floor_us: int) -> int:
        """If the result is complete up to the floor, readings of the stream up to this time are no longer needed."""
        return min(history.horizon_us(floor_us) for history in self.histories[stream])

    @property
    def result_of(self) -> OperatorId:
        return self.stages[-1].operator

    @cached_property
    def fed_by(self) -> dict[OperatorId | Entry, tuple[tuple[OperatorId, int], ...]]:
        """The (operator, port) pairs that read the output of an operator or entry."""
        readers: dict[OperatorId | Entry, list[tuple[OperatorId, int]]] = {}
        for stage in self.stages:
            for port, feeder in enumerate(stage.inputs):
                readers.setdefault(feeder, []).append((stage.operator, port))
        return {feeder: tuple(ports) for feeder, ports in readers.items()}


def graph_of(plans: Iterable[QueryPlan]) -> OperatorGraph:
    """The operators of all plans as one graph, for operator selection."""
    downstream: dict[OperatorId, tuple[OperatorId, ...]] = {}
    entries: dict[OperatorId, tuple[EdgeNodeId, ...]] = {}
    for plan in plans:
        for stage in plan.stages:
            readers = plan.fed_by.get(stage.operator, ())
            downstream[stage.operator] = tuple(dict.fromkeys(reader for reader, _ in readers))
            nodes = [feeder.node for feeder in stage.inputs if isinstance(feeder, Entry)]
            if nodes:
                entries[stage.operator] = tuple(dict.fromkeys(nodes))
    return OperatorGraph(downstream, entries)
