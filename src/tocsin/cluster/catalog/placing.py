"""One transaction that gives an object of a shared log its place, and decides about its requests: `LogTable.place`.

The row of the log is locked first, so the transactions of all gateways of a dataset follow one another. Requests with a
known Idempotency-Key and recordings with another cursor are left out as a whole, then lines whose key an earlier line
or an earlier object has.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.cluster.catalog.files import insert_garbage
from tocsin.cluster.catalog.tables import datasets, log_answers, log_cursors, log_keys, log_objects, logs
from tocsin.database.database import chunks

DIGEST_BYTES = 16
_END_WHEN_SILENT = "SET LOCAL idle_in_transaction_session_timeout = '5s'"
"""PostgreSQL ends the transaction of a gateway that is stopped or cut off: it holds the lock that the others need."""
LeftOut: TypeAlias = Mapping[int, Sequence[int] | None]
"""Request in the object → numbers of its lines that do not count; None for all of them."""


class LogGone(Exception):
    """The dataset of this log was dropped, or the catalog was restored from a copy that ends before the keys known."""


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


class KeyBlock(NamedTuple):
    """The keys that were new with an object."""

    first: int
    at_us: int
    digests: bytes


class Keys(Protocol):
    """The keys of a log that a gateway knows: see `feed.shared_keys`."""

    known: int

    def follow(self, blocks: Iterable[KeyBlock]) -> None: ...
    def fresh(self, digests: Collection[bytes]) -> set[bytes]: ...


@dataclass(frozen=True, slots=True)
class NewObject:
    path: str
    bytes: int
    """Length in the log: of the frames, however they are compressed."""
    accepted_us: int
    requests: Sequence[LogRequest]


@dataclass(frozen=True, slots=True)
class Placed:
    fates: list[Fate]
    tail: int
    """The end of the log."""
    ingested: int
    """The dataset has the records before this position."""
    keys: Collection[bytes]
    """The keys that were new."""
    at_us: int
    """When they were added, for the catalog."""


class _Repeat:
    """A request whose Idempotency-Key an earlier request has used."""


class Placing:
    """One transaction of `LogTable.place`."""

    def __init__(
        self, connection: Connection, log: int, new: NewObject, keys: Keys | None, now_us: int, answers_from_us: int
    ) -> None:
        self._connection = connection
        self._log = log
        self._new = new
        self._keys = keys
        self._now_us = now_us
        self._answers_from_us = answers_from_us
        self._answers: dict[bytes, tuple[bytes, bytes]] = {}
        """Key → (body, answer) of earlier requests with the keys of this object, and of its own stored requests."""
        self._own: set[bytes] = set()
        """The keys that this object is the first to use."""

    def run(self) -> Placed:
        if self._connection.dialect.name == "postgresql":
            self._connection.exec_driver_sql(_END_WHEN_SILENT)
        locked = sa.select(logs.c.tail, logs.c.last_us).where(logs.c.log == self._log).with_for_update()
        row = self._connection.execute(locked).one_or_none()
        if row is None or (self._keys is not None and self._keys.known > row.tail):
            raise LogGone
        at_us = max(self._now_us, row.last_us)  # the clocks of gateways differ
        self._find_answers()
        fates = [self._refusal(request) for request in self._new.requests]
        remaining = [request for request, fate in zip(self._new.requests, fates, strict=True) if fate is None]
        fresh = self._fresh_keys(remaining)
        new_keys = tuple(fresh)
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
        tail = self._add_object(row.tail, records, left_out, new_keys, at_us)
        update = sa.update(logs).where(logs.c.log == self._log)
        self._connection.execute(update.values(tail=tail, last_us=at_us))
        ingested = sa.select(datasets.c.position).where(datasets.c.generation == self._log)
        return Placed(decided, tail, self._connection.scalar(ingested) or 0, new_keys, at_us)

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
        key = None if request.idempotent is None else request.idempotent.key
        if key in self._answers or key in self._own:
            return _Repeat()
        step = request.recorded
        refusal = None if step is None else self._moved(step)
        if refusal is None and key is not None:
            self._own.add(key)
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

    def _fresh_keys(self, requests: Sequence[LogRequest]) -> set[bytes]:
        """The keys of these requests that are new. No other object can get a place meanwhile."""
        if self._keys is None:
            return set()
        # Also without keys of its own: afterwards the gateway takes all keys before the end of the log for known.
        self._keys.follow(key_blocks(self._connection, self._log, self._keys.known, 0))
        digests = [digest for request in requests for digest in request.digests]
        return self._keys.fresh(digests) if digests else set()

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

    def _add_object(self, first: int, records: int, left_out: LeftOut, keys: Sequence[bytes], at_us: int) -> int:
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
        if keys:
            block = {"log": self._log, "first": first, "at_us": at_us, "digests": b"".join(keys)}
            self._connection.execute(sa.insert(log_keys).values(**block))
        return first + self._new.bytes


def key_blocks(connection: Connection, log: int, known: int, from_us: int, limit: int | None = None) -> list[KeyBlock]:
    query = (
        sa.select(log_keys.c.first, log_keys.c.at_us, log_keys.c.digests)
        .where(log_keys.c.log == log, log_keys.c.first >= known, log_keys.c.at_us >= from_us)
        .order_by(log_keys.c.first)
        .limit(limit)
    )
    return [KeyBlock(row.first, row.at_us, row.digests) for row in connection.execute(query)]


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
