"""Runs a channel: one Spark job for all its backend subscriptions [BAD §3.1, channel execution].

`prepare` compiles a channel and refuses a query that Spark cannot run for all subscriptions at once. `execute` runs it
over one interval of records and writes the results to files, which the caller commits.
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
from tocsin.cluster.spark.query_check import QueryRefused, checked_frame
from tocsin.cluster.spark.reused_plan import REUSED_BYTES, PlanCache
from tocsin.cluster.spark.subscribers import SubscriptionFrames
from tocsin.cluster.spark.writing import WrittenResults, first_of_each_task, write_few_results, write_results
from tocsin.cluster.sql.channel_query import ChannelQuery
from tocsin.cluster.sql.query_sql import SUBSCRIPTIONS_VIEW, RadiusLevels, to_lateral_sql
from tocsin.cluster.sql.result_columns import SUBSCRIPTION
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Channel, Dataset
from tocsin.model.schema import Column, Schema
from tocsin.wire.errors import Code, TocsinError

DatasetContents = Callable[[SparkSession, str, bool], DataFrame | pa.Table]
"""(session, dataset name as the query writes it, NEW?) → its records."""

LARGE_ROWS = 5_000_000
SMALL_PAIRS = 1_000_000
SMALL_RESULTS = 10_000
SMALL_BYTES = 16 << 20
"""An execution below these bounds is small: its results pass through the driver's memory.

Each of its tasks stops at `SMALL_BYTES` of results. A small execution has about as many tasks as the machine has cores.
"""
MOST_FEW_ROWS = 1 << 14
"""The most results of a small execution. More would hardly ever be needed: see `SMALL_RESULTS`."""
PLANNED_LEVELS = frozenset(range(8, 13))
"""Grid levels of radii from 128 m to 4 km: a reused plan has them before a subscription needs them.

Otherwise the first subscription with a radius of another level would make Spark plan the channel again. A level that no
subscription needs costs each NEW record a few rows of its cover.
"""
ROWS_PER_RESULT_TASK = 100_000
BYTES_PER_RESULT_TASK = 128 << 20
"""A task writes about as many rows, or as many bytes if the rows are wide."""


@dataclass(frozen=True, slots=True)
class ExecutionSize:
    """The size of an execution, as far as it is known before it runs."""

    subscriptions: int
    records: int
    """Rows of all datasets that the execution reads; for NEW datasets, only rows of the interval."""
    results: int
    """Results of the last execution: the best estimate for this one."""
    result_bytes: int = 0
    """An estimate of the bytes of one result: a row of every dataset, each as wide as its widest."""

    @property
    def is_large(self) -> bool:
        return self.subscriptions + self.records > LARGE_ROWS

    @property
    def is_small(self) -> bool:
        """True for few records, few subscriptions, and few and narrow results of the last execution."""
        few = self.subscriptions * self.records < SMALL_PAIRS and self.results < SMALL_RESULTS
        return few and self.results < self.most_rows

    @property
    def most_rows(self) -> int:
        """The number of results at which a task of a small execution stops: 2 or a power of four.

        There are few different limits, because each needs a plan of its own: one for all rows of at most 1 KiB.
        """
        most = max(1, SMALL_BYTES // max(1, self.result_bytes))
        return min(MOST_FEW_ROWS, max(2, 1 << ((most.bit_length() - 1) & ~1)))

    @property
    def largest(self) -> ExecutionSize:
        """The size with as many results as there can be without a join of datasets."""
        return replace(self, results=max(self.results, self.subscriptions * self.records))

    def result_tasks(self, cores: int) -> int:
        """The number of tasks that write results."""
        by_bytes = self.results * self.result_bytes // BYTES_PER_RESULT_TASK
        return min(4 * cores, max(self.results // ROWS_PER_RESULT_TASK, by_bytes) + 1)


class Views:
    """The views behind the names in a channel's SQL. A view whose content has not changed is not registered again."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._shown: dict[str, DataFrame | pa.Table] = {}

    def show(self, view: str, content: DataFrame | pa.Table) -> None:
        if self._shown.get(view) is not content:
            frame = content if isinstance(content, DataFrame) else self.session.createDataFrame(content)
            frame.createOrReplaceTempView(view)
            self._shown[view] = content


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
        frame = checked_frame(session, query, to_lateral_sql(query, _view), {SUBSCRIPTIONS_VIEW, *names})
        plan = frame._jdf.queryExecution()
        deterministic = plan.analyzed().deterministic()
        physical = plan.executedPlan().toString()
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
    arrow = _arrow(channel, columns)
    return PreparedChannel(channel, query, session, columns, arrow, _warnings(physical), views, plans)


def execute(
    prepared: PreparedChannel,
    subscribers: SubscriptionFrames,
    contents: DatasetContents,
    storage: Storage,
    prefix: str,
    execution: int,
    size: ExecutionSize,
) -> WrittenResults:
    """Run the channel once and write its results to files. They are invisible until the caller commits them.

    `prefix` is the beginning of their paths.
    """
    if size.is_small:
        few = _few_results(prepared, subscribers, contents, size)
        if few.num_rows < size.most_rows:
            return write_few_results(few, storage, prefix, execution)
    results = _ordinary_frame(prepared, subscribers, contents, size)
    expected = size.largest if size.is_small else size
    tasks = expected.result_tasks(prepared.session.sparkContext.defaultParallelism)
    return write_results(results, storage, prefix, execution, tasks)


