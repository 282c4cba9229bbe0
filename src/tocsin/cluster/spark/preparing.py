"""Compiles a channel: its query becomes SQL for all subscriptions at once, over views of its datasets.

`prepare` refuses a query that Spark cannot run in this way. `cluster.spark.execution` runs what it returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tocsin.cluster.spark.errors import SPARK_ERRORS, first_line
from tocsin.cluster.spark.patterns import with_bounded_patterns
from tocsin.cluster.spark.plan_walk import plan_nodes
from tocsin.cluster.spark.query_check import QueryRefused, checked_frame
from tocsin.cluster.spark.replaceable_relation import memory_frame
from tocsin.cluster.spark.reused_plan import PlanCache
from tocsin.cluster.sql.channel_query import ChannelQuery
from tocsin.cluster.sql.narrowing import Narrowing, find_narrowing
from tocsin.cluster.sql.query_sql import SUBSCRIPTIONS_VIEW, RadiusLevels, to_lateral_sql
from tocsin.cluster.sql.result_columns import SUBSCRIPTION
from tocsin.model.entities import Channel, Dataset
from tocsin.model.schema import Column, Schema
from tocsin.wire.errors import Code, TocsinError

DatasetContents = Callable[[SparkSession, str, bool], DataFrame | pa.Table]
"""(session, dataset name as the query writes it, NEW?) → its records."""
MOST_PLANNED_ROWS = 20_000
"""The most rows of a table that is part of a plan."""
_AGGREGATE = "org.apache.spark.sql.catalyst.plans.logical.Aggregate"


class Views:
    """The views behind the names in a channel's SQL. A view whose content has not changed is not registered again."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._shown: dict[str, DataFrame | pa.Table] = {}

    def show(self, view: str, content: DataFrame | pa.Table) -> None:
        if self._shown.get(view) is not content:
            frame = content if isinstance(content, DataFrame) else self._frame(content)
            frame.createOrReplaceTempView(view)
            self._shown[view] = content

    def _frame(self, table: pa.Table) -> DataFrame:
        """A large table is not part of the plan: see `memory_frame`."""
        is_large = table.num_rows > MOST_PLANNED_ROWS
        return memory_frame(self.session, table) if is_large else self.session.createDataFrame(table)


@dataclass(frozen=True, slots=True)
class PreparedChannel:
    """A channel that Spark can run, with a session of its own for its views."""

    channel: Channel
    query: ChannelQuery
    session: SparkSession
    columns: StructType
    """The columns for reading stored results. A name may be any text, also inside a STRUCT."""
    arrow: pa.Schema
    """The same columns as Arrow types: an answer without rows has its columns too."""
    warnings: tuple[str, ...]
    views: Views
    plans: PlanCache
    narrowing: Narrowing
    """The rows and subscriptions that an execution may leave out."""
    has_open_patterns: bool
    """True if the query matches with patterns that come from subscriptions or records."""

    @property
    def described(self) -> Schema:
        """The columns for display, with types as SQL writes them."""
        return Schema(tuple(Column(field.name, _spelled(field.dataType)) for field in self.columns.fields))

    @property
    def radius_parameters(self) -> set[str]:
        """The parameters that a `near` of the query takes as its radius, in the channel's spelling."""
        spelling = {name.upper(): name for name in self.channel.parameters.names}
        markers = (grid.radius_marker for grid in self.query.grids)
        return {spelling[marker.upper()] for marker in markers if marker is not None}


def prepare(
    spark: SparkSession,
    channel: Channel,
    query: ChannelQuery,
    datasets: Mapping[str, Dataset],
    contents: DatasetContents,
) -> PreparedChannel:
    """Compile a channel, or raise with the reason. `datasets` are by lower-case name; `contents` may be empty."""
    _check_datasets(query, datasets)
    session = spark.newSession()
    views = Views(session)
    empty = session.createDataFrame([], f"{SUBSCRIPTION} BIGINT, {channel.parameters.ddl()}".rstrip(", "))
    try:
        # Datasets are read through a file scan even when empty: else the optimiser would skip parts of the query, and
        # would not report what it cannot do.
        views.show(SUBSCRIPTIONS_VIEW, empty)
        names = _show_datasets(views, query, contents)
        checked = checked_frame(session, query, to_lateral_sql(query, view_of), {SUBSCRIPTIONS_VIEW, *names})
        frame = with_bounded_patterns(session, checked)
        plan = frame._jdf.queryExecution()
        deterministic = plan.analyzed().deterministic()
        physical = plan.executedPlan().toString()
        narrowing = _narrowing(session, query, datasets, plan.analyzed())
    except QueryRefused as error:
        raise QueryRefused(f"channel {channel.name}: {error.message}", error.offset) from None
    except SPARK_ERRORS as error:
        raise TocsinError(Code.BAD_SQL, f"channel {channel.name}: {_reason(error, query)}") from error
    if not deterministic:
        raise TocsinError(
            Code.BAD_SQL,
            f"channel {channel.name}: its query is not deterministic, so an execution that is repeated after a crash "
            "would give subscribers other results",
        )
    # Nullable, because Spark reads every column of a file as one that may be NULL.
    columns = StructType(frame.schema.fields[1:]).toNullable()
    _check_columns(channel, columns)
    plans = PlanCache(session, query.text)
    return PreparedChannel(
        channel,
        query,
        session,
        columns,
        _arrow(channel, columns),
        _warnings(physical),
        views,
        plans,
        narrowing,
        has_open_patterns=frame is not checked,
    )


