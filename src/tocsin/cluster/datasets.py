"""The datasets of a data cluster, the feeds that fill them, and the queries that move records in [BAD §3.1].

This module has no thread of its own. Structured Streaming has threads, and they report here when a batch is stored.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from tocsin.cluster.catalog import FeedProgress, dataset_owner
from tocsin.cluster.feed.gateway import FeedGateway
from tocsin.cluster.feed.shared_gateway import Gateway, SharedGateway, new_seed
from tocsin.cluster.feed_folders import FeedFolders
from tocsin.cluster.live import ArrivalNotifier, EngineContext, LiveChannel, LiveDataset, LiveFeed
from tocsin.cluster.sources import Sources
from tocsin.cluster.spark.dataset_writer import DatasetWriter
from tocsin.cluster.spark.feed_checkpoint import FeedCheckpoint, progress_of_old_checkpoint
from tocsin.cluster.spark.frames import Frame
from tocsin.cluster.spark.gateway_ingestion import start_gateway
from tocsin.cluster.spark.ingestion import FailedStart, columns_of, open_feed, read_static, start_feed
from tocsin.model.entities import Dataset, DatasetKind, Feed
from tocsin.model.ids import ChannelName
from tocsin.model.schema import Schema
from tocsin.wire.errors import Code, TocsinError


class Datasets:
    """Thread-safe."""

    def __init__(
        self,
        context: EngineContext,
        channels: Callable[[], Iterable[LiveChannel]],
        arrived: Callable[[ChannelName], None] | None,
    ) -> None:
        """`channels` lists the channels that may read these datasets. For `arrived` see `DataCluster`."""
        self._context = context
        self._catalog = context.catalog
        # A streaming query of a leader that lost its lease may still write into its own folder.
        self._scratch_folder = context.settings.state_folder() / "scratch" / str(context.lease.epoch)
        self._folders = FeedFolders(context.catalog, context.settings.state_folder(), context.lease)
        settings = context.settings
        self.sources = Sources(settings.files, settings.feed_formats, settings.private_folders())
        self._channels = channels
        self.arrivals = ArrivalNotifier(channels, arrived)
        self._lock = threading.RLock()
        """Guards the two maps and the catalog.

        Not held while a query stops, because a stopping query waits for its batch.
        """
        self._datasets: dict[str, LiveDataset] = {}
        self._feeds: dict[str, LiveFeed] = {}

    def load(self) -> None:
        """Rebuild datasets and feeds from the catalog."""
        self._delete_old_scratch()
        for stored in self._catalog.datasets.all():
            self._add(stored.dataset, stored.generation, stored.version, stored.position)
        for feed in self._catalog.feeds.all():
            try:
                self._start_feed(feed.feed, feed.generation)
            except TocsinError as error:
                # The feed's rules may have changed since it was declared, or its source may be gone. It must not keep
                # the data cluster from starting: `restart_feed` retries it, and its failure is shown.
                self._feeds[feed.feed.name.lower()] = LiveFeed(feed.feed, feed.generation, FailedStart(error.message))

    def start_backlogs(self) -> None:
        """Start ingestion of every dataset whose gateway holds accepted records."""
        for live in self._datasets.values():
            if live.gateway is not None and live.gateway.backlog_bytes:
                self.start_ingestion(live.name)

    def with_records_of_other_gateways(self) -> list[str]:
        """The idle datasets with records in their shared logs: gateways of other processes accepted them."""
        idle = [live for live in self._datasets.values() if live.query is None]
        if not any(isinstance(live.gateway, SharedGateway) for live in idle):
            return []
        waiting = self._catalog.logs.backlogs()
        return [live.name for live in idle if live.name in waiting]

    def close(self) -> None:
        """Stop all queries. Acknowledged records stay in the feed logs for the next start."""
        for feed in self._feeds.values():
            feed.query.stop()
        for live in self._datasets.values():
            live.stop_query(closing=True)
            live.writer.close()
            if live.gateway is not None:
                live.gateway.close()

    def all(self) -> list[LiveDataset]:
        """All datasets, sorted by name."""
        return [live for _, live in sorted(self._datasets.items())]

    def get(self, name: str) -> LiveDataset:
        live = self._datasets.get(name.lower())
        if live is None:
            names = ", ".join(live.name for live in self.all()) or "none yet"
            raise TocsinError(Code.UNKNOWN_DATASET, f"there is no dataset {name} (there are: {names})")
        return live

    def gateway(self, name: str) -> Gateway:
        """The gateway that accepts records for a dataset. The caller then calls `start_ingestion`."""
        live = self.get(name)
        if live.gateway is None:
            raise TocsinError(
                Code.NOT_A_FEED_TARGET, f"{live.name} is STATIC: it is loaded from a file and takes no records"
            )
        return live.gateway

    def start_ingestion(self, name: str) -> None:
        """Start moving accepted records from the gateway into the dataset. An idle dataset runs no query."""
        live = self.get(name)
        scratch = self._scratch_folder / f"gateway-{live.name}-{live.generation}"
        live.start_query(lambda gateway: start_gateway(self._context.spark, live.writer, gateway, scratch))

    def restart_ingestion(self, name: str) -> None:
        """Restart a query that stopped by itself, from the position that the catalog has."""
        self.get(name).stop_query()
        self.start_ingestion(name)

    def catch_up(self, name: str) -> None:
        """Return when every record acknowledged before the call is in the dataset."""
        self.start_ingestion(name)
        live = self.get(name)
        if isinstance(live.gateway, SharedGateway):
            live.gateway.look()  # records of other gateways too
        if live.query is not None:
            live.query.catch_up()

    def static_columns(self, dataset: Dataset, path: str, format: str) -> Schema:
        """The columns of a STATIC dataset: those declared, or those of its file."""
        return columns_of(self._static_frame(dataset, path, format))

    def _static_frame(self, dataset: Dataset, path: str, format: str) -> Frame:
        return read_static(self._context.spark, self.sources.file(path), format, dataset.schema)

    def create(self, dataset: Dataset, path: str | None = None, format: str = "csv") -> None:
        """Create a dataset. `path` is the file of a STATIC dataset."""
        if path is not None:
            dataset = replace(dataset, schema=self.static_columns(dataset, path, format))
        with self._lock:
            generation = self._catalog.next_generation()
            shares_log = dataset.kind is not DatasetKind.STATIC and self._context.settings.shares_logs()
            self._catalog.datasets.create(dataset, generation, new_seed() if shares_log else None)
            self._add(dataset, generation, 0, 0)
        if path is not None:
            try:
                self.load_static(dataset, path, format)
            except BaseException:
                self.drop(dataset.name)  # else applying the file again would keep an empty dataset
                raise

    def load_static(self, dataset: Dataset, path: str, format: str) -> None:
        """Replace the content of a STATIC dataset by that of its file."""
        dataset = replace(dataset, schema=self.static_columns(dataset, path, format))
        live = self.get(dataset.name)
        content = self._static_frame(dataset, path, format)
        with self._context.writes.begin(dataset_owner(live.name)) as write:
            files = live.writer.replace_all(content, dataset.schema, write)
            write.check(files)
            # The order matters: a reader that sees the new columns and the new version finds their files.
            version, now_s = live.writer.version + 1, self._context.now_s()
            self._catalog.datasets.replace_static(dataset, version, files, now_s, write.id)
            write.committed = True
        live.dataset = live.writer.dataset = dataset
        live.writer.version += 1

    def change_owner(self, name: str, owned_by: str | None) -> None:
        """Let each subscriber write the record with its name in this column, or with None, no subscriber."""
        live = self.get(name)
        dataset = replace(live.dataset, owned_by=owned_by)
        with self._lock:
            self._catalog.datasets.redefine(dataset)
            live.dataset = live.writer.dataset = dataset

    def drop(self, name: str) -> None:
        live = self.get(name)
        users: list[str] = [channel.name for channel in self._channels() if name.lower() in channel.datasets]
        users += [feed.name for feed in self._feeds.values() if feed.feed.dataset.lower() == name.lower()]
        if users:
            raise TocsinError(Code.IN_USE, f"{live.name} is used by {', '.join(users)}; drop those first")
        live.stop_query(dropping=True)
        try:
            live.writer.begin()  # waits until the last batch is stored or has failed
            # Drop it in the catalog before deleting files: a data cluster that dies in between must be able to start.
            self._catalog.datasets.drop(live.name, self._context.now_s())
        except BaseException:
            live.keep()
            raise
        with self._lock:
            del self._datasets[name.lower()]
        live.writer.close()
        if live.gateway is not None:
            live.gateway.close()
            self._folders.delete(live.name, live.generation)

    def _add(self, dataset: Dataset, generation: int, version: int, position: int) -> None:
        def committed(_version: int, position: int | None) -> None:
            if position is not None and gateway is not None:
                gateway.ingested(position)
            self.arrivals.notify(dataset.name, ahead=False)

        gateway = None
        if dataset.kind is not DatasetKind.STATIC:
            gateway = self._open_gateway(dataset, generation)
            gateway.ingested(position)
        writer = DatasetWriter(
            dataset,
            self._catalog,
            self._context.storage,
            self._context.writes,
            version,
            position,
            retention_s=self._context.retention_s,
            backlog_bytes=lambda: gateway.backlog_bytes if gateway is not None else 0,
            committed=committed,
            arriving=lambda: self.arrivals.notify(dataset.name, ahead=True),
            wait_matched=lambda version: self.arrivals.wait_matched(dataset.name, version),
        )
        writer.has_feeds = self._catalog.has_fact(_fed_fact(dataset.name, generation))
        self._datasets[dataset.name.lower()] = LiveDataset(dataset, generation, writer, gateway)

    def _open_gateway(self, dataset: Dataset, generation: int) -> Gateway:
        limits, now_s = self._context.settings.limits, self._context.retention_s
        shared = self._catalog.logs.state(dataset.name, generation)
        if shared is None:
            return FeedGateway(dataset, self._folders.open(dataset.name, generation), limits, now_s)
        return SharedGateway(dataset, generation, self._catalog, self._context.storage, limits, now_s, shared)

    def _delete_old_scratch(self) -> None:
        folder = self._scratch_folder.parent
        for path in folder.iterdir() if folder.exists() else ():
            if path != self._scratch_folder:
                shutil.rmtree(path, ignore_errors=True)

    # -- feeds -----------------------------------------------------------------------------------------------------

    def feeds(self) -> list[LiveFeed]:
        """All feeds, sorted by name."""
        return [live for _, live in sorted(self._feeds.items())]

    def create_feed(self, feed: Feed) -> None:
        live = self.get(feed.dataset)
        if live.gateway is None:
            raise TocsinError(Code.NOT_A_FEED_TARGET, f"{feed.dataset} is STATIC: no feed can fill it")
        with self._lock:
            generation = self._catalog.next_generation()
            # The fact stays after the feed is dropped: the gateway does not know the keys of the feed's records.
            self._catalog.set_fact(_fed_fact(live.name, live.generation), "yes")
            self._catalog.feeds.create(feed, generation)
            try:
                self._start_feed(feed, generation)
            except BaseException:
                self._catalog.feeds.drop(feed.name)
                raise

    def check_feed(self, feed: Feed, dataset: Dataset) -> None:
        """Raise if Spark cannot start this feed. Reads nothing."""
        open_feed(self._context.spark, dataset, self.sources.feed(feed))

    def restart_feed(self, name: str) -> None:
        """Restart a feed whose query stopped by itself, from the offsets that the catalog has."""
        live = self._feeds.get(name.lower())
        if live is None or live.query.failure() is None:
            return
        live.query.stop()
        with self._lock:
            if self._feeds.get(name.lower()) is live:
                self._start_feed(live.feed, live.generation)

    def drop_feed(self, name: str) -> None:
        with self._lock:
            live = self._feeds.pop(name.lower(), None)
        if live is None:
            raise TocsinError(Code.UNKNOWN_FEED, f"there is no feed {name}")
        live.query.stop()
        self._catalog.feeds.drop(live.name)
        shutil.rmtree(self._scratch(live.feed, live.generation), ignore_errors=True)

    def _start_feed(self, feed: Feed, generation: int) -> None:
        writer = self.get(feed.dataset).writer
        writer.has_feeds = True
        checkpoint = FeedCheckpoint.rebuild(self._scratch(feed, generation), self._progress(feed, generation))
        self._feeds[feed.name.lower()] = LiveFeed(
            feed, generation, start_feed(self._context.spark, writer, self.sources.feed(feed), checkpoint)
        )

    def _progress(self, feed: Feed, generation: int) -> FeedProgress:
        progress = self._catalog.feeds.progress(feed.name)
        if progress.batch >= 0 and not progress.added:  # the catalog is from before it had the offsets of sources
            folder = f"checkpoints/feed-{feed.name}-{generation}"
            progress = progress_of_old_checkpoint(self._context.storage, folder, feed.name, progress.batch)
            self._catalog.feeds.store(progress)
        return progress

    def _scratch(self, feed: Feed, generation: int) -> Path:
        return self._scratch_folder / f"feed-{feed.name}-{generation}"


def _fed_fact(dataset: str, generation: int) -> str:
    """The catalog's name for the fact that a feed has filled this dataset, besides the gateway."""
    return f"fed {dataset} {generation}"
