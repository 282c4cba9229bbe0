"""The data cluster: datasets, feeds, channels, subscriptions and results over one data root [BAD §3.1].

Everything here is called by somebody else: a server, a test, a benchmark. There is no clock loop and no thread of its
own in this module; Structured Streaming has its threads and calls back when a batch is in. `runtime` decides when
channels run, `cluster.upkeep` what is merged and forgotten, `cluster.applying` how an application file is applied.
"""

from __future__ import annotations

import os
import shutil
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from tocsin.cluster.announcements import Announcements
from tocsin.cluster.arrivals import Arrivals
from tocsin.cluster.book import SubscriptionBook
from tocsin.cluster.catalog import GENERATION, Catalog, StoredExecution
from tocsin.cluster.feed.gateway import FeedGateway
from tocsin.cluster.live import LiveChannel, LiveDataset, LiveFeed
from tocsin.cluster.rates import Rates
from tocsin.cluster.reading import Reading, read, upto
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.spark.errors import SPARK_ERRORS
from tocsin.cluster.spark.execution import ExecutionSize, PreparedChannel, execute, failing, prepare
from tocsin.cluster.spark.frames import EMPTY_FOLDER, Frame, dataset_frame
from tocsin.cluster.spark.ingestion import (
    DatasetWriter,
    columns_of,
    open_feed,
    read_static,
    start_feed,
    start_gateway,
)
from tocsin.cluster.spark.session import Session
from tocsin.cluster.spark.subscribers import SubscriptionFrames
from tocsin.cluster.spark.writing import WrittenResults
from tocsin.cluster.sql.channel_query import ChannelQuery, parse_channel_query
from tocsin.cluster.store.lock import lock
from tocsin.cluster.store.results import ResultStore
from tocsin.cluster.store.smalltables import SmallTables
from tocsin.cluster.store.storage import Storage
from tocsin.model.cursor import Cursor, offset_of
from tocsin.model.entities import Channel, Dataset, DatasetKind, Feed
from tocsin.model.ids import BrokerId, ChannelName, DatasetName, SubscriptionId
from tocsin.model.schema import Schema
from tocsin.model.subscription import BadParameter, canonical_values, subscription_id
from tocsin.wire.errors import Code, TocsinError


@dataclass(frozen=True, slots=True)
class Subscribed:
    id: SubscriptionId
    cursor: Cursor
    """Results from here on belong to whoever subscribed now."""
    created: bool
    """False if the data cluster held it already, for this or another broker."""


