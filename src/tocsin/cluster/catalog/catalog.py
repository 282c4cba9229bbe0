"""The catalog: everything the data cluster must not forget, in one transactional database.

Data lies in immutable Parquet files under the root; which files belong to a dataset or to a channel's results is
decided here and only here. A batch of records or an execution becomes visible in the same transaction that moves the
position it was read from, so a process that dies at any point has either done all of it or nothing. Files that no row
names are leftovers of such deaths and are swept away.

SQLite by default, any SQLAlchemy URL otherwise. Driven by `cluster.engine`; knows neither Spark nor clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tocsin.cluster.catalog.subscriptions import SubscriptionTable
from tocsin.cluster.catalog.tables import (
    NewFile,
    StoredChannel,
    StoredDataset,
    StoredExecution,
    StoredFeed,
    StoredFile,
    channels,
    datasets,
    executions,
    facts,
    feeds,
    files,
    garbage,
    holders,
    positions,
    schema,
    subscriptions,
    tokens,
)
from tocsin.database.database import Database, insert_many
from tocsin.model.entities import Channel, Dataset, Feed
from tocsin.model.ids import ChannelName, DatasetName, FeedName
from tocsin.wire.errors import Code, TocsinError

GENERATION = "generation"
"""The fact that holds the last number given to an epoch or a folder."""
_FORGOTTEN = "expired_sequence"


def dataset_owner(name: str) -> str:
    return f"dataset:{name}"


def results_owner(name: str, epoch: int) -> str:
    return f"results:{name}:{epoch}"


class Catalog:
    """Thread-safe. One process at a time: the data root is locked by whoever opens it."""

    def __init__(self, url: str) -> None:
        self._database = Database(url, schema)
        self.subscriptions = SubscriptionTable(self._database)

    def close(self) -> None:
        self._database.close()

    # -- facts and tokens ------------------------------------------------------------------------------------------

    def fact(self, name: str) -> str | None:
        with self._database.read() as connection:
            value: str | None = connection.scalar(sa.select(facts.c.value).where(facts.c.name == name))
            return value

    def set_fact(self, name: str, value: str) -> None:
        with self._database.write() as connection:
            _set_fact(connection, name, value)

    def add_token(self, digest: str, name: str, scopes: Sequence[str], expires_s: float | None) -> None:
        with self._database.write() as connection:
            connection.execute(
                sa.insert(tokens).values(digest=digest, name=name, scopes=" ".join(scopes), expires_s=expires_s)
            )

    def tokens(self) -> list[tuple[str, str, tuple[str, ...], float | None]]:
        with self._database.read() as connection:
            rows = connection.execute(sa.select(tokens.c.digest, tokens.c.name, tokens.c.scopes, tokens.c.expires_s))
            return [(digest, name, tuple(scopes.split()), expires_s) for digest, name, scopes, expires_s in rows]

    def remove_token(self, digest: str) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(tokens).where(tokens.c.digest == digest))

    # -- datasets, channels, feeds ---------------------------------------------------------------------------------

    def datasets(self) -> list[StoredDataset]:
        with self._database.read() as connection:
            rows = connection.execute(sa.select(datasets).order_by(datasets.c.name))
            return [
                StoredDataset(
                    msgspec.json.decode(row.definition, type=Dataset), row.generation, row.version, row.position
                )
                for row in rows
            ]

    def create_dataset(self, dataset: Dataset, generation: int) -> None:
        with self._database.write() as connection:
            connection.execute(
                sa.insert(datasets).values(
                    name=dataset.name, definition=_json(dataset), generation=generation, version=0, position=0
                )
            )

    def replace_static(self, dataset: Dataset, version: int, new_files: Sequence[NewFile], at_s: float) -> None:
        """Loading a STATIC dataset again replaces it as a whole."""
        with self._database.write() as connection:
            connection.execute(
                sa.update(datasets)
                .where(datasets.c.name == dataset.name)
                .values(definition=_json(dataset), version=version)
            )
            owner = dataset_owner(dataset.name)
            _discard(connection, files.c.owner == owner, at_s)
            _insert_files(connection, owner, new_files, at_s)

    def drop_dataset(self, name: DatasetName, at_s: float) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(datasets).where(datasets.c.name == name))
            _discard(connection, files.c.owner == dataset_owner(name), at_s)

    def channels(self) -> list[StoredChannel]:
        with self._database.read() as connection:
            held: dict[str, dict[DatasetName, int]] = {}
            for row in connection.execute(sa.select(positions)):
                held.setdefault(row.channel, {})[DatasetName(row.dataset)] = row.version
            rows = connection.execute(sa.select(channels).order_by(channels.c.name))
            return [
                StoredChannel(
                    msgspec.json.decode(row.definition, type=Channel), row.epoch, row.execution, held.get(row.name, {})
                )
                for row in rows
            ]

    def create_channel(self, channel: Channel, epoch: int, at: Mapping[DatasetName, int]) -> None:
        with self._database.write() as connection:
            connection.execute(
                sa.insert(channels).values(name=channel.name, epoch=epoch, definition=_json(channel), execution=0)
            )
            insert_many(
                connection,
                positions,
                [{"channel": channel.name, "dataset": name, "version": version} for name, version in at.items()],
            )

    def replace_channel(
        self, channel: Channel, old_epoch: int, epoch: int, at: Mapping[DatasetName, int], at_s: float
    ) -> None:
        """Another definition in the same place: its subscriptions stay, its results and positions are the old one's."""
        with self._database.write() as connection:
            name = channel.name
            connection.execute(
                sa.update(channels)
                .where(channels.c.name == name)
                .values(epoch=epoch, definition=_json(channel), execution=0)
            )
            connection.execute(sa.delete(positions).where(positions.c.channel == name))
            insert_many(
                connection,
                positions,
                [{"channel": name, "dataset": dataset, "version": version} for dataset, version in at.items()],
            )
            _forget_executions(connection, executions.c.channel == name)
            _discard(connection, files.c.owner == results_owner(name, old_epoch), at_s)

    def drop_channel(self, name: ChannelName, epoch: int, at_s: float) -> None:
        with self._database.write() as connection:
            own = sa.select(subscriptions.c.number).where(subscriptions.c.channel == name)
            connection.execute(sa.delete(holders).where(holders.c.number.in_(own)))
            connection.execute(sa.delete(subscriptions).where(subscriptions.c.channel == name))
            connection.execute(sa.delete(positions).where(positions.c.channel == name))
            connection.execute(sa.delete(executions).where(executions.c.channel == name))
            connection.execute(sa.delete(channels).where(channels.c.name == name))
            _discard(connection, files.c.owner == results_owner(name, epoch), at_s)

    def feeds(self) -> list[StoredFeed]:
        with self._database.read() as connection:
            rows = connection.execute(sa.select(feeds).order_by(feeds.c.name))
            return [
                StoredFeed(msgspec.json.decode(row.definition, type=Feed), row.generation, row.batch) for row in rows
            ]

    def create_feed(self, feed: Feed, generation: int) -> None:
        with self._database.write() as connection:
            connection.execute(
                sa.insert(feeds).values(name=feed.name, definition=_json(feed), generation=generation, batch=-1)
            )

    def drop_feed(self, name: FeedName) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(feeds).where(feeds.c.name == name))

    # -- files -----------------------------------------------------------------------------------------------------

    def files(self, owner: str, after: int | None = None, upto: int | None = None) -> list[StoredFile]:
        """An owner's files that may hold something of the half-open interval (after, upto]."""
        query = sa.select(files).where(files.c.owner == owner).order_by(files.c.first, files.c.id)
        if after is not None:
            query = query.where(files.c.last > after)
        if upto is not None:
            query = query.where(files.c.first <= upto)
        with self._database.read() as connection:
            return [_stored_file(row) for row in connection.execute(query)]

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
        """One micro-batch enters its dataset, and where it was read from is remembered with it."""
        try:
            self._commit_records(dataset, version, new_files, at_s, position, feed, batch)
        except DBAPIError:
            # The connection may have broken after the commit. Nobody else adds to this dataset: where it stands tells.
            if self.stands(dataset)[0] != version:
                raise

    def stands(self, dataset: DatasetName) -> tuple[int, int]:
        """(version, position in the feed log) of a dataset."""
        with self._database.read() as connection:
            row = connection.execute(
                sa.select(datasets.c.version, datasets.c.position).where(datasets.c.name == dataset)
            ).one()
            return row.version, row.position

    def _commit_records(
        self,
        dataset: DatasetName,
        version: int,
        new_files: Sequence[NewFile],
        at_s: float,
        position: int | None,
        feed: FeedName | None,
        batch: int | None,
    ) -> None:
        changed: dict[str, int] = {} if position is None else {"position": position}
        with self._database.write() as connection:
            updated = connection.execute(
                sa.update(datasets)
                .where(datasets.c.name == dataset, datasets.c.version == version - 1)
                .values(version=version, **changed)
            )
            if updated.rowcount != 1:
                raise TocsinError(
                    Code.INTERNAL, f"dataset {dataset} is not at version {version - 1}: two writers are at work on it"
                )
            if feed is not None:
                connection.execute(sa.update(feeds).where(feeds.c.name == feed).values(batch=batch))
            _insert_files(connection, dataset_owner(dataset), new_files, at_s)

    def commit_execution(
        self,
        channel: ChannelName,
        epoch: int,
        execution: int,
        last: int,
        intervals: Mapping[DatasetName, tuple[int, int]],
        new_files: Sequence[NewFile],
        *,
        results: int,
        size_bytes: int,
        started_s: float,
        finished_s: float,
    ) -> int | None:
        """Move the channel past its intervals and, if there were results, make them visible; returns the sequence.

        One with more results for a subscription than a number has room for takes the numbers up to `last` as well.
        """
        row = {
            "channel": channel, "epoch": epoch, "execution": execution, "intervals": _json(intervals),
            "results": results, "bytes": size_bytes, "started_s": started_s, "finished_s": finished_s,
        }  # fmt: skip
        try:
            with self._database.write() as connection:
                _advance(connection, channel, intervals)
                if not results:
                    return None
                connection.execute(sa.update(channels).where(channels.c.name == channel).values(execution=last))
                _insert_files(connection, results_owner(channel, epoch), new_files, finished_s)
                primary_key = connection.execute(sa.insert(executions).values(**row)).inserted_primary_key
                assert primary_key is not None
                return int(primary_key[0])
        except DBAPIError:
            # As above: executions of a channel follow each other.
            sequence = self._sequence_of(channel, epoch, execution) if results else None
            if sequence is None and (results or not self._stands_at(channel, intervals)):
                raise
            return sequence

    def _stands_at(self, channel: ChannelName, intervals: Mapping[DatasetName, tuple[int, int]]) -> bool:
        """Whether the channel has moved past these intervals; never true of intervals without records."""
        stored = next((one for one in self.channels() if one.channel.name == channel), None)
        moved = [(dataset, upto) for dataset, (after, upto) in intervals.items() if upto > after]
        return stored is not None and bool(moved) and all(stored.positions[one] == upto for one, upto in moved)

    def _sequence_of(self, channel: ChannelName, epoch: int, execution: int) -> int | None:
        one = (executions.c.channel == channel) & (executions.c.epoch == epoch) & (executions.c.execution == execution)
        with self._database.read() as connection:
            return connection.scalar(sa.select(executions.c.sequence).where(one))

    def advance(self, channel: ChannelName, intervals: Mapping[DatasetName, tuple[int, int]]) -> None:
        """Move a channel past records nobody was subscribed for."""
        with self._database.write() as connection:
            _advance(connection, channel, intervals)

    def replace_files(self, owner: str, old: Sequence[StoredFile], new: Sequence[NewFile], at_s: float) -> bool:
        """Swap files for their compacted form, unless one of them was dropped meanwhile."""
        with self._database.write() as connection:
            # By owner and path: a number is given again once the highest one is free, and to whomever.
            same = (files.c.owner == owner) & files.c.path.in_([file.path for file in old])
            here = connection.scalar(sa.select(sa.func.count()).select_from(files).where(same))
            if here != len(old):
                return False
            _discard(connection, same, at_s)
            newest_s = max(file.at_s for file in old)
            generation = max(file.generation for file in old) + 1
            _insert_files(connection, owner, new, newest_s, generation)
            return True

    def expire_files(self, owner: str, before_s: float, upto: int, at_s: float) -> int:
        """Drop files whose newest row is older than `before_s` and that nobody above `upto` still waits for."""
        with self._database.write() as connection:
            old = (files.c.owner == owner) & (files.c.at_s < before_s) & (files.c.last <= upto)
            return _discard(connection, old, at_s)

    def expire_executions(self, channel: ChannelName, before_s: float) -> None:
        with self._database.write() as connection:
            old = (executions.c.channel == channel) & (executions.c.finished_s < before_s)
            _forget_executions(connection, old)

    def forgotten_sequence(self) -> int:
        """Executions up to here may have been forgotten: who had not heard of them by then never will."""
        return int(self.fact(_FORGOTTEN) or 0)

    def discard_paths(self, paths: Iterable[str], at_s: float) -> None:
        with self._database.write() as connection:
            _insert_garbage(connection, paths, at_s)

    def collect_garbage(self, before_s: float, delete: Callable[[str], None]) -> int:
        """Delete what was dropped before `before_s`, file by file; a crash in between only repeats a deletion."""
        with self._database.read() as connection:
            paths = list(connection.scalars(sa.select(garbage.c.path).where(garbage.c.since_s < before_s)))
        for path in paths:
            delete(path)
        with self._database.write() as connection:
            for start in range(0, len(paths), 500):
                connection.execute(sa.delete(garbage).where(garbage.c.path.in_(paths[start : start + 500])))
        return len(paths)

    def known_paths(self) -> set[str]:
        with self._database.read() as connection:
            return set(connection.scalars(sa.select(files.c.path))) | set(connection.scalars(sa.select(garbage.c.path)))

    # -- executions ------------------------------------------------------------------------------------------------

    def executions(
        self, after_sequence: int = 0, *, channel: ChannelName | None = None, limit: int = 1000, newest: bool = False
    ) -> list[StoredExecution]:
        query = sa.select(executions).where(executions.c.sequence > after_sequence).limit(limit)
        query = query.order_by(executions.c.sequence.desc() if newest else executions.c.sequence)
        if channel is not None:
            query = query.where(executions.c.channel == channel)
        with self._database.read() as connection:
            return [_stored_execution(row) for row in connection.execute(query)]

    def execution_times(self, channel: ChannelName, epoch: int, first: int = 0) -> list[tuple[int, float]]:
        """(execution, when it finished) of those that are kept, from the last one not after `first` on, in order."""
        ours = (executions.c.channel == channel) & (executions.c.epoch == epoch)
        before = sa.select(sa.func.max(executions.c.execution)).where(ours & (executions.c.execution <= first))
        query = sa.select(executions.c.execution, executions.c.finished_s).order_by(executions.c.execution)
        query = query.where(ours & (executions.c.execution >= sa.func.coalesce(before.scalar_subquery(), 0)))
        with self._database.read() as connection:
            return [(row.execution, row.finished_s) for row in connection.execute(query)]

    def last_sequence(self) -> int:
        with self._database.read() as connection:
            kept: int = connection.scalar(sa.select(sa.func.max(executions.c.sequence))) or 0
        return max(kept, self.forgotten_sequence())


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _stored_file(row: Any) -> StoredFile:
    return StoredFile(
        path=row.path,
        rows=row.rows,
        bytes=row.bytes,
        first=row.first,
        last=row.last,
        id=row.id,
        at_s=row.at_s,
        generation=row.generation,
    )