def _narrowing(
    session: SparkSession, query: ChannelQuery, datasets: Mapping[str, Dataset], analyzed: object
) -> Narrowing:
    """What `find_narrowing` says, checked by Spark's reading: an aggregate without GROUP BY has a row for no rows."""
    narrowing = find_narrowing(query, datasets)
    is_grouped = query.ast.args.get("group") is not None
    if is_grouped or not any(node.kind == _AGGREGATE for node in plan_nodes(session, analyzed)):
        return narrowing
    return replace(narrowing, subscriptions=())


def results_frame(prepared: PreparedChannel, contents: DatasetContents, levels: RadiusLevels) -> DataFrame:
    """The results of all subscriptions in SUBSCRIPTIONS_VIEW: the subscription's number, then the channel's columns."""
    _show_datasets(prepared.views, prepared.query, contents)
    return frame_of(prepared, to_lateral_sql(prepared.query, view_of, radius_levels=levels))


def frame_of(prepared: PreparedChannel, sql: str) -> DataFrame:
    """The frame of the channel's SQL over its views.

    `prepare` has checked the query. The SQL is the same except for the grid levels, which are Tocsin's own text.
    """
    frame = prepared.session.sql(sql)
    return with_bounded_patterns(prepared.session, frame) if prepared.has_open_patterns else frame


def _show_datasets(views: Views, query: ChannelQuery, contents: DatasetContents) -> list[str]:
    """Show the datasets that the query reads, and return the names of their views."""
    shown = []
    for names, is_new in ((query.datasets, False), (query.new_datasets, True)):
        for name in names:
            shown.append(view_of(name, is_new))
            views.show(shown[-1], contents(views.session, name, is_new))
    return shown


def view_of(dataset: str, is_new: bool) -> str:
    """The view's name. A dataset's name has only letters, digits and underscores, by the grammar."""
    return f"_tocsin_{'new' if is_new else 'all'}_{dataset.lower()}"


def _check_datasets(query: ChannelQuery, datasets: Mapping[str, Dataset]) -> None:
    for name in sorted(query.datasets | query.new_datasets):
        if name.lower() not in datasets:
            names = ", ".join(sorted(dataset.name for dataset in datasets.values())) or "none yet"
            raise TocsinError(Code.UNKNOWN_DATASET, f"there is no dataset {name} (there are: {names})")


def _check_columns(channel: Channel, columns: StructType) -> None:
    seen: set[str] = set()
    for column in columns.fields:
        problem = None
        if column.name.lower() in seen:
            problem = f"two result columns are named {column.name}; give one an alias"
        elif column.name.lower().startswith("_tocsin"):
            problem = f"{column.name} is a name that Tocsin reserves for itself"
        elif column.dataType.typeName() == "void":
            problem = f"result column {column.name} is always NULL; CAST it to a type"
        if problem is not None:
            raise TocsinError(Code.BAD_SQL, f"channel {channel.name}: {problem}")
        seen.add(column.name.lower())


def _arrow(channel: Channel, columns: StructType) -> pa.Schema:
    fields = []
    for column in columns.fields:
        try:
            fields += to_arrow_schema(StructType([column]), timezone="UTC")
        except SPARK_ERRORS as error:
            kind = _spelled(column.dataType)
            message = f"result column {column.name} is of type {kind}, which cannot be stored; CAST it to another"
            raise TocsinError(Code.BAD_SQL, f"channel {channel.name}: {message}") from error
    return pa.schema(fields)


def _spelled(kind: DataType) -> str:
    """A type in capitals; the names inside a STRUCT as the author wrote them."""
    match kind:
        case ArrayType():
            return f"ARRAY<{_spelled(kind.elementType)}>"
        case MapType():
            return f"MAP<{_spelled(kind.keyType)},{_spelled(kind.valueType)}>"
        case StructType():
            return f"STRUCT<{','.join(f'{field.name}:{_spelled(field.dataType)}' for field in kind.fields)}>"
        case _:
            return kind.simpleString().upper()


def _warnings(physical: str) -> tuple[str, ...]:
    if "BroadcastNestedLoopJoin" in physical or "CartesianProduct" in physical:
        return (
            "the query compares every pair of rows (no equality to join on): its cost grows with the product of both "
            "sides; near() joins through a grid, other inequalities do not",
        )
    return ()


def _reason(error: Exception, query: ChannelQuery) -> str:
    """Spark's reason in the author's words."""
    return f"Spark cannot run this query for all subscriptions at once: {in_authors_words(first_line(error), query)}"


def in_authors_words(message: str, query: ChannelQuery) -> str:
    """Spark's message with parameters and datasets named as in the query, not as in the generated SQL."""
    for name in query.parameters.names:
        message = re.sub(rf"(?:`?_tocsin_s`?\.)?`?_tocsin_p_{name}`?", f":{name}", message, flags=re.IGNORECASE)
    for name in query.datasets | query.new_datasets:
        message = re.sub(rf"`?_tocsin_(?:new|all)_{name}`?", name, message, flags=re.IGNORECASE)
    return re.sub(r"`?_tocsin_\w*`?", "(text that Tocsin adds)", message, flags=re.IGNORECASE)
