"""The catalog's dead letters: records that make a channel's query fail.

The execution that passes such a record over stores it here, in the transaction that moves the channel past it. It stays
until an administrator replays or discards it, or until the retention of its dataset has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.cluster.catalog.tables import DeadLetter, StoredDeadLetter, dead_letters
from tocsin.database.database import Database, chunks, insert_many
from tocsin.model.ids import ChannelName, DatasetName


class DeadLetterTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self,
        channel: ChannelName | None = None,
        after: int = 0,
        limit: int = 1_000,
        ids: Sequence[int] | None = None,
    ) -> list[StoredDeadLetter]:
        """At most `limit` dead letters above `after`, by id; with `ids`, only those."""
        query = sa.select(dead_letters).where(dead_letters.c.id > after).order_by(dead_letters.c.id).limit(limit)
        if channel is not None:
            query = query.where(dead_letters.c.channel == channel)
        if ids is not None:
            query = query.where(dead_letters.c.id.in_(ids))
        return [StoredDeadLetter(**row._mapping) for row in self._database.rows(query)]

    def counts(self) -> dict[ChannelName, int]:
        """How many dead letters each channel has. A channel without one is left out."""
        query = sa.select(dead_letters.c.channel, sa.func.count().label("letters")).group_by(dead_letters.c.channel)
        return {ChannelName(row.channel): row.letters for row in self._database.rows(query)}

    def discard(self, channel: ChannelName, ids: Sequence[int] | None = None) -> int:
        """Delete dead letters of a channel, all or those with these ids; return how many."""
        with self._database.write() as connection:
            own = dead_letters.c.channel == channel
            if ids is None:
                return connection.execute(sa.delete(dead_letters).where(own)).rowcount
            return sum(
                connection.execute(sa.delete(dead_letters).where(own, dead_letters.c.id.in_(chunk))).rowcount
                for chunk in chunks(ids, 500)
            )

    def expire(self, dataset: DatasetName, before_s: float) -> None:
        """Delete the dead letters of a dataset that were stored before `before_s`."""
        own = (dead_letters.c.dataset == dataset) & (dead_letters.c.at_s < before_s)
        self._database.execute(sa.delete(dead_letters).where(own))


def insert_letters(connection: Connection, channel: ChannelName, letters: Sequence[DeadLetter], at_s: float) -> None:
    insert_many(connection, dead_letters, [asdict(letter) | {"channel": channel, "at_s": at_s} for letter in letters])


def delete_letters(connection: Connection, ids: Sequence[int]) -> None:
    for chunk in chunks(ids, 500):
        connection.execute(sa.delete(dead_letters).where(dead_letters.c.id.in_(chunk)))
