"""The catalog's files: which files belong to which owner, and which are garbage.

An owner is a dataset, or the results of a channel in one epoch. A file is a Parquet file under the data root. The
catalog itself stores the bytes of very small ones, in the transaction that makes them visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.cluster.catalog.tables import NewFile, StoredFile, WriteId, contents, files, garbage, log_objects
from tocsin.cluster.catalog.writes import finish_write
from tocsin.database.database import Database, chunks, insert_many
from tocsin.model.ids import ChannelName

_FILE_COLUMNS = [column for column in files.c if column is not files.c.owner]


def dataset_owner(name: str) -> str:
    return f"dataset:{name}"


def results_owner(name: str, epoch: int) -> str:
    return f"results:{name}:{epoch}"


def channels_of(owners: Iterable[str]) -> set[ChannelName]:
    """The channels among these owners."""
    return {ChannelName(owner.split(":")[1]) for owner in owners if owner.startswith("results:")}


class FileTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, owner: str, after: int | None = None, upto: int | None = None) -> list[StoredFile]:
        """The owner's files that may hold rows of the half-open interval (after, upto]."""
        query = sa.select(*_FILE_COLUMNS).where(files.c.owner == owner).order_by(files.c.first, files.c.id)
        if after is not None:
            query = query.where(files.c.last > after)
        if upto is not None:
            query = query.where(files.c.first <= upto)
        return [StoredFile(**row._mapping) for row in self._database.rows(query)]

    def counts(self) -> dict[str, int]:
        """How many files each owner has."""
        query = sa.select(files.c.owner, sa.func.count().label("files")).group_by(files.c.owner)
        return {row.owner: row.files for row in self._database.rows(query)}

    def contents(self, paths: Sequence[str]) -> dict[str, bytes]:
        """The bytes of files that the catalog stores, by path. A file that is deleted is left out."""
        found: dict[str, bytes] = {}
        for chunk in chunks(paths, 500):
            query = sa.select(contents).where(contents.c.path.in_(chunk))
            found.update((row.path, row.content) for row in self._database.rows(query))
        return found

    def replace(
        self,
        owner: str,
        old: Sequence[StoredFile],
        new: Sequence[NewFile],
        at_s: float,
        write: WriteId | None = None,
    ) -> bool:
        """Swap files for their merged form. Return False and change nothing if one of them was dropped meanwhile."""
        with self._database.write() as connection:
            # By owner and path: the database gives an id again once the highest id is free, even to another owner.
            same = (files.c.owner == owner) & files.c.path.in_([file.path for file in old])
            present = connection.scalar(sa.select(sa.func.count()).select_from(files).where(same))
            if present != len(old):
                return False
            finish_write(connection, write)
            discard_files(connection, same, at_s)
            newest_s = max(file.at_s for file in old)
            generation = max(file.generation for file in old) + 1
            insert_files(connection, owner, new, newest_s, generation)
            return True

    def expire(self, owner: str, before_s: float, upto: int, at_s: float) -> int:
        """Drop the files whose newest row is older than `before_s`, and that hold no version above `upto`."""
        with self._database.write() as connection:
            old = (files.c.owner == owner) & (files.c.at_s < before_s) & (files.c.last <= upto)
            return discard_files(connection, old, at_s)

    def discard_paths(self, paths: Iterable[str], at_s: float) -> None:
        """Mark files as garbage that no row of `files` names."""
        with self._database.write() as connection:
            insert_garbage(connection, paths, at_s)

    def garbage(self) -> list[str]:
        """The paths of dropped files that are not deleted yet."""
        return [row.path for row in self._database.rows(sa.select(garbage.c.path))]

    def forget_garbage(self, paths: Sequence[str]) -> None:
        """Forget dropped files that are deleted."""
        with self._database.write() as connection:
            for chunk in chunks(paths, 500):
                connection.execute(sa.delete(garbage).where(garbage.c.path.in_(chunk)))
                connection.execute(sa.delete(contents).where(contents.c.path.in_(chunk)))

    def known_paths(self) -> set[str]:
        """Every path that the catalog names, garbage and the objects of shared logs included."""
        query = sa.select(files.c.path).union(sa.select(garbage.c.path), sa.select(log_objects.c.path))
        return {row.path for row in self._database.rows(query)}


def insert_files(
    connection: Connection, owner: str, new_files: Sequence[NewFile], at_s: float, generation: int = 0
) -> None:
    insert_owned_files(connection, [(owner, file) for file in new_files], at_s, generation)


def insert_owned_files(
    connection: Connection, owned: Sequence[tuple[str, NewFile]], at_s: float, generation: int = 0
) -> None:
    """Insert files of several owners."""
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
                "widest": file.widest,
            }
            for owner, file in owned
        ],
    )
    stored = [{"path": file.path, "content": file.content} for _, file in owned if file.content is not None]
    insert_many(connection, contents, stored)


def discard_files(connection: Connection, condition: sa.ColumnElement[bool], at_s: float) -> int:
    """Make files garbage and return how many. They are deleted later, because readers may still have them open."""
    paths = list(connection.scalars(sa.select(files.c.path).where(condition)))
    connection.execute(sa.delete(files).where(condition))
    insert_garbage(connection, paths, at_s)
    return len(paths)


def insert_garbage(connection: Connection, paths: Iterable[str], at_s: float) -> None:
    insert_many(connection, garbage, [{"path": path, "since_s": at_s} for path in paths], ignore_existing=True)
