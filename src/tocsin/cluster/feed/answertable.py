"""Which Idempotency-Keys were answered, and how: an SQLite table beside the feed log.

The log is the truth (each answer travels in its frame's meta); this table only spares reading it all. Commits are
therefore not fsynced. `covers` says up to which position the table knows the log, and `make_durable` fixes that before
the log may be trimmed. Keys are kept as digests: 128 bits of the key, 256 of the body it came with. Thread-safe.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tocsin.cluster.feed.outcomes import Accepted

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, body BLOB NOT NULL, answer BLOB NOT NULL, accepted_at_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_by_age ON answers (accepted_at_us);
CREATE TABLE IF NOT EXISTS covered (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), position INTEGER NOT NULL);
INSERT OR IGNORE INTO covered VALUES (1, 0);
"""
_decode_accepted = msgspec.json.Decoder(Accepted).decode


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    key: bytes
    body: bytes
    accepted: Accepted
    accepted_at_us: int


class AnswerTable:
    def __init__(self, path: Path) -> None:
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
        """Every answer the log holds before this position has been stored here."""
        return int(self._covers)

    def find(self, key: bytes, horizon_us: int) -> StoredAnswer | None:
        with self._lock:
            row = self._connection.execute(
                "SELECT body, answer, accepted_at_us FROM answers WHERE key = ? AND accepted_at_us >= ?",
                (key, horizon_us),
            ).fetchone()
        return None if row is None else StoredAnswer(key, row[0], _decode_accepted(row[1]), row[2])

    def store(self, answers: Iterable[StoredAnswer], covers: int) -> None:
        """All of them or, on sqlite3.Error, none."""
        rows = [(each.key, each.body, msgspec.json.encode(each.accepted), each.accepted_at_us) for each in answers]
        with self._lock, self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows)
            self._connection.execute("UPDATE covered SET position = max(position, ?)", (covers,))
        self._covers = max(covers, self._covers)

    def forget(self, horizon_us: int) -> None:
        """Delete answers older than the horizon."""
        with self._lock:
            self._connection.execute("DELETE FROM answers WHERE accepted_at_us < ?", (horizon_us,))

    def make_durable(self) -> None:
        """Fsync what was stored, so that the log before `covers` is no longer needed."""
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with self._lock:
            self._connection.close()
