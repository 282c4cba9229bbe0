"""The catalog's shared logs: which object has which place in a dataset's log, and the keys and answers of its requests.

A gateway writes a group of requests as one object and then calls `place`. That transaction gives the object its place,
finds repeats by record key, by Idempotency-Key and by the cursor of a recording, and stores keys, answers and cursors.
The row of the log is locked first, so the transactions of all gateways of a dataset follow one another: a reader that
sees the end of the log sees every object before it.

A position is a number of bytes, as in a local feed log. An object covers the positions [first, next).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tocsin.cluster.catalog.files import insert_garbage
from tocsin.cluster.catalog.tables import (
    datasets,
    log_answers,
    log_cursors,
    log_keys,
    log_objects,
    logs,
)
from tocsin.database.database import Database, chunks
from tocsin.model.ids import DatasetName

_UPSERT_KEY = """
INSERT INTO log_keys (log, digest, at_us) {values}
ON CONFLICT (log, digest) DO UPDATE SET at_us = excluded.at_us WHERE log_keys.at_us < {horizon}
"""
_WITH_DATASETS = logs.join(datasets, datasets.c.generation == logs.c.log)
LeftOut: TypeAlias = Mapping[int, Sequence[int] | None]
"""Request in the object → numbers of its lines that do not count; None for all of them."""


class LogGone(Exception):
    """The dataset of this log was dropped."""


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    key: bytes
    """Digest of the Idempotency-Key."""
    body: bytes
    """Digest of the body."""


@dataclass(frozen=True, slots=True)
class RecordingStep:
    """The request is stored only if the cursor of the recording is `after`; then it becomes `upto`."""

    recording: str
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class LogRequest:
    """A request of an object that has no place yet."""

    lines: int
    digests: Sequence[bytes]
    """The digest of the key of each line; empty if the dataset does not remove repeats."""
    answer: Callable[[int], bytes]
    """The answer to store, given the number of its repeated lines."""
    idempotent: IdempotentRequest | None = None
    recorded: RecordingStep | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """The request is stored, without its repeated lines."""

    duplicates: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """A request with this Idempotency-Key is stored already."""

    body: bytes
    answer: bytes


@dataclass(frozen=True, slots=True)
class CursorElsewhere:
    """The cursor of the recording has another value; nothing of the request is stored."""

    upto: int


Fate: TypeAlias = Stored | Replayed | CursorElsewhere


@dataclass(frozen=True, slots=True)
class NewObject:
    path: str
    bytes: int
    """Length in the log: of the frames, however they are compressed."""
    accepted_us: int
    requests: Sequence[LogRequest]


@dataclass(frozen=True, slots=True)
class LogObject:
    first: int
    next: int
    path: str
    left_out: LeftOut


@dataclass(frozen=True, slots=True)
class Placed:
    fates: list[Fate]
    tail: int
    """The end of the log."""
    ingested: int
    """The dataset has the records before this position."""


@dataclass(frozen=True, slots=True)
class LogState:
    tail: int
    ingested: int
    seed: int
    """Of the digests of keys. It never leaves gateways and catalog, so that no publisher can prepare equal digests."""


class LogTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, log: int, seed: int) -> None:
        self._database.execute(sa.insert(logs).values(log=log, tail=0, last_us=0, seed=seed))

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

    def place(self, log: int, new: NewObject, now_us: int, keys_from_us: int, answers_from_us: int) -> Placed:
        """Give an object its place. Keys and answers before the two horizons are forgotten. Raises `LogGone`."""
        placed: Placed | None = None
        try:
            with self._database.write() as connection:
                placed = _Placing(connection, log, new, now_us, keys_from_us, answers_from_us).run()
        except DBAPIError:
            # The connection may have broken after the commit: the row of the object shows if it did.
            if placed is None or not self.has_object(log, new.path):
                raise
        return placed

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


def drop_log(connection: Connection, log: int, at_s: float) -> None:
    """Drop a log with its keys and answers. No gateway can place an object any more."""
    paths = list(connection.scalars(sa.select(log_objects.c.path).where(log_objects.c.log == log)))
    insert_garbage(connection, paths, at_s)
    for table in (log_objects, log_keys, log_answers, log_cursors, logs):
        connection.execute(sa.delete(table).where(table.c.log == log))


class _Repeat:
    """A request whose Idempotency-Key an earlier request has used."""


class _Placing:
    """One transaction of `LogTable.place`."""

    def __init__(
        self, connection: Connection, log: int, new: NewObject, now_us: int, keys_from_us: int, answers_from_us: int
    ) -> None:
        self._connection = connection
        self._log = log
        self._new = new
        self._now_us = now_us
        self._keys_from_us = keys_from_us
        self._answers_from_us = answers_from_us
        self._answers: dict[bytes, tuple[bytes, bytes]] = {}
        """Key → (body, answer) of earlier requests with the keys of this object, and of its own stored requests."""
        self._own: set[bytes] = set()
        """The keys that this object is the first to use."""

    def run(self) -> Placed:
        locked = sa.select(logs.c.tail, logs.c.last_us).where(logs.c.log == self._log).with_for_update()
        row = self._connection.execute(locked).one_or_none()
        if row is None:
            raise LogGone
        # Higher than any time before: the keys that this transaction inserts are those with this time.
        at_us = max(self._now_us, row.last_us + 1)
        self._find_answers()
        fates = [self._refusal(request) for request in self._new.requests]
        remaining = [request for request, fate in zip(self._new.requests, fates, strict=True) if fate is None]
        fresh = self._fresh_keys(remaining, at_us)
        left_out: dict[int, list[int] | None] = {}
        stored: list[tuple[IdempotentRequest, bytes]] = []
        records = 0
        decided: list[Fate] = []
        for number, (request, fate) in enumerate(zip(self._new.requests, fates, strict=True)):
            if fate is not None:
                left_out[number] = None
                decided.append(self._replayed(request) if isinstance(fate, _Repeat) else fate)
                continue
            repeated = _take_fresh(request, fresh)
            if repeated:
                left_out[number] = repeated
            records += request.lines - len(repeated)
            decided.append(Stored(len(repeated)))
            if request.idempotent is not None:
                answer = request.answer(len(repeated))
                self._answers[request.idempotent.key] = (request.idempotent.body, answer)
                stored.append((request.idempotent, answer))
        self._store_answers(stored, at_us)
        tail = self._add_object(row.tail, records, left_out)
        update = sa.update(logs).where(logs.c.log == self._log)
        self._connection.execute(update.values(tail=tail, last_us=at_us))
        ingested = sa.select(datasets.c.position).where(datasets.c.generation == self._log)
        return Placed(decided, tail, self._connection.scalar(ingested) or 0)

    def _find_answers(self) -> None:
        keys = [request.idempotent.key for request in self._new.requests if request.idempotent is not None]
        for chunk in chunks(keys, 500):
            query = sa.select(log_answers).where(
                log_answers.c.log == self._log,
                log_answers.c.key.in_(chunk),
                log_answers.c.at_us >= self._answers_from_us,
            )
            self._answers.update((row.key, (row.body, row.answer)) for row in self._connection.execute(query))

    def _refusal(self, request: LogRequest) -> CursorElsewhere | _Repeat | None:
        """Why nothing of a request is stored; None if it is."""
        if request.idempotent is not None and request.idempotent.key in self._answers.keys() | self._own:
            return _Repeat()
        step = request.recorded
        refusal = None if step is None else self._moved(step)
        if refusal is None and request.idempotent is not None:
            self._own.add(request.idempotent.key)
        return refusal

    def _moved(self, step: RecordingStep) -> CursorElsewhere | None:
        """Move the cursor of a recording; the reason if it has another value."""
        cursor = (log_cursors.c.log == self._log) & (log_cursors.c.recording == step.recording)
        upto = self._connection.scalar(sa.select(log_cursors.c.upto).where(cursor)) or 0
        if upto != step.after:
            return CursorElsewhere(upto)
        self._connection.execute(sa.delete(log_cursors).where(cursor))
        row = {"log": self._log, "recording": step.recording, "upto": step.upto}
        self._connection.execute(sa.insert(log_cursors).values(**row))
        return None

    def _replayed(self, request: LogRequest) -> Replayed:
        assert request.idempotent is not None
        return Replayed(*self._answers[request.idempotent.key])

    def _fresh_keys(self, requests: Sequence[LogRequest], at_us: int) -> set[bytes]:
        """Insert the keys of these requests, and return those that were new."""
        keys = {digest for request in requests for digest in request.digests}
        if not keys:
            return keys
        if self._insert_keys(keys, at_us) == len(keys):
            return keys
        fresh: set[bytes] = set()
        for chunk in chunks(list(keys), 500):
            query = sa.select(log_keys.c.digest).where(
                log_keys.c.log == self._log, log_keys.c.digest.in_(chunk), log_keys.c.at_us == at_us
            )
            fresh.update(self._connection.scalars(query))
        return fresh

    def _insert_keys(self, keys: Collection[bytes], at_us: int) -> int:
        """How many of the keys were new, or older than the horizon."""
        # In order: neighbours share a page of the index.
        ordered = sorted(keys)
        if self._connection.dialect.name == "sqlite":
            statement = _UPSERT_KEY.format(values="VALUES (?, ?, ?)", horizon="?")
            rows = [(self._log, key, at_us, self._keys_from_us) for key in ordered]
            return self._connection.exec_driver_sql(statement, rows).rowcount
        values = "SELECT %(log)s, unnest(%(keys)s::bytea[]), %(at_us)s"
        statement = _UPSERT_KEY.format(values=values, horizon="%(horizon)s")
        bound = {"log": self._log, "keys": ordered, "at_us": at_us, "horizon": self._keys_from_us}
        return self._connection.exec_driver_sql(statement, bound).rowcount

    def _store_answers(self, stored: Sequence[tuple[IdempotentRequest, bytes]], at_us: int) -> None:
        if not stored:
            return
        keys = [request.key for request, _ in stored]
        for chunk in chunks(keys, 500):  # those before the horizon
            old = (log_answers.c.log == self._log) & log_answers.c.key.in_(chunk)
            self._connection.execute(sa.delete(log_answers).where(old))
        rows = [
            {"log": self._log, "key": request.key, "body": request.body, "answer": answer, "at_us": at_us}
            for request, answer in stored
        ]
        self._connection.execute(sa.insert(log_answers), rows)

    def _add_object(self, first: int, records: int, left_out: LeftOut) -> int:
        """Add the object, and return the new end of the log. An object without records gets no place."""
        if not records:
            insert_garbage(self._connection, [self._new.path], self._new.accepted_us / 1e6)
            return first
        row = {
            "log": self._log,
            "first": first,
            "next": first + self._new.bytes,
            "path": self._new.path,
            "accepted_us": self._new.accepted_us,
            "left_out": _packed(left_out),
        }
        self._connection.execute(sa.insert(log_objects).values(**row))
        return first + self._new.bytes


def _take_fresh(request: LogRequest, fresh: set[bytes]) -> list[int]:
    """The lines whose key is not fresh. A key counts once: it is fresh no more after its first line."""
    if not request.digests:
        return []
    distinct = set(request.digests)
    if len(distinct) == len(request.digests) and distinct <= fresh:
        fresh -= distinct
        return []
    repeated = []
    for number, digest in enumerate(request.digests):
        if digest in fresh:
            fresh.remove(digest)
        else:
            repeated.append(number)
    return repeated


def _packed(left_out: LeftOut) -> bytes | None:
    return zlib.compress(msgspec.json.encode(left_out)) if left_out else None


def _unpacked(packed: bytes | None) -> LeftOut:
    if packed is None:
        return {}
    return msgspec.json.decode(zlib.decompress(packed), type=dict[int, list[int] | None])