class DataCluster:
    """Thread-safe. One process has a root open at a time."""

    def __init__(
        self,
        spark: Session,
        settings: ClusterSettings,
        now_s: Callable[[], float],
        arrived: Callable[[ChannelName], None] | None = None,
    ) -> None:
        """`arrived` is told, from any thread, that a continuous or repetitive channel has NEW records waiting, and
        sees to it that a continuous one runs. Without it, channels run when somebody calls `execute`."""
        self.spark = spark
        self.settings = settings
        self.now_s = now_s
        self._arrivals = Arrivals(self.channels, arrived)
        self._state = settings.state_folder()
        self._state.mkdir(parents=True, exist_ok=True)
        self._lock_file = lock(self._state / "lock")
        self.storage = Storage(settings.root)
        self.storage.make_folder(EMPTY_FOLDER)
        self.catalog = Catalog(settings.catalog_url())
        self.guard = threading.RLock()
        """Around the rates, the maps below, the order of commits, and changes of the book that follow the catalog's."""
        self.book = SubscriptionBook()
        self.rates = Rates(settings.rate_window_s)
        self._small_tables = SmallTables(self.storage)
        self.results = ResultStore(self.catalog, self.storage)
        self.announcements = Announcements(self.catalog, self.results, self.book)
        self._datasets: dict[str, LiveDataset] = {}
        self._channels: dict[str, LiveChannel] = {}
        self._feeds: dict[str, LiveFeed] = {}
        self._newest_subscription = 0
        self._closed = False
        self._load()

    def _load(self) -> None:
        for stored in self.catalog.datasets():
            self._add_dataset(stored.dataset, stored.generation, stored.version, stored.position)
        for feed in self.catalog.feeds():
            self._start_feed(feed.feed, feed.generation)
        for channel in self.catalog.channels():
            prepared = self.prepare(channel.channel)
            live = self._add_channel(prepared, channel.epoch, channel.execution, dict(channel.positions))
            subscriptions = list(self.catalog.subscriptions.of_channel(channel.channel.name))
            live.subscribers.add((number, parameters) for number, _, parameters in subscriptions)
            live.tried = subscriptions[-1][0] if subscriptions else 0
            if not subscriptions:  # what came while nobody was subscribed is not new to whoever comes first
                live.positions = {name: self.dataset(name).writer.version for name in live.positions}
            self.book.load(((number, key) for number, key, _ in subscriptions), ())
        self.book.load((), self.catalog.subscriptions.holders())
        for live_dataset in self._datasets.values():
            if live_dataset.gateway is not None and live_dataset.gateway.backlog_bytes:
                self.start_ingestion(live_dataset.dataset.name)

    def close(self) -> None:
        """Stop the queries and let go of the root. What was acknowledged stays in the logs for the next start."""
        if self._closed:
            return
        self._closed = True
        for feed in self._feeds.values():
            feed.query.stop()
        for live in self._datasets.values():
            with live.starting:  # one that is just being started is seen here and stopped
                if live.query is not None:
                    live.query.stop()
            live.writer.close()
            if live.gateway is not None:
                live.gateway.close()
        self.catalog.close()
        os.close(self._lock_file)

    # -- datasets and feeds ----------------------------------------------------------------------------------------

    def datasets(self) -> list[LiveDataset]:
        return [live for _, live in sorted(self._datasets.items())]

    def dataset(self, name: str) -> LiveDataset:
        live = self._datasets.get(name.lower())
        if live is None:
            known = ", ".join(live.dataset.name for live in self.datasets()) or "none yet"
            raise TocsinError(Code.UNKNOWN_DATASET, f"there is no dataset {name} (there are: {known})")
        return live

    def gateway(self, name: str) -> FeedGateway:
        """Where records for a dataset are accepted. Whoever accepts some calls `start_ingestion`."""
        live = self.dataset(name)
        if live.gateway is None:
            raise TocsinError(
                Code.NOT_A_FEED_TARGET, f"{live.dataset.name} is STATIC: it is loaded from a file and takes no records"
            )
        return live.gateway

    def start_ingestion(self, name: str) -> None:
        """Begin to move what the gateway accepted into the dataset; an idle dataset runs no query."""
        live = self.dataset(name)
        with live.starting:
            if live.gateway is not None and live.query is None and not (self._closed or live.dropping):
                scratch = self._state / "scratch" / f"gateway-{live.dataset.name}-{live.generation}"
                live.query = start_gateway(self.spark, live.writer, live.gateway.log_directory, scratch)

    def restart_ingestion(self, name: str) -> None:
        """Start a query anew that stopped by itself; it goes on where the catalog says the dataset stands."""
        live = self.dataset(name)
        with live.starting:
            if live.query is not None:
                live.query.stop()
                live.query = None
        self.start_ingestion(name)

    def catch_up(self, name: str) -> None:
        """Return when every record acknowledged before the call is in the dataset."""
        self.start_ingestion(name)
        query = self.dataset(name).query
        if query is not None:
            query.catch_up()

    def static_columns(self, dataset: Dataset, path: str, format: str) -> Schema:
        """What a STATIC dataset's file holds, as declared or as the file says."""
        return columns_of(read_static(self.spark, path, format, dataset.schema))

    def create_dataset(self, dataset: Dataset, path: str | None = None, format: str = "csv") -> None:
        """`path` is where a STATIC dataset's file lies."""
        if path is not None:
            dataset = replace(dataset, schema=self.static_columns(dataset, path, format))
        with self.guard:
            generation = self._next_generation()
            self.catalog.create_dataset(dataset, generation)
            self._add_dataset(dataset, generation, 0, 0)
        if path is not None:
            try:
                self.load_static(dataset, path, format)
            except BaseException:
                self.drop_dataset(dataset.name)  # an empty one would count as created when the file is applied again
                raise

    def load_static(self, dataset: Dataset, path: str, format: str) -> None:
        """Read the file of a STATIC dataset and put it in the place of what was there."""
        dataset = replace(dataset, schema=self.static_columns(dataset, path, format))
        live = self.dataset(dataset.name)
        content = read_static(self.spark, path, format, dataset.schema)
        files = live.writer.replace_all(content, dataset.schema)
        # In this order: who sees the new columns and the new version finds their files.
        self.catalog.replace_static(dataset, live.writer.version + 1, files, self.now_s())
        live.dataset = live.writer.dataset = dataset
        live.writer.version += 1

    def drop_dataset(self, name: str) -> None:
        live = self.dataset(name)
        users: list[str] = [each.prepared.channel.name for each in self.channels() if each.reads(name)]
        users += [feed.feed.name for feed in self._feeds.values() if feed.feed.dataset.lower() == name.lower()]
        if users:
            raise TocsinError(Code.IN_USE, f"{live.dataset.name} is used by {', '.join(users)}; drop those first")
        with live.starting:  # one that is just being started is seen here and stopped
            live.dropping = True
            if live.query is not None:
                live.query.stop()
                live.query = None
        try:
            live.writer.begin()  # what was being stored is, or is not
            # Before anything is deleted: a data cluster that dies in between must be able to start.
            self.catalog.drop_dataset(live.dataset.name, self.now_s())
        except BaseException:
            live.dropping = False
            raise
        with self.guard:
            del self._datasets[name.lower()]
        live.writer.close()
        if live.gateway is not None:
            live.gateway.close()
            shutil.rmtree(self._feed_folder(live.dataset, live.generation), ignore_errors=True)

    def _add_dataset(self, dataset: Dataset, generation: int, version: int, position: int) -> None:
        def committed(_version: int, upto: int | None) -> None:
            if upto is not None and gateway is not None:
                gateway.ingested(upto)
            self._arrivals.tell(dataset.name, ahead=False)

        gateway = None
        if dataset.kind is not DatasetKind.STATIC:
            folder = self._feed_folder(dataset, generation)
            gateway = FeedGateway(dataset, folder, self.settings.limits, self.now_s)
            gateway.ingested(position)
        writer = DatasetWriter(
            dataset,
            self.catalog,
            self.storage,
            version,
            position,
            now_s=self.now_s,
            backlog_bytes=lambda: gateway.backlog_bytes if gateway is not None else 0,
            committed=committed,
            arriving=lambda: self._arrivals.tell(dataset.name, ahead=True),
            let_match=lambda version: self._arrivals.let_match(dataset.name, version),
        )
        writer.has_feeds = self.catalog.fact(_fed(dataset.name, generation)) is not None
        self._datasets[dataset.name.lower()] = LiveDataset(dataset, generation, writer, gateway)

    def _feed_folder(self, dataset: Dataset, generation: int) -> Path:
        return self._state / "feeds" / f"{dataset.name}-{generation}"

    def feeds(self) -> list[LiveFeed]:
        return [live for _, live in sorted(self._feeds.items())]

    def create_feed(self, feed: Feed) -> None:
        live = self.dataset(feed.dataset)
        if live.gateway is None:
            raise TocsinError(Code.NOT_A_FEED_TARGET, f"{feed.dataset} is STATIC: no feed can fill it")
        with self.guard:
            generation = self._next_generation()
            # Also when the feed is gone again: the gateway does not know the keys that came by it.
            self.catalog.set_fact(_fed(live.dataset.name, live.generation), "yes")
            self.catalog.create_feed(feed, generation)
            try:
                self._start_feed(feed, generation)
            except BaseException:
                self.catalog.drop_feed(feed.name)
                raise

    def check_feed(self, feed: Feed, dataset: Dataset) -> None:
        """Raise if Spark could not start this feed; nothing is read."""
        open_feed(self.spark, dataset, feed)

    def restart_feed(self, name: str) -> None:
        """Start a feed anew whose query stopped by itself; its checkpoint says where it stood."""
        live = self._feeds.get(name.lower())
        if live is None or live.query.failure() is None:
            return
        live.query.stop()  # not under the guard: a batch under way would wait for it
        with self.guard:
            if self._feeds.get(name.lower()) is live:
                self._start_feed(live.feed, live.generation)

    def drop_feed(self, name: str) -> None:
        with self.guard:
            live = self._feeds.pop(name.lower(), None)
        if live is None:
            raise TocsinError(Code.UNKNOWN_FEED, f"there is no feed {name}")
        live.query.stop()
        self.catalog.drop_feed(live.feed.name)

    def _start_feed(self, feed: Feed, generation: int) -> None:
        writer = self.dataset(feed.dataset).writer
        writer.has_feeds = True
        checkpoint = self.storage.uri(f"checkpoints/feed-{feed.name}-{generation}")
        self._feeds[feed.name.lower()] = LiveFeed(feed, generation, start_feed(self.spark, writer, feed, checkpoint))

    def _next_generation(self) -> int:
        """A number never used before in this catalog: epochs and folders are named by it."""
        number = int(self.catalog.fact(GENERATION) or 0) + 1
        self.catalog.set_fact(GENERATION, str(number))
        return number

    # -- channels --------------------------------------------------------------------------------------------------

    def channels(self) -> list[LiveChannel]:
        with self.guard:
            return [live for _, live in sorted(self._channels.items())]

    def heads(self) -> tuple[int, dict[ChannelName, Cursor]]:
        """The last sequence, and where every channel stands with all executions up to it: its next position."""
        with self.guard:
            heads = {
                live.prepared.channel.name: Cursor(live.epoch, offset_of(live.execution + 1))
                for live in self._channels.values()
            }
            return self.announcements.sequence, heads

    def channel(self, name: str) -> LiveChannel:
        live = self._channels.get(name.lower())
        if live is None:
            known = ", ".join(live.prepared.channel.name for live in self.channels()) or "none yet"
            raise TocsinError(Code.UNKNOWN_CHANNEL, f"there is no channel {name} (there are: {known})")
        return live

    def prepare(self, channel: Channel, planned: Mapping[str, Dataset] | None = None) -> PreparedChannel:
        """Compile a channel, or raise with the reason; `planned` are datasets that are about to be created."""
        query = parse_channel_query(channel.query, channel.parameters)
        if not isinstance(query, ChannelQuery):
            raise TocsinError(Code.BAD_SQL, f"channel {channel.name}: {query[0]}")
        known = {name: live.dataset for name, live in self._datasets.items()} | dict(planned or {})

        def empty(session: Session, name: str, _is_new: bool) -> Frame:
            return dataset_frame(session, self.storage, known[name.lower()], [])

        return prepare(self.spark, channel, query, known, empty)

    def create_channel(self, channel: Channel, prepared: PreparedChannel | None = None) -> PreparedChannel:
        prepared = prepared or self.prepare(channel)
        with self.guard:
            at = {
                live.dataset.name: live.writer.version
                for live in (self.dataset(name) for name in prepared.query.new_datasets)
            }
            epoch = self._next_generation()
            self.catalog.create_channel(channel, epoch, at)
            self._add_channel(prepared, epoch, 0, at)
        return prepared

    def drop_channel(self, name: str) -> None:
        live = self.channel(name)
        with live.running, self.guard:
            channel = live.prepared.channel.name
            numbers = [number for number, _, _ in self.catalog.subscriptions.of_channel(channel)]
            self.catalog.drop_channel(channel, live.epoch, self.now_s())
            del self._channels[name.lower()]
            self.book.remove(numbers)
            self.rates.forget(np.array(numbers, np.int64))
            self._discard_base(live)

    def _discard_base(self, live: LiveChannel) -> None:
        live.subscribers.release()
        self.catalog.discard_paths(live.subscribers.dropped_paths, self.now_s())

    def replace_channel(self, channel: Channel, prepared: PreparedChannel) -> None:
        """Another query, period or retention for a channel whose parameters stay: its subscriptions stay as well.

        It starts a new epoch, so a cursor into results of the old definition is told that there is a gap. What a
        dataset brought since the last execution is new to the new definition too.
        """
        live = self.channel(channel.name)
        if channel.parameters != live.prepared.channel.parameters:
            raise ValueError(f"channel {channel.name}: subscriptions to other parameters cannot be kept")
        with live.running, self.guard:
            at = {
                dataset.dataset.name: live.positions.get(dataset.dataset.name, dataset.writer.version)
                for dataset in (self.dataset(name) for name in prepared.query.new_datasets)
            }
            epoch = self._next_generation()
            subscriptions = [
                (number, parameters) for number, _, parameters in self.catalog.subscriptions.of_channel(channel.name)
            ]
            self.catalog.replace_channel(channel, live.epoch, epoch, at, self.now_s())
            self._add_channel(prepared, epoch, 0, at).subscribers.add(subscriptions)
            self._discard_base(live)

    def _add_channel(
        self, prepared: PreparedChannel, epoch: int, execution: int, positions: dict[DatasetName, int]
    ) -> LiveChannel:
        subscribers = SubscriptionFrames(prepared.channel, self.storage, prepared.radius_parameters)
        live = LiveChannel(prepared, epoch, execution, positions, subscribers)
        self._channels[prepared.channel.name.lower()] = live
        return live

    def execute(self, name: str) -> StoredExecution | None:
        """Run a channel once over what is NEW since its last execution; None if there were no results.

        If this process dies inside, the catalog still stands where it stood, and the next execution covers the same
        records and those that came since.
        """
        try:
            return self._execute(self.channel(name))
        finally:
            self._arrivals.executed()

    def _execute(self, live: LiveChannel) -> StoredExecution | None:
        channel = live.prepared.channel.name
        with live.running:
            if self._channels.get(channel.lower()) is not live:
                return None  # dropped or replaced while this execution waited its turn
            if live.uncertain:
                self._ask_where_it_stands(live)
            started_s = self.now_s()
            with self.guard:
                newest = self._newest_subscription
                marks = {name: self.dataset(name).writer.mark() for name in live.positions}
                intervals = {
                    name: (after, upto(live, self.dataset(name), after)) for name, after in live.positions.items()
                }
                if live.subscribers.count == 0:
                    live.positions = {dataset: last for dataset, (_, last) in intervals.items()}
                    return None
            if intervals and all(after == upto for after, upto in intervals.values()):
                return None
            folder = f"results/{channel}-{live.epoch}"
            query = live.prepared.query
            reading = read(query, intervals, self.dataset, self.catalog, self.storage, self._small_tables)
            written = self._run(live, reading, folder)
            if reading.rows:
                live.tried = max(live.tried, newest)
            finished_s = self.now_s()
            live.executions += 1
            live.last_started_s, live.last_duration_s = started_s, finished_s - started_s
            live.last_results = sum(file.rows for file in written.files)
            for dataset, (_, newest) in intervals.items():
                if not self.dataset(dataset).writer.wait_stored(newest, marks[dataset]):
                    raise TocsinError(Code.NOT_READY, f"{channel}: new records of {dataset} could not be stored yet")
            if live.subscribers.dropped_paths:
                self.catalog.discard_paths(live.subscribers.dropped_paths, finished_s)
                live.subscribers.dropped_paths.clear()
            with self.guard:
                last = max((file.last for file in written.files), default=live.execution)
                size_bytes = int(written.summary["bytes"].to_numpy().sum())
                live.uncertain = True
                sequence = self.catalog.commit_execution(
                    channel,
                    live.epoch,
                    live.execution + 1,
                    last,
                    intervals,
                    written.files,
                    results=live.last_results,
                    size_bytes=size_bytes,
                    started_s=started_s,
                    finished_s=finished_s,
                )
                live.uncertain = False
                live.positions = {dataset: last for dataset, (_, last) in intervals.items()}
                if sequence is None:
                    live.empty += 1
                    return None
                execution = StoredExecution(
                    sequence, channel, live.epoch, live.execution + 1, intervals, live.last_results, size_bytes,
                    started_s, finished_s,
                )  # fmt: skip
                live.execution = last
                for path, rows in written.short_cuts.items():
                    self.results.remember(path, rows)
                numbers = written.summary["subscription"].to_numpy()
                held = self.book.known(numbers)  # who left while this ran needs no rate any more
                self.rates.add(numbers[held], written.summary["bytes"].to_numpy()[held], finished_s)
                self.announcements.publish(execution, written.summary)
                return execution

    def _run(self, live: LiveChannel, reading: Reading, folder: str) -> WrittenResults:
        size = ExecutionSize(live.subscribers.count, reading.rows, live.last_results)
        where = (self.storage, folder, live.execution + 1)
        try:
            return execute(live.prepared, live.subscribers, reading.content, *where, size)
        except SPARK_ERRORS:
            numbers = [number for number, _, _ in self.catalog.subscriptions.of_channel(live.prepared.channel.name)]
            tried = bisect_right(numbers, live.tried)
            found = failing(live.prepared, live.subscribers, reading.content, numbers[:tried], numbers[tried:])
            if not found:
                raise
            self._refuse(live, found)
        return execute(live.prepared, live.subscribers, reading.content, *where, size)

    def _refuse(self, live: LiveChannel, found: Mapping[int, str]) -> None:
        """End the subscriptions for which a channel's query fails, so that it runs for the others. Whoever holds one
        is refused when it asks for it again, with the reason."""
        with self.guard:
            for number, reason in found.items():
                live.refused |= dict.fromkeys(self.catalog.subscriptions.remove([number]), reason)
            self._forget_subscriptions(live, list(found))

    def _forget_subscriptions(self, live: LiveChannel, numbers: list[int]) -> None:
        self.book.remove(numbers)
        self.rates.forget(np.array(numbers, np.int64))
        live.subscribers.remove(numbers)

    def _ask_where_it_stands(self, live: LiveChannel) -> None:
        with self.guard:
            name = live.prepared.channel.name
            stored = next(row for row in self.catalog.channels() if row.channel.name == name)
            if stored.execution > live.execution:
                self.announcements.look_again()
            live.positions, live.execution = dict(stored.positions), stored.execution
            live.uncertain = False

    # -- subscriptions ---------------------------------------------------------------------------------------------

    def subscribe(self, name: str, wanted: Sequence[Mapping[str, object]], broker: BrokerId) -> list[Subscribed]:
        """Backend subscriptions for sets of parameter values; they take part from the next execution on."""
        live = self.channel(name)
        channel = live.prepared.channel
        rows: list[tuple[SubscriptionId, str]] = []
        for given in wanted:
            values = canonical_values(channel.parameters, given)
            if isinstance(values, BadParameter):
                raise TocsinError(Code.BAD_PARAMETER, f"channel {channel.name}: {values}")
            identity = subscription_id(channel.name, values)
            if (reason := live.refused.get(identity)) is not None:
                raise TocsinError(Code.BAD_PARAMETER, f"channel {channel.name} fails with these values: {reason}")
            rows.append((identity, msgspec.json.encode(values).decode()))
        with self.guard:
            if self._channels.get(name.lower()) is live:
                return self._subscribe(live, rows, broker)
        return self.subscribe(name, wanted, broker)  # dropped or replaced since: its parameters may be others now

    def _subscribe(
        self, live: LiveChannel, rows: list[tuple[SubscriptionId, str]], broker: BrokerId
    ) -> list[Subscribed]:
        if live.subscribers.count == 0:
            self._settle_positions(live)
        stored = self.catalog.subscriptions.subscribe(live.prepared.channel.name, rows, broker)
        self._newest_subscription = max([self._newest_subscription, *(row.number for row in stored)])
        new = {row.number: row for row in stored if row.created}
        for row in new.values():
            self.book.add(row.number, row.id)
        live.subscribers.add((row.number, row.parameters) for row in new.values())
        self.book.hold(broker, (row.number for row in stored))
        cursor = Cursor(live.epoch, offset_of(live.execution + 1))
        return [Subscribed(row.id, cursor, row.created) for row in stored]

    def _settle_positions(self, live: LiveChannel) -> None:
        """The first subscriber comes: what nobody waited for until now is not new to it."""
        stored = next(row for row in self.catalog.channels() if row.channel.name == live.prepared.channel.name)
        passed = {name: (stored.positions[name], now) for name, now in live.positions.items()}
        self.catalog.advance(live.prepared.channel.name, passed)

    def unsubscribe(self, name: str, unwanted: Sequence[SubscriptionId], broker: BrokerId) -> int:
        """A broker lets go; the last one to do so removes the subscription. Returns how many it held."""
        with self.guard:
            live = self.channel(name)
            released, gone = self.catalog.subscriptions.unsubscribe(live.prepared.channel.name, unwanted, broker)
            self.book.release(broker, released)
            if gone:
                self._forget_subscriptions(live, gone)
            return len(released)


def _fed(dataset: str, generation: int) -> str:
    """The fact that a dataset has had another way in than its gateway."""
    return f"fed {dataset} {generation}"
