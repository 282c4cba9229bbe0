"""Runs a channel: finds the NEW records, has Spark match them for all subscriptions, and commits the results."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import pyarrow as pa

from tocsin.cluster.catalog import StoredExecution, StoredFile, dataset_owner
from tocsin.cluster.channels import Channels, Intervals
from tocsin.cluster.datasets import Datasets
from tocsin.cluster.live import EngineContext, LiveChannel, LiveDataset
from tocsin.cluster.spark.culprits import failing_subscriptions
from tocsin.cluster.spark.errors import SPARK_ERRORS, first_line
from tocsin.cluster.spark.execution import ExecutionSize, execute, in_authors_words
from tocsin.cluster.spark.frames import Frame, dataset_frame
from tocsin.cluster.spark.session import Session
from tocsin.cluster.spark.time_limit import time_limit
from tocsin.cluster.spark.writing import WrittenResults
from tocsin.cluster.sql.channel_query import ChannelQuery
from tocsin.cluster.store.smalltables import SmallTables
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.wire.errors import Code, TocsinError


class Executions:
    """Thread-safe. Executions of one channel follow each other; those of different channels run at the same time."""

    def __init__(self, context: EngineContext, datasets: Datasets, channels: Channels) -> None:
        self._catalog = context.catalog
        self._storage = context.storage
        self._now_s = context.now_s
        self._limit_s = context.settings.execution_s
        self._small_tables = SmallTables(context.storage)
        self._datasets = datasets
        self._channels = channels

    def execute(self, name: str) -> StoredExecution | None:
        """Run a channel once over the records that are NEW since its last execution; None if it had no results.

        If the process dies during an execution, the catalog does not change. The next execution covers the same records
        and those that arrived since.
        """
        live = self._channels.get(name)
        try:
            with live.exclusive():
                return self._execute(live)
        except SPARK_ERRORS as error:
            reason = in_authors_words(first_line(error), live.prepared.query)
            raise TocsinError(Code.BAD_SQL, f"channel {live.name}: Spark could not run it: {reason}") from error
        finally:
            self._datasets.arrivals.executed()

    def _execute(self, live: LiveChannel) -> StoredExecution | None:
        started_s = self._now_s()
        start = self._channels.begin_execution(live)
        if start is None:
            return None
        inputs = self._read(live.prepared.query, start.intervals)
        written = self._run(live, inputs)
        if inputs.rows:
            live.tried = max(live.tried, start.newest_subscription)
        finished_s = self._now_s()
        live.executions += 1
        live.last_started_s, live.last_duration_s = started_s, finished_s - started_s
        live.last_results = sum(file.rows for file in written.files)
        for dataset, (_, newest) in start.intervals.items():
            if not self._datasets.get(dataset).writer.wait_stored(newest, start.marks[dataset]):
                raise TocsinError(Code.NOT_READY, f"{live.name}: new records of {dataset} could not be stored yet")
        if live.subscribers.dropped_paths:
            self._catalog.files.discard_paths(live.subscribers.dropped_paths, finished_s)
            live.subscribers.dropped_paths.clear()
        return self._channels.commit_execution(live, start.intervals, written, started_s, finished_s)

    def _run(self, live: LiveChannel, inputs: ExecutionInputs) -> WrittenResults:
        """Match the inputs. If a new subscription's values make the query fail, end that subscription and run again."""
        size = ExecutionSize(live.subscribers.count, inputs.rows, live.last_results)
        target = (self._storage, live.results_folder, live.execution + 1)
        with time_limit(live.prepared.session, live.name, self._limit_s) as limit:
            try:
                return execute(live.prepared, live.subscribers, inputs.content, *target, size)
            except SPARK_ERRORS:
                limit.check()
                stored = self._catalog.subscriptions.of_channel(live.name)
                numbers = [number for number, _, _ in stored]
                tried = bisect_right(numbers, live.tried)
                reasons = failing_subscriptions(
                    live.prepared, live.subscribers, inputs.content, numbers[:tried], numbers[tried:], limit
                )
                if not reasons:
                    raise
                self._channels.refuse(live, reasons)
            return execute(live.prepared, live.subscribers, inputs.content, *target, size)

    def _read(self, query: ChannelQuery, intervals: Intervals) -> ExecutionInputs:
        """The records that an execution reads: from memory if they are there, else from files."""
        inputs = ExecutionInputs(self._storage)
        for name in query.datasets:
            inputs.add(name, False, self._stored(self._datasets.get(name), None, None))
        for name in query.new_datasets:
            live = self._datasets.get(name)
            interval = intervals[live.name]
            recent = live.writer.recent(*interval) if live.dataset.kind is DatasetKind.STREAM else None
            inputs.add(name, True, recent if recent is not None else self._stored(live, *interval))
        return inputs

    def _stored(self, live: LiveDataset, after: int | None, upto: int | None) -> pa.Table | _InputFiles:
        dataset, owner = live.dataset, dataset_owner(live.name)
        if after is not None and dataset.kind is DatasetKind.STREAM:
            return _InputFiles(dataset, self._catalog.files.of(owner, after, upto), after, upto)
        # NEW of a KEYED dataset needs all files: a later record of the same key may hide an earlier one.
        files = self._catalog.files.of(owner)
        table = self._small_tables.table(dataset, files, after, upto)
        return table if table is not None else _InputFiles(dataset, files, after, upto)


@dataclass(frozen=True, slots=True)
class _InputFiles:
    """The part of a dataset that Spark reads itself: versions (after, upto] of these files."""

    dataset: Dataset
    files: list[StoredFile]
    after: int | None
    upto: int | None


class ExecutionInputs:
    """The datasets of one execution, by the name in the query and by whether it is read as NEW."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._parts: dict[tuple[str, bool], pa.Table | _InputFiles] = {}

    def add(self, name: str, is_new: bool, part: pa.Table | _InputFiles) -> None:
        self._parts[name, is_new] = part

    @property
    def rows(self) -> int:
        """An upper bound of the rows of all datasets."""
        return sum(
            sum(file.rows for file in part.files) if isinstance(part, _InputFiles) else part.num_rows
            for part in self._parts.values()
        )

    def content(self, session: Session, name: str, is_new: bool) -> Frame | pa.Table:
        part = self._parts[name, is_new]
        if not isinstance(part, _InputFiles):
            return part
        return dataset_frame(session, self._storage, part.dataset, part.files, after=part.after, upto=part.upto)
