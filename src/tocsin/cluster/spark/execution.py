"""Runs a channel: one Spark job for all its backend subscriptions [BAD §3.1, channel execution].

`execute` runs a prepared channel over one interval of records and writes the results to files, which the caller
commits. A small execution reuses the channel's plan. So does one of which little is left without the rows that cannot
take part (`cluster.narrowing`). All others are planned anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tocsin.cluster.spark.preparing import DatasetContents, PreparedChannel, frame_of, results_frame, view_of
from tocsin.cluster.spark.reused_plan import REUSED_BYTES, ReusedPlan
from tocsin.cluster.spark.subscribers import SubscriptionFrames
from tocsin.cluster.spark.writing import WrittenResults, first_of_each_task, write_few_results, write_results
from tocsin.cluster.sql.query_sql import SUBSCRIPTIONS_VIEW, to_lateral_sql
from tocsin.cluster.store.storage import Storage

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


class TooMuchAtOnce(Exception):
    """The NEW records have too many results for one task. The caller executes the channel with fewer of them."""


@dataclass(frozen=True, slots=True)
class TaskInputs:
    """The rows that an execution reads if it runs as one task."""

    subscriptions: pa.Table
    """Numbers, and values as text: see `SubscriptionFrames.typed`."""
    tables: Mapping[tuple[str, bool], pa.Table]
    """By the dataset's name in the query, and by whether it is read as NEW."""
    may_split: bool = False
    """True if the caller rather executes parts of the NEW records one after the other than in the ordinary way."""

    @property
    def size_bytes(self) -> int:
        return int(self.subscriptions.nbytes) + sum(int(table.nbytes) for table in self.tables.values())


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


def execute(
    prepared: PreparedChannel,
    subscribers: SubscriptionFrames,
    contents: DatasetContents,
    storage: Storage,
    prefix: str,
    execution: int,
    size: ExecutionSize,
    narrow: Callable[[], TaskInputs | None] = lambda: None,
) -> WrittenResults:
    """Run the channel once and write its results to files. They are invisible until the caller commits them.

    `prefix` is the beginning of their paths. `narrow` leaves out rows that cannot take part: see `cluster.narrowing`.
    """
    few = _few_results(prepared, subscribers, contents, size, narrow)
    if few is not None:
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
    inputs = _whole_inputs(prepared, subscribers.none(), empty)
    if prepared.plans.usable and inputs is not None:
        _results_of_reused_plan(prepared, subscribers, inputs, MOST_FEW_ROWS)


def _few_results(
    prepared: PreparedChannel,
    subscribers: SubscriptionFrames,
    contents: DatasetContents,
    size: ExecutionSize,
    narrow: Callable[[], TaskInputs | None],
) -> pa.Table | None:
    """The results of an execution if they are few: then they pass through the driver's memory.

    Each task stops at `most_rows`, so the driver's memory is safe also if the estimate was wrong.
    """
    few = None
    if size.is_small and prepared.plans.usable:
        whole = _whole_inputs(prepared, subscribers.table(), contents)
        few = None if whole is None else _results_of_reused_plan(prepared, subscribers, whole, size.most_rows)
    if few is None and prepared.plans.usable and (narrowed := narrow()) is not None:
        few = _results_of_reused_plan(prepared, subscribers, narrowed, size.most_rows)
        if few is not None and few.num_rows >= size.most_rows and narrowed.may_split:
            raise TooMuchAtOnce
    if few is None and size.is_small:
        frame = _ordinary_frame(prepared, subscribers, contents, size)
        few = first_of_each_task(frame, size.most_rows).toArrow()
    return few if few is not None and few.num_rows < size.most_rows else None


def _ordinary_frame(
    prepared: PreparedChannel, subscribers: SubscriptionFrames, contents: DatasetContents, size: ExecutionSize
) -> DataFrame:
    """The results as a frame that is planned for this execution."""
    _plan_for(prepared.session, size)
    prepared.views.show(SUBSCRIPTIONS_VIEW, subscribers.frame(prepared.session))
    return results_frame(prepared, contents, subscribers.radius_levels)


def _whole_inputs(
    prepared: PreparedChannel, subscriptions: pa.Table | None, contents: DatasetContents
) -> TaskInputs | None:
    """These subscriptions and all records of an execution; None if some are not in memory."""
    if subscriptions is None:
        return None
    query = prepared.query
    tables: dict[tuple[str, bool], pa.Table] = {}
    for names, is_new in ((query.datasets, False), (query.new_datasets, True)):
        for name in names:
            content = contents(prepared.session, name, is_new)
            if not isinstance(content, pa.Table):
                return None
            tables[name, is_new] = content
    return TaskInputs(subscriptions, tables)


def ready_task(
    prepared: PreparedChannel,
    subscribers: SubscriptionFrames,
    contents: DatasetContents,
    most_rows: int,
    most_bytes: int,
) -> tuple[ReusedPlan, Mapping[str, pa.Table]] | None:
    """The channel's reused plan and its tables, by relation, for a small execution over all these rows.

    None if the plan is not made yet, or if the rows are not in memory or have more than `most_bytes`.
    """
    inputs = _whole_inputs(prepared, subscribers.table(), contents)
    if inputs is None or inputs.size_bytes > most_bytes:
        return None
    tables = _tables(inputs)
    plan = prepared.plans.ready(f"{most_rows} of {_text(prepared, subscribers)}", tables)
    return None if plan is None else (plan, tables)


def _results_of_reused_plan(
    prepared: PreparedChannel, subscribers: SubscriptionFrames, inputs: TaskInputs, most_rows: int
) -> pa.Table | None:
    """The results of an execution as one task; None if it must be planned anew."""
    if inputs.size_bytes > REUSED_BYTES:
        return None
    views = prepared.views
    # Spark streams the larger side of a join. NEW records keep the order in which they arrived if that side is theirs,
    # also beside a join of all other tables, whose size Spark takes for the product of theirs.
    assumed_bytes = {SUBSCRIPTIONS_VIEW: 1 << 8}
    for name, is_new in inputs.tables:
        assumed_bytes[view_of(name, is_new)] = 1 << (22 if is_new else 6)
    text = _text(prepared, subscribers)

    def plan(frames: Mapping[str, DataFrame]) -> DataFrame:
        for view, frame in frames.items():
            views.show(view, subscribers.typed(frame) if view == SUBSCRIPTIONS_VIEW else frame)
        return first_of_each_task(frame_of(prepared, text), most_rows)

    return prepared.plans.run(f"{most_rows} of {text}", _tables(inputs), plan, assumed_bytes)


def _tables(inputs: TaskInputs) -> dict[str, pa.Table]:
    """The rows of an execution by relation."""
    new = {view_of(name, is_new): table for (name, is_new), table in inputs.tables.items()}
    return {SUBSCRIPTIONS_VIEW: inputs.subscriptions, **new}


def _text(prepared: PreparedChannel, subscribers: SubscriptionFrames) -> str:
    """The SQL of a reused plan."""
    levels = {name: PLANNED_LEVELS.union(found) for name, found in subscribers.radius_levels.items()}
    return prepared.plans.text(levels, lambda: to_lateral_sql(prepared.query, view_of, radius_levels=levels))


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
