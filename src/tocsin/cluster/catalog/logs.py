"""The catalog's shared logs: which object has which place in a dataset's log, and the keys and answers of its requests.

A gateway writes a group of requests as one object and then calls `place`. That transaction gives the object its place,
finds repeats by record key, by Idempotency-Key and by the cursor of a recording, and stores keys, answers and cursors.
The row of the log is locked first, so the transactions of all gateways of a dataset follow one another: a reader that
sees the end of the log sees every object before it.

A position is a number of bytes, as in a local feed log. An object covers the positions [first, next).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tocsin.cluster.catalog.files import insert_garbage
from tocsin.cluster.catalog.placing import KeyBlock, Keys, LeftOut, NewObject, Placed, Placing, key_blocks
from tocsin.cluster.catalog.tables import (
    datasets,
    log_alerts,
    log_answers,
    log_cursors,
    log_keys,
    log_objects,
    logs,
)
from tocsin.database.database import Database
from tocsin.model.ids import DatasetName

BLOCKS_AT_ONCE = 200
"""Blocks of keys that a gateway reads at once when it starts."""
_WITH_DATASETS = logs.join(datasets, datasets.c.generation == logs.c.log)


@dataclass(frozen=True, slots=True)
class LogObject:
    first: int
    next: int
    path: str
    left_out: LeftOut


@dataclass(frozen=True, slots=True)
class LogState:
    tail: int
    ingested: int
    seed: int
    """Of the digests of keys. It never leaves gateways and catalog, so that no publisher can prepare equal digests."""


class LogTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def state(self, dataset: DatasetName, log: int) -> LogState | None:
        """None if the dataset has no shared log."""
        query = (
            sa.select(logs.c.tail, datasets.c.position, logs.c.seed)
            .select_from(_WITH_DATASETS)
            .where(logs.c.log == log, datasets.c.name == dataset)
        )
        for row in self._database.rows(query):
            return LogState(row.tail, row.position, row.seed)
        return None

    def backlogs(self) -> dict[str, int]:
        """The end of the log of each dataset with a shared log whose records are not all in the dataset."""
        query = sa.select(datasets.c.name, logs.c.tail).select_from(_WITH_DATASETS)
        query = query.where(logs.c.tail > datasets.c.position)
        return {row.name: row.tail for row in self._database.rows(query)}

    def place(self, log: int, new: NewObject, keys: Keys | None, now_us: int, answers_from_us: int) -> Placed:
        """Give an object its place. Answers before `answers_from_us` are forgotten. Raises `LogGone`.

        `keys` are None if the dataset does not remove repeats.
        """
        placed: Placed | None = None
        try:
            with self._database.write() as connection:
                placed = Placing(connection, log, new, keys, now_us, answers_from_us).run()
        except DBAPIError:
            # The connection may have broken after the commit: the row of the object shows if it did.
            if placed is None or not self.has_object(log, new.path):
                raise
        return placed

    def key_blocks(self, log: int, known: int, from_us: int) -> list[KeyBlock]:
        """Some of the blocks from the position `known` on; none if there are no more."""
        with self._database.read() as connection:
            return key_blocks(connection, log, known, from_us, limit=BLOCKS_AT_ONCE)

    def has_object(self, log: int, path: str) -> bool:
        query = sa.select(log_objects.c.first).where(log_objects.c.log == log, log_objects.c.path == path)
        return bool(self._database.rows(query))

    def objects(self, log: int, position: int, limit_bytes: int) -> list[LogObject]:
        """The objects from `position` on: about so many bytes, and at least one if there is one."""
        query = (
            sa.select(log_objects)
            .where(log_objects.c.log == log, log_objects.c.next > position)
            .order_by(log_objects.c.first)
            .limit(1_000)
        )
        found: list[LogObject] = []
        for row in self._database.rows(query):
            if found and row.next - position > limit_bytes:
                break
            found.append(LogObject(row.first, row.next, row.path, _unpacked(row.left_out)))
        return found

    def oldest_us(self, log: int, position: int) -> int | None:
        """When the oldest object from `position` on was accepted."""
        query = (
            sa.select(log_objects.c.accepted_us)
            .where(log_objects.c.log == log, log_objects.c.next > position)
            .order_by(log_objects.c.first)
            .limit(1)
        )
        return next((row.accepted_us for row in self._database.rows(query)), None)

    def recorded_upto(self, log: int, recording: str) -> int:
        query = sa.select(log_cursors.c.upto).where(log_cursors.c.log == log, log_cursors.c.recording == recording)
        return next((row.upto for row in self._database.rows(query)), 0)

    def trim(self, log: int, position: int, at_s: float) -> int:
        """Drop the objects whose records are in the dataset, and return how many. Their files become garbage."""
        with self._database.write() as connection:
            old = (log_objects.c.log == log) & (log_objects.c.next <= position)
            paths = list(connection.scalars(sa.select(log_objects.c.path).where(old)))
            if paths:
                connection.execute(sa.delete(log_objects).where(old))
                insert_garbage(connection, paths, at_s)
            return len(paths)

    def forget(self, log: int, keys_from_us: int, answers_from_us: int) -> None:
        """Delete keys and answers from before these moments."""
        with self._database.write() as connection:
            connection.execute(sa.delete(log_keys).where(log_keys.c.log == log, log_keys.c.at_us < keys_from_us))
            old = (log_answers.c.log == log) & (log_answers.c.at_us < answers_from_us)
            connection.execute(sa.delete(log_answers).where(old))


def create_log(connection: Connection, log: int, seed: int) -> None:
    connection.execute(sa.insert(logs).values(log=log, tail=0, last_us=0, seed=seed))


def drop_log(connection: Connection, log: int, at_s: float) -> None:
    """Drop a log with its keys and answers. No gateway can place an object any more."""
    paths = list(connection.scalars(sa.select(log_objects.c.path).where(log_objects.c.log == log)))
    insert_garbage(connection, paths, at_s)
    for table in (log_objects, log_keys, log_answers, log_cursors, log_alerts, logs):
        connection.execute(sa.delete(table).where(table.c.log == log))


def _unpacked(packed: bytes | None) -> LeftOut:
    if packed is None:
        return {}
    return msgspec.json.decode(zlib.decompress(packed), type=dict[int, list[int] | None])
