"""Makes the plan to deploy from a compiled query: one operator after another, for the nodes at which its streams enter.

Filters and projections run per entry, so that they can stay where the readings are. An aggregate over one stream is
split: partial aggregates at the entries, merging ones at every node where streams meet, so that no reading travels
(`operators/aggregate.py`). Further operators unite the entries of a stream for a join, join the two sides, and filter,
name and order the results. Each operator starts at the lowest node that sees all its input, where the least data
travels [AMI §2.2].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from tocsin.edge.operators.aggregate import AggregateRole, WindowAggregateSpec
from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, END_OF_TIME_US, Specification
from tocsin.edge.operators.ordered import IntervalJoinSpec
from tocsin.edge.operators.stateless import Filter, Map, Union
from tocsin.edge.plan import Entry, QueryPlan, Stage, Stream, graph_of
from tocsin.edge.query import EdgeQuery, QueryCode, QueryRejected, parse_edge_query
from tocsin.model.edge import EdgeNodeId, OperatorId, Tree


def lay_out(query: EdgeQuery, entries: Mapping[str, Sequence[EdgeNodeId]], tree: Tree) -> QueryPlan:
    """Make the plan. `entries` gives the nodes at which each stream enters, at least one per stream.

    The id of an operator says what it does and, if that depends on a node, for which node. The same operator of another
    tree, with other entries, therefore has the same id.
    """
    stages: list[Stage] = []
    names: Counter[str] = Counter()

    def add(kind: str, spec: Specification, *inputs: OperatorId | Entry, at: EdgeNodeId | None = None) -> OperatorId:
        name = f"{query.name}/{kind}"
        place = "" if at is None else f"@{at}"
        names[name + place] += 1
        suffix = "" if names[name + place] == 1 else f"-{names[name + place]}"
        operator = OperatorId(f"{name}{suffix}{place}")
        stages.append(Stage(operator, spec, inputs))
        return operator

    sides: list[dict[EdgeNodeId, OperatorId]] = []
    for side in query.sides:
        chains: dict[EdgeNodeId, OperatorId] = {}
        for node in entries[side.stream]:
            feeder: OperatorId | Entry = Entry(side.stream, node)
            if side.predicate is not None:
                feeder = add("filter", Filter(side.predicate), feeder, at=node)
            chains[node] = add("map", Map(side.columns), feeder, at=node)
        sides.append(chains)
    if query.join is None and query.aggregate is not None and len(sides[0]) > 1:
        last = _split(query.aggregate, sides[0], tree, add)
    else:
        united = [_only(chains) if len(chains) == 1 else add("union", Union(), *chains.values()) for chains in sides]
        last = united[0] if query.join is None else add("join", query.join, *united)
        if query.residual is not None:
            last = add("filter", Filter(query.residual), last)
        if query.aggregate is not None:
            last = add(query.aggregate.role.value, query.aggregate, last)
    if query.having is not None:
        last = add("having", Filter(query.having), last)
    last = add("map", Map(query.output), last)
    if query.sort is not None:
        add("sort", query.sort, last)
    return QueryPlan(query.name, tuple(stages), query.streams, query.lateness_us, query.histories())


def _only(chains: Mapping[EdgeNodeId, OperatorId]) -> OperatorId:
    (operator,) = chains.values()
    return operator


def _split(
    spec: WindowAggregateSpec, chains: Mapping[EdgeNodeId, OperatorId], tree: Tree, add: Callable[..., OperatorId]
) -> OperatorId:
    """Partial aggregates of all chains, merged wherever at least two of them meet on the way to the final one."""

    def in_role(role: AggregateRole, at: EdgeNodeId | None, *inputs: OperatorId) -> OperatorId:
        return add(role.value, replace(spec, role=role), *inputs, at=at)

    top = tree.lowest_seeing(chains)

    def parts_leaving(node: EdgeNodeId) -> list[OperatorId]:
        parts = [in_role(AggregateRole.PARTIAL, node, chains[node])] if node in chains else []
        for child in tree.children[node]:
            parts += parts_leaving(child)
        return parts if len(parts) < 2 or node == top else [in_role(AggregateRole.MERGING, node, *parts)]

    return in_role(AggregateRole.FINAL, None, *parts_leaving(top))


def prepare(text: str, streams: Mapping[str, Stream]) -> EdgeQuery | QueryRejected:
    """Parse a query and check its types: a query that is not rejected here runs on any reading."""
    query = parse_edge_query(text, streams)
    if isinstance(query, QueryRejected):
        return query
    schema = output_schema(query, streams)
    return schema if isinstance(schema, QueryRejected) else query


def output_schema(query: EdgeQuery, streams: Mapping[str, Stream]) -> pa.Schema | QueryRejected:
    """Run one row of zeros through the query and return the columns of the result.

    An expression that Arrow cannot compute on these types fails here and not on a reading. Filters are evaluated, but
    keep the row.
    """
    nowhere = EdgeNodeId("nowhere")
    plan = lay_out(query, dict.fromkeys((side.stream for side in query.sides), (nowhere,)), Tree({}, nowhere))
    outputs: dict[OperatorId | Entry, pa.RecordBatch] = {
        Entry(side.stream, nowhere): _row_of_zeros(streams[side.stream].arrow()) for side in query.sides
    }
    try:
        for stage in plan.stages:
            inputs = [outputs[feeder] for feeder in stage.inputs]
            batches = _run(stage.spec, inputs)
            if isinstance(stage.spec, Filter):
                batches = inputs
            elif isinstance(stage.spec, IntervalJoinSpec):
                batches = [_side_by_side(*inputs)]
            outputs[stage.operator] = batches[0]
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        return QueryRejected(QueryCode.WRONG_TYPE, str(error).splitlines()[0])
    return outputs[plan.result_of].schema


def _run(spec: Specification, inputs: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    operator = spec.create()
    outputs: list[pa.RecordBatch] = []
    for port, batch in enumerate(inputs):
        outputs += operator.on_batch(port, batch, BEGINNING_OF_TIME_US)
    return outputs + operator.on_notify(END_OF_TIME_US)


def _row_of_zeros(schema: pa.Schema) -> pa.RecordBatch:
    def zero(type_: pa.DataType) -> pa.Array:
        if pa.types.is_string(type_):
            return pa.array([""])
        return pa.array([0], pa.int32() if pa.types.is_date(type_) else pa.int64()).cast(type_)

    return pa.RecordBatch.from_arrays([zero(field.type) for field in schema], schema=schema)


def _side_by_side(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*left.columns, *right.columns], names=[*left.schema.names, *right.schema.names])


def lowest_placement(plan: QueryPlan, tree: Tree) -> dict[OperatorId, EdgeNodeId]:
    """Every operator at the lowest node that sees all its input."""
    return graph_of([plan]).lowest_places(tree)
