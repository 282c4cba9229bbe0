"""A compiled query laid out over the nodes at which its streams enter: the plan that is deployed.

Filters and projections run per entry, so that they can stay where the readings are; then the entries of a stream are
united, the two sides joined, windows aggregated, results filtered, named and ordered. It also says where each operator
can start: at the lowest node that sees all it reads, which is where least data travels [AMI §2.2].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, END_OF_TIME_US, Specification
from tocsin.edge.operators.ordered import IntervalJoinSpec
from tocsin.edge.operators.stateless import FilterSpec, MapSpec, UnionSpec
from tocsin.edge.plan import Entry, QueryPlan, Stage, Stream, graph_of
from tocsin.edge.query import EdgeQuery, QueryCode, QueryRejected, parse_edge_query
from tocsin.model.edge import EdgeNodeId, OperatorId, Tree


def lay_out(query: EdgeQuery, entries: Mapping[str, Sequence[EdgeNodeId]]) -> QueryPlan:
    """`entries` says at which nodes each stream enters; a stream must enter somewhere."""
    stages: list[Stage] = []

    def add(kind: str, spec: Specification, *inputs: OperatorId | Entry) -> OperatorId:
        operator = OperatorId(f"{query.name}/{len(stages)}-{kind}")
        stages.append(Stage(operator, spec, inputs))
        return operator

    sides: list[OperatorId] = []
    for side in query.sides:
        chains: list[OperatorId] = []
        for node in entries[side.stream]:
            last: OperatorId | Entry = Entry(side.stream, node)
            if side.predicate is not None:
                last = add("filter", FilterSpec(side.predicate), last)
            chains.append(add("map", MapSpec(side.columns), last))
        sides.append(chains[0] if len(chains) == 1 else add("union", UnionSpec(), *chains))
    last_one = sides[0] if query.join is None else add("join", query.join, *sides)
    if query.residual is not None:
        last_one = add("filter", FilterSpec(query.residual), last_one)
    if query.aggregate is not None:
        last_one = add("aggregate", query.aggregate, last_one)
    if query.having is not None:
        last_one = add("filter", FilterSpec(query.having), last_one)
    last_one = add("map", MapSpec(query.output), last_one)
    if query.sort is not None:
        add("sort", query.sort, last_one)
    return QueryPlan(query.name, tuple(stages), query.streams, query.lateness_us)


def prepare(text: str, streams: Mapping[str, Stream]) -> EdgeQuery | QueryRejected:
    """Parse a query and check its types: what is not rejected here runs on any reading."""
    query = parse_edge_query(text, streams)
    if isinstance(query, QueryRejected):
        return query
    schema = output_schema(query, streams)
    return schema if isinstance(schema, QueryRejected) else query


def output_schema(query: EdgeQuery, streams: Mapping[str, Stream]) -> pa.Schema | QueryRejected:
    """The columns of the result, found by letting one row of zeros through: what Arrow cannot compute on these types
    comes to light here and not with a reading. Filters are evaluated but keep the row."""
    nowhere = EdgeNodeId("nowhere")
    plan = lay_out(query, dict.fromkeys((side.stream for side in query.sides), (nowhere,)))
    outputs: dict[OperatorId | Entry, pa.RecordBatch] = {
        Entry(side.stream, nowhere): _row_of_zeros(streams[side.stream].arrow()) for side in query.sides
    }
    try:
        for stage in plan.stages:
            inputs = [outputs[feeder] for feeder in stage.inputs]
            rows = _through(stage.spec, inputs)
            if isinstance(stage.spec, FilterSpec):
                rows = inputs
            elif isinstance(stage.spec, IntervalJoinSpec):
                rows = [_side_by_side(*inputs)]
            outputs[stage.operator] = rows[0]
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        return QueryRejected(QueryCode.WRONG_TYPE, str(error).splitlines()[0])
    return outputs[plan.result_of].schema


def _through(spec: Specification, inputs: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    operator = spec.create()
    rows = [one for port, batch in enumerate(inputs) for one in operator.on_batch(port, batch, BEGINNING_OF_TIME_US)]
    return rows + operator.on_notify(END_OF_TIME_US)


def _row_of_zeros(schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.array([""]) if pa.types.is_string(field.type)
        else pa.array([0], pa.int32() if pa.types.is_date(field.type) else pa.int64()).cast(field.type)
        for field in schema
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _side_by_side(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*left.columns, *right.columns], names=[*left.schema.names, *right.schema.names])


def lowest_placement(plan: QueryPlan, tree: Tree) -> dict[OperatorId, EdgeNodeId]:
    """Every operator as close to its readings as it can be."""
    return graph_of([plan]).lowest_places(tree)
