"""Runs a channel: finds the NEW records, has Spark match them for all subscriptions, and commits the results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from tocsin.cluster.catalog import (
    DeadLetter,
    ExecutionOutcome,
    StoredDeadLetter,
    StoredExecution,
    dataset_owner,
    results_owner,
)
from tocsin.cluster.channels import Channels, ExecutionStart, Intervals
from tocsin.cluster.current_tables import CurrentTables
from tocsin.cluster.datasets import Datasets
from tocsin.cluster.feed.columntypes import LineReader, arrow_schema
from tocsin.cluster.inputs import ExecutionInputs, InputFiles
from tocsin.cluster.joint_executions import ALONE, SLOW_S, JointExecutions, JointOutcome, execution_size
from tocsin.cluster.live import EngineContext, LiveChannel, LiveDataset
from tocsin.cluster.narrowing import Narrower
from tocsin.cluster.recovery import Recovery
from tocsin.cluster.spark.errors import SPARK_ERRORS, first_line
from tocsin.cluster.spark.execution import ExecutionSize, TooMuchAtOnce, execute, warm_up
from tocsin.cluster.spark.preparing import in_authors_words
from tocsin.cluster.spark.session import Session
from tocsin.cluster.spark.time_limit import TimeOver, time_limit
from tocsin.cluster.spark.writing import WrittenResults
from tocsin.cluster.sql.channel_query import ChannelQuery
from tocsin.cluster.store.results import ResultStore
from tocsin.cluster.store.smalltables import SmallTables
from tocsin.cluster.store.storage import Storage
from tocsin.cluster.store.writes import Write
from tocsin.model.entities import DatasetKind
from tocsin.model.ids import ChannelName
from tocsin.wire.errors import Code, TocsinError

MOST_REPLAYED = 10_000
"""The most dead letters that one replay matches."""


class Executions:
    """Thread-safe. Executions of one channel follow each other; those of different channels run at the same time."""

    def __init__(self, context: EngineContext, datasets: Datasets, channels: Channels, results: ResultStore) -> None:
        self._recovery = Recovery(context.catalog, datasets, channels, results)
        self._catalog = context.catalog
        self._storage = context.storage
        self._writes = context.writes
        self._now_s = context.now_s
        self._limit_s = context.settings.execution_s
        self._small_tables = SmallTables(context.storage)
        self._narrower = Narrower(CurrentTables.of(context), datasets, context.settings.narrowing)
        self._datasets = datasets
        self._channels = channels
        self._joint = JointExecutions(context, datasets, channels, self._recovery, self._read)

    def execute_together(self, names: Sequence[ChannelName]) -> JointOutcome:
        """Run continuous channels together, as far as they can; the caller runs the others one by one."""
        try:
            return self._joint.execute(names)
        finally:
            self._datasets.arrivals.executed()

    def execute(self, name: str) -> StoredExecution | None:
        """Run a channel once over the records that are NEW since its last execution; None if it had no results.

        If the process dies during an execution, the catalog does not change. The next execution covers the same records
        and those that arrived since.
        """
        live = self._channels.get(name)
        try:
            with live.exclusive(), self._by_itself(live):
                return self._execute(live)
        except SPARK_ERRORS as error:
            self._recovery.note_death(live, str(error))
            reason = in_authors_words(first_line(error), live.prepared.query)
            raise TocsinError(Code.BAD_SQL, f"channel {live.name}: Spark could not run it: {reason}") from error
        except Exception as error:
            self._recovery.note_death(live, str(error))
            raise
        finally:
            self._datasets.arrivals.executed()

    @contextmanager
    def _by_itself(self, live: LiveChannel) -> Iterator[None]:
        """Decide after an execution whether the channel may run together with others: see `joint_executions`."""
        live.alone = max(0, live.alone - 1)
        was_suspect, live.is_suspect = live.is_suspect, False
        began_s, notices = time.monotonic(), len(live.notices)
        try:
            yield
        except Exception:
            live.alone = ALONE
            raise
        if was_suspect and (time.monotonic() - began_s > SLOW_S or len(live.notices) > notices):
            live.alone = ALONE

    def _execute(self, live: LiveChannel) -> StoredExecution | None:
        started_s = self._now_s()
        start = self._channels.begin_execution(live)
        if start is None:
            return None
        whole = start
        while True:
            try:
                with self._writes.begin(results_owner(live.name, live.epoch)) as write:
                    execution = self._execute_from(live, start, write, started_s)
            except (*SPARK_ERRORS, TooMuchAtOnce, TimeOver):
                # Nothing is at fault by itself: perhaps there are too many records for one job or for its time.
                shorter = start.shortened()
                if shorter is None:
                    raise
                start = shorter
                continue
            if start is not whole:
                self._datasets.arrivals.run_again(live)
            return execution

    def _execute_from(
        self, live: LiveChannel, start: ExecutionStart, write: Write, started_s: float
    ) -> StoredExecution | None:
        inputs = self._read(live.prepared.query, start.intervals)
        killed: Sequence[DeadLetter] = ()
        if live.deaths:
            inputs, killed = self._recovery.without_killer(live, inputs)
        # A continuous channel may match records in any parts; a repetitive one matches those of a period together.
        may_split = live.prepared.channel.period_s is None and start.shortened() is not None
        written, found = self._run(live, inputs, write, may_split)
        letters = [*killed, *found]
        tried = max(live.tried, start.newest_subscription) if inputs.rows else live.tried
        finished_s = self._now_s()
        live.note_execution(started_s, finished_s, written.results, written.widest)
        for dataset, (_, newest) in start.intervals.items():
            if not self._datasets.get(dataset).writer.wait_stored(newest, start.marks[dataset]):
                raise TocsinError(Code.NOT_READY, f"{live.name}: new records of {dataset} could not be stored yet")
        if live.subscribers.dropped_paths:
            self._catalog.files.discard_paths(live.subscribers.dropped_paths, finished_s)
            live.subscribers.dropped_paths.clear()
        outcome = ExecutionOutcome(tried, letters)
        if letters:
            live.notices.append(f"{len(letters)} records became dead letters: {letters[0].reason}")
        execution = self._channels.commit_execution(
            live, start.intervals, written, write, outcome, started_s, finished_s
        )
        if live.deaths:
            self._recovery.survived(live)
        return execution

    def _run(
        self, live: LiveChannel, inputs: ExecutionInputs, write: Write, may_split: bool
    ) -> tuple[WrittenResults, Sequence[DeadLetter]]:
        """Match the inputs. If some values make the query fail, run again without them; see `cluster.failures`."""
        size = execution_size(live, inputs)
        target = (self._storage, write.prefix(live.results_folder), live.execution + 1)
        with time_limit(live.prepared.session, live.name, self._limit_s) as limit:
            try:
                return self._execute_with_spark(live, inputs, target, size, may_split), ()
            except SPARK_ERRORS:
                limit.check()
                remaining, dead = self._recovery.without_culprits(live, inputs, limit)
                if remaining is None:
                    raise
            return self._execute_with_spark(live, remaining, target, size), dead

    def _execute_with_spark(
        self,
        live: LiveChannel,
        inputs: ExecutionInputs,
        target: tuple[Storage, str, int],
        size: ExecutionSize,
        may_split: bool = False,
    ) -> WrittenResults:
        narrow = partial(self._narrower.narrowed, live, inputs, may_split)
        return execute(live.prepared, live.subscribers, inputs.content, *target, size, narrow)

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

    def _stored(self, live: LiveDataset, after: int | None, upto: int | None) -> pa.Table | InputFiles:
        dataset, owner = live.dataset, dataset_owner(live.name)
        if after is not None and dataset.kind is DatasetKind.STREAM:
            return InputFiles(dataset, self._catalog.files.of(owner, after, upto), after, upto)
        # NEW of a KEYED dataset needs all files: a later record of the same key may hide an earlier one.
        files = self._catalog.files.of(owner)
        table = self._small_tables.table(dataset, files, after, upto)
        return table if table is not None else InputFiles(dataset, files, after, upto)

    def warm_up(self) -> int:
        """Plan the channels that have not run yet, before records arrive. Return how many there were.

        An execution that starts meanwhile waits for the plan of its own channel, which it would have to make itself.
        While a channel is suspected of killing Spark, nothing is planned: the search for the value that does it needs
        Spark's memory for itself (`cluster.deaths`).
        """
        live_channels = self._channels.all()
        if any(live.deaths for live in live_channels):
            return 0
        cold = [live for live in live_channels if not live.warm]
        for live in cold:
            with live.exclusive():
                if not live.warm:
                    live.warm = True
                    warm_up(live.prepared, live.subscribers, self._empty)
        return len(cold)

    def _empty(self, _session: Session, name: str, _is_new: bool) -> pa.Table:
        return arrow_schema(self._datasets.get(name).dataset.schema).empty_table()

    # -- dead letters ----------------------------------------------------------------------------------------------

    def replay(self, name: str, ids: Sequence[int] | None = None) -> int:
        """Match dead letters of a channel, all or those with these ids, and delete them. Return how many.

        One call replays at most `MOST_REPLAYED`. If the query still fails, the dead letters stay.
        """
        live = self._channels.get(name)
        with live.exclusive():
            start = self._channels.begin_replay(live)
            stored = self._catalog.dead_letters.page(live.name, limit=MOST_REPLAYED, ids=ids)
            letters = [letter for letter in stored if letter.dataset in start.intervals]
            if letters:
                self._replay(live, start, letters)
            return len(letters)

    def _replay(self, live: LiveChannel, start: ExecutionStart, letters: Sequence[StoredDeadLetter]) -> None:
        started_s = self._now_s()
        records = {}
        for name in live.prepared.query.new_datasets:
            dataset = self._datasets.get(name).dataset
            lines = [letter.record for letter in letters if letter.dataset == dataset.name]
            records[name] = LineReader(dataset.schema).read("\n".join(lines).encode())
        with self._writes.begin(results_owner(live.name, live.epoch)) as write:
            inputs = self._read(live.prepared.query, start.intervals).replaced(records)
            size = execution_size(live, inputs)
            target = (self._storage, write.prefix(live.results_folder), live.execution + 1)
            try:
                with time_limit(live.prepared.session, live.name, self._limit_s):
                    written = self._execute_with_spark(live, inputs, target, size)
            except SPARK_ERRORS as error:
                message = f"channel {live.name}: the query still fails: {first_line(error)}"
                raise TocsinError(Code.BAD_RECORDS, message) from error
            outcome = ExecutionOutcome(live.tried, replayed=[letter.id for letter in letters])
            self._channels.commit_execution(live, start.intervals, written, write, outcome, started_s, self._now_s())
