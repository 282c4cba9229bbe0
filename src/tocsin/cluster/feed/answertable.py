"""Answers to requests with an Idempotency-Key, and cursors of recorded topics, in SQLite tables beside the feed log.

The log is the truth: each answer and each cursor is in the meta of its frame. The tables only avoid reading the whole
log, so their commits are not fsynced. `covers` is the position up to which the tables have the answers and cursors of
the log; `make_durable` fsyncs them before the log may be trimmed. Keys are stored as digests: 128 bits of the key, 256
bits of the body. An answer is forgotten after the retention, a cursor never. Thread-safe.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from tocsin.cluster.feed.feedlog_reader import LogFrame
from tocsin.cluster.feed.outcomes import Accepted

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, body BLOB NOT NULL, answer BLOB NOT NULL, accepted_at_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_by_age ON answers (accepted_at_us);
CREATE TABLE IF NOT EXISTS covered (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), position INTEGER NOT NULL);
INSERT OR IGNORE INTO covered VALUES (1, 0);
CREATE TABLE IF NOT EXISTS cursors (recording TEXT PRIMARY KEY, upto INTEGER NOT NULL) WITHOUT ROWID;
"""
_SET_CURSOR = """
INSERT INTO cursors VALUES (?, ?) ON CONFLICT (recording) DO UPDATE SET upto = max(upto, excluded.upto)
"""
_decode_accepted = msgspec.json.Decoder(Accepted).decode


class RequestDigests(NamedTuple):
    """The digests of an Idempotency-Key and of the body it came with."""

    key: bytes
    body: bytes

    @classmethod
    def of(cls, idempotency_key: str, body: bytes) -> Self:
        key = idempotency_key.encode("utf-8", "surrogatepass")
        return cls(blake2b(key, digest_size=16).digest(), blake2b(body, digest_size=32).digest())


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    digests: RequestDigests
    accepted: Accepted
    accepted_at_us: int

    @classmethod
    def of_frame(cls, frame: LogFrame) -> StoredAnswer:
        stored = frame.meta["idempotency"]
        digests = RequestDigests(bytes.fromhex(stored["key"]), bytes.fromhex(stored["body"]))
        answer = replace(msgspec.convert(stored["answer"], Accepted), position=frame.next_position)
        return cls(digests, answer, frame.meta["accepted_at_us"])


class AnswerTable:
    def __init__(self, path: Path, retention_s: float) -> None:
        self._retention_us = int(retention_s * 1e6)
        self._waiting: dict[bytes, StoredAnswer] = {}
        """Answers that are durable in the log and not yet in the table."""
        self._waiting_cursors: dict[str, int] = {}
        """The same for cursors: recording → the last sequence number that is recorded."""
        self._log_end = 0
        """The table and `_waiting` together have every answer of the log before this position."""
        self._waiting_lock = threading.Lock()
        """Guards the three fields above. Held for microseconds, unlike the lock of the connection."""
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.executescript(_SCHEMA)
            (self._covers,) = self._connection.execute("SELECT position FROM covered").fetchone()
        except BaseException:
            self._connection.close()
            raise

    @property
    def covers(self) -> int:
        """The table has every answer that the log holds before this position."""
        return int(self._covers)

    @property
    def waiting(self) -> int:
        """How many answers and cursors are in memory and not yet in the tables."""
        return len(self._waiting) + len(self._waiting_cursors)

    def find(self, key: bytes, now_us: int) -> StoredAnswer | None:
        """The answer for the digest of an Idempotency-Key, or None if there is none within the retention."""
        with self._waiting_lock:
            waiting = self._waiting.get(key)
        if waiting is not None:
            return waiting
        with self._lock:
            row = self._connection.execute(
                "SELECT body, answer, accepted_at_us FROM answers WHERE key = ? AND accepted_at_us >= ?",
                (key, now_us - self._retention_us),
            ).fetchone()
        return None if row is None else StoredAnswer(RequestDigests(key, row[0]), _decode_accepted(row[1]), row[2])

    def recorded_upto(self, recording: str) -> int:
        """The last sequence number of a topic that is durable here; 0 for a recording that is not known."""
        with self._waiting_lock:
            waiting = self._waiting_cursors.get(recording)
        if waiting is not None:
            return waiting
        with self._lock:
            row = self._connection.execute("SELECT upto FROM cursors WHERE recording = ?", (recording,)).fetchone()
        return 0 if row is None else int(row[0])

    def add(
        self, answers: Mapping[bytes, StoredAnswer], log_end: int, cursors: Mapping[str, int] | None = None
    ) -> None:
        """Keep durable answers and cursors in memory until `store_waiting`. They complete those before `log_end`."""
        with self._waiting_lock:
            self._waiting.update(answers)
            self._waiting_cursors.update(cursors or {})
            self._log_end = log_end

    def store_waiting(self) -> int:
        """Write the answers in memory to the table. Returns the log position up to which the table is complete.

        On sqlite3.Error the answers stay in memory.
        """
        with self._waiting_lock:
            waiting, cursors, log_end = dict(self._waiting), dict(self._waiting_cursors), self._log_end
        self.store(waiting.values(), log_end, cursors)
        with self._waiting_lock:
            for key, answer in waiting.items():
                if self._waiting.get(key) is answer:
                    del self._waiting[key]
            for recording, upto in cursors.items():
                if self._waiting_cursors.get(recording) == upto:
                    del self._waiting_cursors[recording]
        return log_end

    def store(self, answers: Iterable[StoredAnswer], covers: int, cursors: Mapping[str, int] | None = None) -> None:
        """Write all of the answers and cursors or, on sqlite3.Error, none."""
        rows = [(*answer.digests, msgspec.json.encode(answer.accepted), answer.accepted_at_us) for answer in answers]
        with self._lock, self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows)
            self._connection.executemany(_SET_CURSOR, list((cursors or {}).items()))
            self._connection.execute("UPDATE covered SET position = max(position, ?)", (covers,))
        self._covers = max(covers, self._covers)

    def forget(self, now_us: int) -> None:
        """Delete answers older than the retention."""
        with self._lock:
            self._connection.execute("DELETE FROM answers WHERE accepted_at_us < ?", (now_us - self._retention_us,))

    def make_durable(self) -> None:
        """Fsync the table, so that the log before `covers` is no longer needed."""
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with self._lock:
            self._connection.close()
