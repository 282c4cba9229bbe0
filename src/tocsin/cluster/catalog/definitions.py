"""The catalog's datasets, feeds and channels: their definitions and their progress.

A dataset has a version and a position in the feed log. A channel has a position in each dataset that it reads as NEW.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tocsin.cluster.catalog.executions import forget_executions, move_positions
from tocsin.cluster.catalog.files import dataset_owner, discard_files, insert_files, results_owner
from tocsin.cluster.catalog.logs import create_log, drop_log
from tocsin.cluster.catalog.tables import (
    FeedProgress,
    NewFile,
    StoredChannel,
    StoredDataset,
    StoredFeed,
    WriteId,
    channels,
    datasets,
    dead_letters,
    executions,
    feed_files,
    feeds,
    files,
    holders,
    positions,
    refusals,
    subscriptions,
    to_json,
)
from tocsin.cluster.catalog.trials import forget_trials
from tocsin.cluster.catalog.writes import finish_write
from tocsin.database.database import Database, insert_many
from tocsin.model.entities import Channel, Dataset, Feed
from tocsin.model.ids import ChannelName, DatasetName, FeedName
from tocsin.wire.errors import Code, TocsinError


class DatasetTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[StoredDataset]:
        return [
            StoredDataset(msgspec.json.decode(row.definition, type=Dataset), row.generation, row.version, row.position)
            for row in self._database.rows(sa.select(datasets).order_by(datasets.c.name))
        ]

    def create(self, dataset: Dataset, generation: int, log_seed: int | None = None) -> None:
        """`log_seed` makes its log shared: see `LogState`."""
        row = {"name": dataset.name, "definition": to_json(dataset), "generation": generation}
        with self._database.write() as connection:
            connection.execute(sa.insert(datasets).values(**row, version=0, position=0))
            if log_seed is not None:
                create_log(connection, generation, log_seed)

    def redefine(self, dataset: Dataset) -> None:
        """Store another definition of a dataset, for the same records."""
        update = sa.update(datasets).where(datasets.c.name == dataset.name)
        self._database.execute(update.values(definition=to_json(dataset)))

    def drop(self, name: DatasetName, at_s: float) -> None:
        with self._database.write() as connection:
            log = connection.scalar(sa.select(datasets.c.generation).where(datasets.c.name == name))
            connection.execute(sa.delete(datasets).where(datasets.c.name == name))
            discard_files(connection, files.c.owner == dataset_owner(name), at_s)
            if log is not None:
                drop_log(connection, log, at_s)

    def replace_static(
        self, dataset: Dataset, version: int, new_files: Sequence[NewFile], at_s: float, write: WriteId | None = None
    ) -> None:
        """Replace the whole content of a STATIC dataset."""
        with self._database.write() as connection:
            connection.execute(
                sa.update(datasets)
                .where(datasets.c.name == dataset.name)
                .values(definition=to_json(dataset), version=version)
            )
            finish_write(connection, write)
            owner = dataset_owner(dataset.name)
            discard_files(connection, files.c.owner == owner, at_s)
            insert_files(connection, owner, new_files, at_s)

    def progress(self, dataset: DatasetName) -> tuple[int, int]:
        """(last committed version, committed position in the feed log) of a dataset."""
        [row] = self._database.rows(sa.select(datasets).where(datasets.c.name == dataset))
        return row.version, row.position

    def commit_records(
        self,
        dataset: DatasetName,
        version: int,
        new_files: Sequence[NewFile],
        at_s: float,
        *,
        position: int | None = None,
        progress: FeedProgress | None = None,
        write: WriteId | None = None,
    ) -> None:
        """Add one micro-batch to its dataset, together with its position in the feed log or the progress of its feed.

        `write` is the intent under which the files were written.
        """
        changed: dict[str, int] = {} if position is None else {"position": position}
        try:
            with self._database.write() as connection:
                updated = connection.execute(
                    sa.update(datasets)
                    .where(datasets.c.name == dataset, datasets.c.version == version - 1)
                    .values(version=version, **changed)
                )
                if updated.rowcount != 1:
                    raise TocsinError(
                        Code.INTERNAL, f"dataset {dataset} is not at version {version - 1}: it has two writers"
                    )
                finish_write(connection, write)
                if progress is not None:
                    _store_progress(connection, progress)
                insert_files(connection, dataset_owner(dataset), new_files, at_s)
        except DBAPIError:
            # The connection may have broken after the commit. A dataset has one writer, so its version shows if it did.
            if self.progress(dataset)[0] != version:
                raise


class FeedTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[StoredFeed]:
        return [
            StoredFeed(msgspec.json.decode(row.definition, type=Feed), row.generation, row.batch)
            for row in self._database.rows(sa.select(feeds).order_by(feeds.c.name))
        ]

    def create(self, feed: Feed, generation: int) -> None:
        row = {"name": feed.name, "definition": to_json(feed), "generation": generation, "batch": -1}
        self._database.execute(sa.insert(feeds).values(**row))

    def drop(self, name: FeedName) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(feeds).where(feeds.c.name == name))
            connection.execute(sa.delete(feed_files).where(feed_files.c.feed == name))

    def progress(self, name: FeedName) -> FeedProgress:
        """The last micro-batch of a feed, and the files of the checkpoint after it."""
        with self._database.read() as connection:
            [batch] = connection.scalars(sa.select(feeds.c.batch).where(feeds.c.name == name))
            rows = connection.execute(sa.select(feed_files).where(feed_files.c.feed == name))
            return FeedProgress(name, batch, {row.path: zlib.decompress(row.content) for row in rows})

    def store(self, progress: FeedProgress) -> None:
        """Store progress without records: that of a catalog from before progress was stored here."""
        with self._database.write() as connection:
            _store_progress(connection, progress)


class ChannelTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[StoredChannel]:
        with self._database.read() as connection:
            matched: dict[str, dict[DatasetName, int]] = {}
            for row in connection.execute(sa.select(positions)):
                matched.setdefault(row.channel, {})[DatasetName(row.dataset)] = row.version
            return [
                StoredChannel(
                    msgspec.json.decode(row.definition, type=Channel),
                    row.epoch,
                    row.execution,
                    matched.get(row.name, {}),
                    row.tried,
                )
                for row in connection.execute(sa.select(channels).order_by(channels.c.name))
            ]

    def head(self, name: str) -> tuple[ChannelName, int, int] | None:
        """(name, epoch, last execution) of a channel, whatever the case of its letters; None if there is none."""
        query = sa.select(channels.c.name, channels.c.epoch, channels.c.execution)
        rows = self._database.rows(query.where(sa.func.lower(channels.c.name) == name.lower()))
        return (ChannelName(rows[0].name), rows[0].epoch, rows[0].execution) if rows else None

    def get(self, name: ChannelName) -> StoredChannel:
        return next(stored for stored in self.all() if stored.channel.name == name)

    def create(self, channel: Channel, epoch: int, at: Mapping[DatasetName, int]) -> None:
        """`at` is the channel's first position in each dataset: NEW covers the versions above it."""
        with self._database.write() as connection:
            connection.execute(
                sa.insert(channels).values(
                    name=channel.name, epoch=epoch, definition=to_json(channel), execution=0, tried=0
                )
            )
            _insert_positions(connection, channel.name, at)

    def replace(self, channel: Channel, old_epoch: int, epoch: int, at: Mapping[DatasetName, int], at_s: float) -> None:
        """Put another definition in the place of a channel. Its subscriptions stay; its old results are discarded."""
        with self._database.write() as connection:
            name = channel.name
            connection.execute(
                sa.update(channels)
                .where(channels.c.name == name)
                .values(epoch=epoch, definition=to_json(channel), execution=0, tried=0)
            )
            connection.execute(sa.delete(refusals).where(refusals.c.channel == name))
            forget_trials(connection, name)
            connection.execute(sa.delete(positions).where(positions.c.channel == name))
            _insert_positions(connection, name, at)
            forget_executions(connection, executions.c.channel == name)
            discard_files(connection, files.c.owner == results_owner(name, old_epoch), at_s)

    def drop(self, name: ChannelName, epoch: int, at_s: float) -> None:
        with self._database.write() as connection:
            own = sa.select(subscriptions.c.number).where(subscriptions.c.channel == name)
            connection.execute(sa.delete(holders).where(holders.c.number.in_(own)))
            connection.execute(sa.delete(subscriptions).where(subscriptions.c.channel == name))
            connection.execute(sa.delete(positions).where(positions.c.channel == name))
            connection.execute(sa.delete(executions).where(executions.c.channel == name))
            connection.execute(sa.delete(refusals).where(refusals.c.channel == name))
            forget_trials(connection, name)
            connection.execute(sa.delete(dead_letters).where(dead_letters.c.channel == name))
            connection.execute(sa.delete(channels).where(channels.c.name == name))
            discard_files(connection, files.c.owner == results_owner(name, epoch), at_s)

    def advance(self, channel: ChannelName, intervals: Mapping[DatasetName, tuple[int, int]]) -> None:
        """Move a channel past records that arrived while it had no subscription."""
        with self._database.write() as connection:
            move_positions(connection, channel, intervals)


def _store_progress(connection: Connection, progress: FeedProgress) -> None:
    own = feed_files.c.feed == progress.feed
    connection.execute(sa.update(feeds).where(feeds.c.name == progress.feed).values(batch=progress.batch))
    connection.execute(sa.delete(feed_files).where(own, feed_files.c.path.in_([*progress.dropped, *progress.added])))
    insert_many(
        connection,
        feed_files,
        [
            {"feed": progress.feed, "path": path, "content": zlib.compress(content)}
            for path, content in progress.added.items()
        ],
    )


def _insert_positions(connection: Connection, channel: ChannelName, at: Mapping[DatasetName, int]) -> None:
    insert_many(
        connection,
        positions,
        [{"channel": channel, "dataset": dataset, "version": version} for dataset, version in at.items()],
    )
