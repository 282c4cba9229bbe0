"""The channels of a data cluster: definitions, progress, and the changes that must agree with the catalog [BAD §3.1].

`cluster.executions` runs a channel; `cluster.server` decides when.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from tocsin.cluster.announcements import AnnouncementLog
from tocsin.cluster.catalog import ExecutionOutcome, NewExecution, StoredExecution
from tocsin.cluster.datasets import Datasets
from tocsin.cluster.live import EngineContext, LiveChannel, LiveDataset
from tocsin.cluster.spark.dataset_writer import Mark
from tocsin.cluster.spark.frames import Frame, dataset_frame
from tocsin.cluster.spark.preparing import PreparedChannel, prepare
from tocsin.cluster.spark.session import Session
from tocsin.cluster.spark.subscribers import SubscriptionFrames
from tocsin.cluster.spark.writing import WrittenResults
from tocsin.cluster.sql.channel_query import ChannelQuery, parse_channel_query
from tocsin.cluster.store.results import ResultStore
from tocsin.cluster.store.writes import Write
from tocsin.cluster.stored_results import store_columns
from tocsin.cluster.subscriptions import Subscriptions, Users
from tocsin.model.cursor import Cursor, offset_of
from tocsin.model.entities import Channel, Dataset, DatasetKind
from tocsin.model.ids import BrokerId, ChannelName, DatasetName, SubscriptionId
from tocsin.wire.errors import Code, TocsinError

PREPARED_AT_ONCE = 4
"""Channels that Spark compiles at the same time when the data cluster starts."""
Intervals = Mapping[DatasetName, tuple[int, int]]
"""Versions (after, upto] of each dataset that a channel reads as NEW."""


@dataclass(frozen=True, slots=True)
class GrantedSubscription:
    id: SubscriptionId
    cursor: Cursor
    """Results from this position on belong to the broker that subscribed now."""
    created: bool
    """False if a broker held the subscription already."""
    bound: tuple[str, ...] = ()
    """The channel's parameters that are bound to the session's user."""


@dataclass(frozen=True, slots=True)
class ExecutionStart:
    """The records that an execution covers, decided before it reads anything."""

    intervals: Intervals
    marks: Mapping[DatasetName, Mark]
    newest_subscription: int

    def shortened(self) -> ExecutionStart | None:
        """The first half of the records; None if they are of one version each."""
        shorter = {
            name: (after, min(upto, after + max(1, (upto - after) // 2)))
            for name, (after, upto) in self.intervals.items()
        }
        return None if shorter == self.intervals else replace(self, intervals=shorter)


@dataclass(frozen=True, slots=True)
class FinishedExecution:
    """An execution whose results are written and not committed yet."""

    live: LiveChannel
    intervals: Intervals
    written: WrittenResults
    write: Write
    tried: int
    """Subscriptions up to this number have taken part in an execution."""


class Channels:
    """Thread-safe. Locks are taken in this order: the channel's executions, this class's lock, `Subscriptions`'."""

    def __init__(
        self,
        context: EngineContext,
        datasets: Datasets,
        subscriptions: Subscriptions,
        results: ResultStore,
        announcements: AnnouncementLog,
    ) -> None:
        self._context = context
        self._catalog = context.catalog
        self._datasets = datasets
        self._subscriptions = subscriptions
        self._results = results
        self._announcements = announcements
        self._lock = threading.RLock()
        """Guards the map, the progress of channels, the order of commits, and changes of their subscriptions."""
        self._channels: dict[str, LiveChannel] = {}
        self._listed: tuple[LiveChannel, ...] = ()
        """The same channels by name, replaced at each change: every batch of records reads them, without the lock."""
        self.refused: dict[ChannelName, str] = {}
        """Stored channels that an earlier version accepted and this one refuses, with the reason. They do not run.

        Such a channel stays in the catalog, with its subscriptions, until it is declared again with another query.
        """

    def load(self) -> None:
        """Rebuild channels and subscriptions from the catalog."""
        with ThreadPoolExecutor(PREPARED_AT_ONCE, "prepare") as pool:
            channels = self._catalog.channels.all()
            preparing = [pool.submit(self.prepare, stored.channel) for stored in channels]
        for stored, future in zip(channels, preparing, strict=True):
            try:
                prepared = future.result()
            except TocsinError as error:
                if error.code is not Code.BAD_SQL:
                    raise
                self.refused[stored.channel.name] = error.message
                continue
            live = self._add(prepared, stored.epoch, stored.execution, dict(stored.positions))
            self._subscriptions.load(live, stored.tried)
            if not live.subscribers.count:  # records that arrived before the first subscription are not NEW to it
                live.positions = {name: self._datasets.get(name).writer.version for name in live.positions}
        self._subscriptions.load_holders()

    def all(self) -> list[LiveChannel]:
        """All channels, sorted by name."""
        return list(self._listed)

    def get(self, name: str) -> LiveChannel:
        live = self._channels.get(name.lower())
        if live is None:
            names = ", ".join(live.name for live in self.all()) or "none yet"
            raise TocsinError(Code.UNKNOWN_CHANNEL, f"there is no channel {name} (there are: {names})")
        return live

    def head(self, live: LiveChannel) -> Cursor:
        """The position after the last committed result of a channel."""
        with self._lock:
            return Cursor(live.epoch, offset_of(live.execution + 1))

    def heads(self) -> tuple[int, dict[ChannelName, Cursor]]:
        """The last sequence, and the head of every channel with all executions up to that sequence."""
        with self._lock:
            heads = {live.name: self.head(live) for live in self._channels.values()}
            return self._announcements.sequence, heads

    # -- definitions -----------------------------------------------------------------------------------------------

    def prepare(self, channel: Channel, planned: Mapping[str, Dataset] | None = None) -> PreparedChannel:
        """Compile a channel, or raise with the reason. `planned` are datasets that do not exist yet, by name."""
        query = parse_channel_query(channel.query, channel.parameters)
        if not isinstance(query, ChannelQuery):
            raise TocsinError(Code.BAD_SQL, f"channel {channel.name}: {query[0]}")
        datasets = {live.name.lower(): live.dataset for live in self._datasets.all()} | dict(planned or {})

        def empty(session: Session, name: str, _is_new: bool) -> Frame:
            return dataset_frame(session, self._context.storage, datasets[name.lower()], [])

        return prepare(self._context.spark, channel, query, datasets, empty)

    def create(self, channel: Channel, prepared: PreparedChannel | None = None) -> PreparedChannel:
        prepared = prepared or self.prepare(channel)
        with self._lock:
            self._forget_refused(channel.name)
            at = {live.name: live.writer.version for live in self._read_as_new(prepared)}
            epoch = self._catalog.next_generation()
            self._catalog.channels.create(channel, epoch, at)
            self._add(prepared, epoch, 0, at)
        return prepared

    def _forget_refused(self, name: str) -> None:
        """Drop a refused channel of this name from the catalog, so that another can take its place."""
        for stored in self._catalog.channels.all() if self.refused else ():
            if stored.channel.name.lower() == name.lower() and self.refused.pop(stored.channel.name, None) is not None:
                self._catalog.channels.drop(stored.channel.name, stored.epoch, self._context.now_s())

    def replace(self, channel: Channel, prepared: PreparedChannel) -> None:
        """Give a channel another query, period or retention. Its parameters and its subscriptions stay.

        The channel gets a new epoch, so a cursor into results of the old definition is reported as a gap. Records that
        arrived since the last execution are NEW to the new definition too.
        """
        live = self.get(channel.name)
        if channel.parameters != live.prepared.channel.parameters:
            raise ValueError(f"channel {channel.name}: subscriptions to other parameters cannot be kept")
        with live.exclusive(), self._lock:
            at = {
                dataset.name: live.positions.get(dataset.name, dataset.writer.version)
                for dataset in self._read_as_new(prepared)
            }
            epoch = self._catalog.next_generation()
            subscriptions = [
                (number, parameters) for number, _, parameters in self._catalog.subscriptions.of_channel(channel.name)
            ]
            self._catalog.channels.replace(channel, live.epoch, epoch, at, self._context.now_s())
            self._add(prepared, epoch, 0, at).subscribers.add(subscriptions)
            self._results.forget_latest(live.name)
            self._discard_base(live)

    def drop(self, name: str) -> None:
        live = self.get(name)
        with live.exclusive(), self._lock:
            numbers = [number for number, _, _ in self._catalog.subscriptions.of_channel(live.name)]
            self._catalog.channels.drop(live.name, live.epoch, self._context.now_s())
            del self._channels[name.lower()]
            self._list()
            self._results.forget_latest(live.name)
            self._subscriptions.forget(live.name, numbers)
            self._discard_base(live)

    def _read_as_new(self, prepared: PreparedChannel) -> list[LiveDataset]:
        return [self._datasets.get(name) for name in prepared.query.new_datasets]

    def _discard_base(self, live: LiveChannel) -> None:
        live.subscribers.release()
        self._catalog.files.discard_paths(live.subscribers.dropped_paths, self._context.now_s())

    def _add(
        self, prepared: PreparedChannel, epoch: int, execution: int, positions: dict[DatasetName, int]
    ) -> LiveChannel:
        subscribers = SubscriptionFrames(prepared.channel, self._context.storage, prepared.radius_parameters)
        live = LiveChannel(prepared, epoch, execution, positions, subscribers)
        self._channels[prepared.channel.name.lower()] = live
        self._list()
        store_columns(self._catalog, live.name, epoch, prepared.arrow)
        return live

    def _list(self) -> None:
        self._listed = tuple(live for _, live in sorted(self._channels.items()))

    # -- subscriptions ---------------------------------------------------------------------------------------------

    def subscribe(
        self, name: str, values: Sequence[Mapping[str, object]], broker: BrokerId, users: Users = None
    ) -> list[GrantedSubscription]:
        """Grant backend subscriptions for sets of parameter values. They take part from the next execution on."""
        live = self.get(name)
        rows = self._subscriptions.check(live, values, users)
        bound = live.prepared.channel.bound
        with self._lock:
            if self._channels.get(name.lower()) is live:
                if live.subscribers.count == 0:
                    self._store_positions(live)
                granted = self._subscriptions.grant(live, rows, broker)
                cursor = self.head(live)
                return [GrantedSubscription(row.id, cursor, row.created, bound) for row in granted]
        return self.subscribe(name, values, broker, users)  # replaced or dropped meanwhile: check again

    def _store_positions(self, live: LiveChannel) -> None:
        """Store the positions of a channel without subscriptions: older records are not NEW to the first one."""
        stored = self._catalog.channels.get(live.name).positions
        passed = {dataset: (stored[dataset], upto) for dataset, upto in live.positions.items()}
        self._catalog.channels.advance(live.name, passed)

    def unsubscribe(self, name: str, ids: Sequence[SubscriptionId], broker: BrokerId) -> int:
        """End `broker`'s hold on these subscriptions and return how many it held."""
        with self._lock:
            return self._subscriptions.release(self.get(name), ids, broker)

    def end_unheld(self) -> int:
        """End the subscriptions that no broker has held for a while; return how many."""
        with self._lock:
            return sum(self._subscriptions.end_unheld(live) for live in self._channels.values())

    def refuse(self, live: LiveChannel, reasons: Mapping[int, str], postponed: Sequence[int] = ()) -> None:
        """End subscriptions by number, each with the reason why the channel's query fails for it.

        `postponed` are ended without a reason and may be requested again.
        """
        with self._lock:
            self._subscriptions.refuse(live, reasons, postponed)
        if postponed:
            live.notices.append(f"{len(postponed)} subscriptions are ended, because the query fails for some of them")
        for number, reason in reasons.items():
            live.notices.append(f"subscription {number} is ended, because the query fails with its values: {reason}")

    # -- executions ------------------------------------------------------------------------------------------------

    def begin_execution(self, live: LiveChannel) -> ExecutionStart | None:
        """Decide which records an execution that starts now covers; None if it has nothing to do.

        The caller is inside `live.exclusive()`.
        """
        with self._lock:
            if self._channels.get(live.name.lower()) is not live:
                return None  # dropped or replaced while this execution waited
            if live.uncertain:
                self._read_progress(live)
            # A mark is taken before the interval: see `DatasetWriter.wait_stored`.
            marks = {name: self._datasets.get(name).writer.mark() for name in live.positions}
            intervals = {
                name: (after, _newest_version(live, self._datasets.get(name), after))
                for name, after in live.positions.items()
            }
            if live.subscribers.count == 0:
                live.positions = {dataset: upto for dataset, (_, upto) in intervals.items()}
                return None
            if intervals and all(after == upto for after, upto in intervals.values()):
                return None
            return ExecutionStart(intervals, marks, self._subscriptions.newest)

    def begin_replay(self, live: LiveChannel) -> ExecutionStart:
        """Begin an execution over dead letters, which moves the channel past no record.

        The caller is inside `live.exclusive()`.
        """
        with self._lock:
            if self._channels.get(live.name.lower()) is not live or not live.subscribers.count:
                message = f"channel {live.name} has no subscription that would get the results"
                raise TocsinError(Code.UNKNOWN_SUBSCRIPTION, message)
            if live.uncertain:
                self._read_progress(live)
            intervals = {name: (at, at) for name, at in live.positions.items()}
            return ExecutionStart(intervals, {}, self._subscriptions.newest)

    def commit_execution(
        self,
        live: LiveChannel,
        intervals: Intervals,
        written: WrittenResults,
        write: Write,
        outcome: ExecutionOutcome,
        started_s: float,
        finished_s: float,
    ) -> StoredExecution | None:
        """Commit an execution and announce it. Returns None if it had no results."""
        write.check(written.files)
        with self._lock:
            new = _new_execution(live, intervals, written, write, outcome.tried, started_s, finished_s)
            live.uncertain = True
            committed = self._catalog.executions.commit(
                new.execution, new.last, written.files, self._context.retention_s(), write.id, outcome
            )
            write.committed = True
            self._note_commit(live, new, written)
            if committed is not None:
                self._subscriptions.count_results(written.summary, finished_s)
                self._announcements.publish([(committed, written.summary)])
            return committed

    def commit_together(
        self, finished: Sequence[FinishedExecution], started_s: float, finished_s: float
    ) -> list[StoredExecution | None]:
        """Commit executions of different channels in one transaction and announce them: see `commit_execution`.

        If this raises, the next execution of each channel starts from what the catalog has.
        """
        for done in finished:
            done.write.check(done.written.files)
        with self._lock:
            new = [
                _new_execution(done.live, done.intervals, done.written, done.write, done.tried, started_s, finished_s)
                for done in finished
            ]
            for done in finished:
                done.live.uncertain = True
            try:
                committed = self._catalog.executions.commit_together(new, self._context.retention_s())
            except Exception:
                # They may be committed. Find out before another execution is announced: brokers would miss these.
                with suppress(Exception):  # no answer: the next execution asks again
                    for done in finished:
                        self._read_progress(done.live)
                raise
            for done, one in zip(finished, new, strict=True):
                done.write.committed = True
                self._note_commit(done.live, one, done.written)
            announced = [
                (execution, done.written.summary)
                for execution, done in zip(committed, finished, strict=True)
                if execution is not None
            ]
            if announced:
                announced.sort(key=lambda execution: execution[0].sequence)
                # A subscription belongs to one channel, so its number is in one summary.
                self._subscriptions.count_results(pa.concat_tables([summary for _, summary in announced]), finished_s)
                self._announcements.publish(announced)
            return committed

    def _note_commit(self, live: LiveChannel, new: NewExecution, written: WrittenResults) -> None:
        """Move a channel past an execution that is committed. The caller holds the lock."""
        live.uncertain = False
        live.tried = new.tried
        live.positions = {dataset: upto for dataset, (_, upto) in new.execution.intervals.items()}
        if not new.execution.results:
            live.empty += 1
            return
        live.execution = new.last
        files = {file.path: written.short_cuts.get(file.path) for file in written.files}
        self._results.remember(live.name, live.epoch, new.execution.execution, files)

    def _read_progress(self, live: LiveChannel) -> None:
        """Read from the catalog whether the last execution was committed."""
        stored = self._catalog.channels.get(live.name)
        if stored.execution > live.execution:
            self._results.forget_latest(live.name)
            self._announcements.read_catalog_again()
        live.positions, live.execution = dict(stored.positions), stored.execution
        live.uncertain = False


def _new_execution(
    live: LiveChannel,
    intervals: Intervals,
    written: WrittenResults,
    write: Write,
    tried: int,
    started_s: float,
    finished_s: float,
) -> NewExecution:
    last = max((file.last for file in written.files), default=live.execution)
    size_bytes = int(written.summary["bytes"].to_numpy().sum())
    execution = StoredExecution(
        0, live.name, live.epoch, live.execution + 1, intervals, written.results, size_bytes, started_s, finished_s
    )
    return NewExecution(execution, last, written.files, write.id, tried)


def _newest_version(live: LiveChannel, dataset: LiveDataset, after: int) -> int:
    """The version up to which an execution reads: the last committed one, or a later one that it may match ahead."""
    writer = dataset.writer
    ahead = writer.visible
    may_match = live.matches_ahead and live.subscribers.count > 0 and dataset.dataset.kind is DatasetKind.STREAM
    return ahead if may_match and writer.has_recent(after, ahead) else writer.version
