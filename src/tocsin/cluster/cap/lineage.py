"""The alerts that a dataset has accepted and their chains: an SQLite table beside the feed log.

An Update or Cancel refers to earlier messages [CAP §3.2.1, references], often only to the latest of a chain. The table
leads from any message of a chain to the first one, the root: a KEYED dataset stores its records under the root's key.
The table also has the records of each message, which a Cancel without an info needs. It distinguishes a repeated
message from a different message with the same identifier.

Rows are facts about messages. It is harmless to write a row twice, or to write one whose records are not stored in the
end, so a row is written and fsynced before its records. The first alert creates the database; most datasets have none.
"""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tocsin.cluster.cap.alert import Reference
from tocsin.cluster.cap.columns import Row

_SCHEMA = """
CREATE TABLE IF NOT EXISTS alerts (
    sender TEXT NOT NULL, identifier TEXT NOT NULL, sent_s INTEGER NOT NULL, digest BLOB NOT NULL,
    root_sender TEXT NOT NULL, root_identifier TEXT NOT NULL, rows BLOB NOT NULL, accepted_at_us INTEGER NOT NULL,
    PRIMARY KEY (identifier, sender)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS alerts_by_root ON alerts (root_identifier, root_sender, sent_s);
CREATE INDEX IF NOT EXISTS alerts_by_age ON alerts (accepted_at_us);
"""


@dataclass(frozen=True, slots=True)
class ChainRoot:
    """The first message of a chain."""

    sender: str
    identifier: str


@dataclass(frozen=True, slots=True)
class KnownAlert:
    reference: Reference
    digest: bytes
    """The digest of all values of the alert: a repeated message has the same digest."""
    root: ChainRoot
    rows: tuple[Row, ...]
    """The records of this message that are current."""


class AlertLineage:
    """Thread-safe. Methods raise sqlite3.Error if the disk refuses."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None

    def find(self, sender: str, identifier: str) -> KnownAlert | None:
        row = self._first_row(
            "SELECT sent_s, digest, root_sender, root_identifier, rows FROM alerts WHERE identifier = ? AND sender = ?",
            identifier,
            sender,
        )
        if row is None:
            return None
        sent_s, digest, root_sender, root_identifier, rows = row
        reference = Reference(sender, identifier, datetime.fromtimestamp(sent_s, UTC))
        return KnownAlert(reference, digest, ChainRoot(root_sender, root_identifier), tuple(msgspec.json.decode(rows)))

    def other_sender(self, sender: str, identifier: str) -> str | None:
        """Another sender that has used this identifier, or None."""
        query = "SELECT sender FROM alerts WHERE identifier = ? AND sender <> ? LIMIT 1"
        row = self._first_row(query, identifier, sender)
        return None if row is None else str(row[0])

    def is_superseded(self, root: ChainRoot, sent: datetime) -> bool:
        """True if a message of the chain that was sent later has been accepted already."""
        query = "SELECT 1 FROM alerts WHERE root_identifier = ? AND root_sender = ? AND sent_s > ? LIMIT 1"
        return self._first_row(query, root.identifier, root.sender, int(sent.timestamp())) is not None

    def remember(self, alert: KnownAlert, accepted_at_us: int) -> None:
        """Add the alert unless the table has it. The row is durable when this method returns."""
        reference, root = alert.reference, alert.root
        key = (reference.sender, reference.identifier, int(reference.sent.timestamp()))
        values = (alert.digest, root.sender, root.identifier, msgspec.json.encode(alert.rows), accepted_at_us)
        with self._lock:
            self._connection().execute("INSERT OR IGNORE INTO alerts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", key + values)

    def forget(self, horizon_us: int) -> None:
        """Delete alerts accepted before the horizon."""
        with self._lock:
            if self._opened is not None or self._path.exists():
                self._connection().execute("DELETE FROM alerts WHERE accepted_at_us < ?", (horizon_us,))

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _first_row(self, query: str, *values: object) -> tuple[Any, ...] | None:
        with self._lock:
            if self._opened is None and not self._path.exists():
                return None
            row: tuple[Any, ...] | None = self._connection().execute(query, values).fetchone()
            return row

    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            opened = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
            try:
                opened.execute("PRAGMA journal_mode = WAL")
                opened.execute("PRAGMA synchronous = FULL")
                opened.executescript(_SCHEMA)
            except BaseException:
                opened.close()
                raise
            self._opened = opened
        return self._opened
