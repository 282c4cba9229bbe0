"""A query as operators: which there are, what feeds which, where its readings enter.

A `QueryPlan` is a value that every node of the tree is given when the query is deployed; operators made from it differ
only in their state. `query.py` makes plans from SQL, `dataflow.py` runs them, `selection.py` sees them as a graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


def is_carried(type_: str) -> bool:
    """True for column types that operators work on."""
    return type_ in _SCALARS


@dataclass(frozen=True, slots=True)
class Stream:
    """Readings as they enter the tree."""

    schema: Schema
    time: str
    """The TIMESTAMP column that is their event time."""

    def arrow(self) -> pa.Schema:
        return pa.schema([(column.name, _SCALARS[column.type]) for column in self.schema.columns])


@dataclass(frozen=True, slots=True)
class Entry:
    """Where raw readings of a stream feed an operator: an input port at the node at which they enter."""

    stream: str
    node: EdgeNodeId


@dataclass(frozen=True, slots=True)
class Stage:
    operator: OperatorId
    spec: Specification
    inputs: tuple[OperatorId | Entry, ...]
    """One per port."""


@dataclass(frozen=True)
class QueryPlan:
    name: str
    stages: tuple[Stage, ...]
    """Feeders before those they feed; the last one's output is the query's result."""
    streams: Mapping[str, Stream]
    """Those it reads, as they were declared."""
    lateness_us: int
    """How far behind the newest reading the watermark of an entry stays."""

    @property
    def result_of(self) -> OperatorId:
        return self.stages[-1].operator

    @cached_property
    def fed_by(self) -> dict[OperatorId | Entry, tuple[tuple[OperatorId, int], ...]]:
        """Who reads the output of an operator or entry, at which port."""
        found: dict[OperatorId | Entry, list[tuple[OperatorId, int]]] = {}
        for stage in self.stages:
            for port, feeder in enumerate(stage.inputs):
                found.setdefault(feeder, []).append((stage.operator, port))
        return {feeder: tuple(readers) for feeder, readers in found.items()}


def graph_of(plans: Iterable[QueryPlan]) -> OperatorGraph:
    """All operators of some queries as operator selection sees them."""
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