def warm_up(prepared: PreparedChannel, subscribers: SubscriptionFrames, empty: DatasetContents) -> None:
    """Make the channel's reused plan and run it without records and subscriptions: no value can make it fail.

    The first plan of a channel takes seconds in a new JVM, because Spark generates and compiles code for it. After the
    warm-up, the first records do not wait for that.
    """
    subscriptions = subscribers.table()
    if subscriptions is not None:
        _results_of_reused_plan(prepared, subscribers, subscriptions.slice(0, 0), empty, MOST_FEW_ROWS)


def _few_results(
    prepared: PreparedChannel, subscribers: SubscriptionFrames, contents: DatasetContents, size: ExecutionSize
) -> pa.Table:
    """The results of a small execution. `size.most_rows` or more mean that some may be missing.

    Each task stops at `most_rows`, so the driver's memory is safe also if the estimate was wrong.
    """
    few = _results_of_reused_plan(prepared, subscribers, subscribers.table(), contents, size.most_rows)
    if few is None:
        frame = _ordinary_frame(prepared, subscribers, contents, size)
        few = first_of_each_task(frame, size.most_rows).toArrow()
    return few


def _ordinary_frame(
    prepared: PreparedChannel, subscribers: SubscriptionFrames, contents: DatasetContents, size: ExecutionSize
) -> DataFrame:
    """The results as a frame that is planned for this execution."""
    _plan_for(prepared.session, size)
    prepared.views.show(SUBSCRIPTIONS_VIEW, subscribers.frame(prepared.session))
    return results_frame(prepared.views, prepared.query, contents, subscribers.radius_levels)


def _results_of_reused_plan(
    prepared: PreparedChannel,
    subscribers: SubscriptionFrames,
    subscriptions: pa.Table | None,
    contents: DatasetContents,
    most_rows: int,
) -> pa.Table | None:
    """The results of a small execution for these subscriptions; None if it must be planned anew."""
    if subscriptions is None or not prepared.plans.usable:
        return None
    query, views = prepared.query, prepared.views
    tables = {SUBSCRIPTIONS_VIEW: subscriptions}
    # Spark streams the larger side of a join. NEW records keep the order in which they arrived if that side is theirs,
    # also beside a join of all other tables, whose size Spark takes for the product of theirs.
    assumed_bytes = {SUBSCRIPTIONS_VIEW: 1 << 8}
    for names, is_new in ((query.datasets, False), (query.new_datasets, True)):
        for name in names:
            content = contents(prepared.session, name, is_new)
            if not isinstance(content, pa.Table):
                return None
            tables[_view(name, is_new)] = content
            assumed_bytes[_view(name, is_new)] = 1 << (22 if is_new else 6)
    if sum(table.nbytes for table in tables.values()) > REUSED_BYTES:
        return None
    levels = {name: PLANNED_LEVELS.union(found) for name, found in subscribers.radius_levels.items()}
    text = to_lateral_sql(query, _view, radius_levels=levels)

    def plan(frames: Mapping[str, DataFrame]) -> DataFrame:
        for view, frame in frames.items():
            views.show(view, subscribers.typed(frame) if view == SUBSCRIPTIONS_VIEW else frame)
        return first_of_each_task(prepared.session.sql(text), most_rows)

    return prepared.plans.run(f"{most_rows} of {text}", tables, plan, assumed_bytes)


def _plan_for(session: SparkSession, size: ExecutionSize) -> None:
    """Set the session: plan a small execution once, and plan a large one again at each stage, which costs it little."""
    cores = session.sparkContext.defaultParallelism
    options = {
        "spark.sql.adaptive.enabled": "true" if size.is_large else "false",
        "spark.sql.shuffle.partitions": str(4 * cores if size.is_large else cores),
    }
    for name, value in options.items():
        if session.conf.get(name) != value:
            session.conf.set(name, value)


def results_frame(views: Views, query: ChannelQuery, contents: DatasetContents, levels: RadiusLevels) -> DataFrame:
    """The results of all subscriptions in SUBSCRIPTIONS_VIEW: the subscription's number, then the channel's columns.

    `prepare` has checked the query. The SQL is the same except for the grid levels, which are Tocsin's own text.
    """
    _show_datasets(views, query, contents)
    return views.session.sql(to_lateral_sql(query, _view, radius_levels=levels))


def _show_datasets(views: Views, query: ChannelQuery, contents: DatasetContents) -> list[str]:
    """Show the datasets that the query reads, and return the names of their views."""
    shown = []
    for names, is_new in ((query.datasets, False), (query.new_datasets, True)):
        for name in names:
            shown.append(_view(name, is_new))
            views.show(shown[-1], contents(views.session, name, is_new))
    return shown


def _view(dataset: str, is_new: bool) -> str:
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
