"""The catalog's datasets and feeds: definitions, versions, and the position in the feed log."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tocsin.cluster.catalog.files import dataset_owner, discard_files, insert_files
from tocsin.cluster.catalog.tables import (
    NewFile,
    StoredDataset,
    StoredFeed,
    datasets,
    feeds,
    files,
    to_json,
)
from tocsin.database.database import Database
from tocsin.model.entities import Dataset, Feed
from tocsin.model.ids import DatasetName, FeedName
from tocsin.wire.errors import Code, TocsinError


class DatasetTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[StoredDataset]:
        with self._database.read() as connection:
            return [
                StoredDataset(
                    msgspec.json.decode(row.definition, type=Dataset), row.generation, row.version, row.position
                )
                for row in connection.execute(sa.select(datasets).order_by(datasets.c.name))
            ]

    def create(self, dataset: Dataset, generation: int) -> None:
        with self._database.write() as connection:
            connection.execute(
                sa.insert(datasets).values(
                    name=dataset.name, definition=to_json(dataset), generation=generation, version=0, position=0
                )
            )

    def drop(self, name: DatasetName, at_s: float) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(datasets).where(datasets.c.name == name))
            discard_files(connection, files.c.owner == dataset_owner(name), at_s)

    def replace_static(self, dataset: Dataset, version: int, new_files: Sequence[NewFile], at_s: float) -> None:
        """Replace the whole content of a STATIC dataset."""
        with self._database.write() as connection:
            connection.execute(
                sa.update(datasets)
                .where(datasets.c.name == dataset.name)
                .values(definition=to_json(dataset), version=version)
            )
            owner = dataset_owner(dataset.name)
            discard_files(connection, files.c.owner == owner, at_s)
            insert_files(connection, owner, new_files, at_s)

    def progress(self, dataset: DatasetName) -> tuple[int, int]:
        """(last committed version, committed position in the feed log) of a dataset."""
        with self._database.read() as connection:
            row = connection.execute(
                sa.select(datasets.c.version, datasets.c.position).where(datasets.c.name == dataset)
            ).one()
            return row.version, row.position

    def commit_records(
        self,
        dataset: DatasetName,
        version: int,
        new_files: Sequence[NewFile],
        at_s: float,
        *,
        position: int | None = None,
        feed: FeedName | None = None,
        batch: int | None = None,
    ) -> None:
        """Add one micro-batch to its dataset, together with the position or the batch number it was read from."""
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
                if feed is not None:
                    connection.execute(sa.update(feeds).where(feeds.c.name == feed).values(batch=batch))
                insert_files(connection, dataset_owner(dataset), new_files, at_s)
        except DBAPIError:
            # The connection may have broken after the commit. A dataset has one writer, so its version tells.
            if self.progress(dataset)[0] != version:
                raise


class FeedTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[StoredFeed]:
        with self._database.read() as connection:
            return [
                StoredFeed(msgspec.json.decode(row.definition, type=Feed), row.generation, row.batch)
                for row in connection.execute(sa.select(feeds).order_by(feeds.c.name))
            ]

    def create(self, feed: Feed, generation: int) -> None:
        with self._database.write() as connection:
            connection.execute(
                sa.insert(feeds).values(name=feed.name, definition=to_json(feed), generation=generation, batch=-1)
            )

    def drop(self, name: FeedName) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(feeds).where(feeds.c.name == name))