def _stored_execution(row: Any) -> StoredExecution:
    intervals = msgspec.json.decode(row.intervals, type=dict[str, tuple[int, int]])
    return StoredExecution(
        sequence=row.sequence,
        channel=ChannelName(row.channel),
        epoch=row.epoch,
        execution=row.execution,
        intervals={DatasetName(name): interval for name, interval in intervals.items()},
        results=row.results,
        bytes=row.bytes,
        started_s=row.started_s,
        finished_s=row.finished_s,
    )


def _advance(connection: Connection, channel: ChannelName, intervals: Mapping[DatasetName, tuple[int, int]]) -> None:
    for dataset, (after, upto) in intervals.items():
        moved = connection.execute(
            sa.update(positions)
            .where(positions.c.channel == channel, positions.c.dataset == dataset, positions.c.version == after)
            .values(version=upto)
        )
        if moved.rowcount != 1:
            raise TocsinError(
                Code.INTERNAL, f"channel {channel} does not stand at version {after} of {dataset}: it ran twice"
            )


def _insert_files(
    connection: Connection, owner: str, new_files: Sequence[NewFile], at_s: float, generation: int = 0
) -> None:
    insert_many(
        connection,
        files,
        [
            {
                "owner": owner,
                "path": file.path,
                "rows": file.rows,
                "bytes": file.bytes,
                "first": file.first,
                "last": file.last,
                "at_s": at_s,
                "generation": generation,
            }
            for file in new_files
        ],
    )


