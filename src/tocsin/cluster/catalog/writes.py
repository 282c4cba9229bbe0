"""The catalog's write intents: jobs that write files and have not committed them yet.

A job stores its intent before it writes its first file. The transaction that commits the files deletes the intent. So
the catalog distinguishes a file that waits for its commit from a leftover, however long the job takes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.cluster.catalog.tables import WriteId, writes
from tocsin.database.database import Database, chunks, insert_many
from tocsin.wire.errors import Code, TocsinError


class WriteTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, owner: str, at_s: float) -> WriteId:
        write = WriteId(uuid.uuid4().hex)
        self._database.execute(sa.insert(writes).values(id=write, owner=owner, since_s=at_s))
        return write

    def begin_many(self, owners: Sequence[str], at_s: float) -> list[WriteId]:
        """Store an intent for each of these owners, in one transaction."""
        ids = [WriteId(uuid.uuid4().hex) for _ in owners]
        with self._database.write() as connection:
            rows = [{"id": write, "owner": owner, "since_s": at_s} for write, owner in zip(ids, owners, strict=True)]
            insert_many(connection, writes, rows)
        return ids

    def end_many(self, ids: Sequence[WriteId]) -> None:
        """Delete the intents of jobs that commit nothing."""
        with self._database.write() as connection:
            for chunk in chunks(ids, 500):
                connection.execute(sa.delete(writes).where(writes.c.id.in_(chunk)))

    def end(self, write: WriteId) -> None:
        """Delete the intent of a job that commits nothing. Its files are leftovers."""
        self._database.execute(sa.delete(writes).where(writes.c.id == write))

    def open(self) -> dict[WriteId, str]:
        """The owner of every open intent."""
        return {WriteId(row.id): row.owner for row in self._database.rows(sa.select(writes))}

    def clear(self) -> list[str]:
        """Delete all intents, which belong to processes that died, and return their owners.

        A job of such a process can no longer commit.
        """
        with self._database.write() as connection:
            owners = list(connection.scalars(sa.select(writes.c.owner)))
            connection.execute(sa.delete(writes))
            return owners


def finish_write(connection: Connection, write: WriteId | None) -> None:
    """Delete the intent in the transaction that commits its files; raise if the intent is gone."""
    if write is not None and connection.execute(sa.delete(writes).where(writes.c.id == write)).rowcount != 1:
        raise TocsinError(Code.INTERNAL, "another process has opened this data root: the files are not committed")


def finish_writes(connection: Connection, ids: Sequence[WriteId]) -> None:
    """Delete several intents: see `finish_write`."""
    deleted = sum(
        connection.execute(sa.delete(writes).where(writes.c.id.in_(chunk))).rowcount for chunk in chunks(ids, 500)
    )
    if deleted != len(ids):
        raise TocsinError(Code.INTERNAL, "another process has opened this data root: the files are not committed")