def _set_fact(connection: Connection, name: str, value: str) -> None:
    connection.execute(sa.delete(facts).where(facts.c.name == name))
    connection.execute(sa.insert(facts).values(name=name, value=value))


def _forget_executions(connection: Connection, condition: sa.ColumnElement[bool]) -> None:
    """And remember that they were there: both or neither."""
    highest: int = connection.scalar(sa.select(sa.func.max(executions.c.sequence)).where(condition)) or 0
    if highest:
        connection.execute(sa.delete(executions).where(condition))
        known = connection.scalar(sa.select(facts.c.value).where(facts.c.name == _FORGOTTEN))
        if highest > int(known or 0):
            _set_fact(connection, _FORGOTTEN, str(highest))


def _discard(connection: Connection, condition: sa.ColumnElement[bool], at_s: float) -> int:
    """Readers may still be inside these files: they become garbage now and are deleted after a while."""
    paths = list(connection.scalars(sa.select(files.c.path).where(condition)))
    connection.execute(sa.delete(files).where(condition))
    _insert_garbage(connection, paths, at_s)
    return len(paths)


def _insert_garbage(connection: Connection, paths: Iterable[str], at_s: float) -> None:
    insert_many(connection, garbage, [{"path": path, "since_s": at_s} for path in paths], ignore_existing=True)
