"""Which alerts a dataset has taken, and which of them followed which: an SQLite table beside the feed log.

An Update or Cancel names the messages it acts on [CAP §3.2.1, references], often only the latest of a chain. The table
leads from any message of a chain to the first, under whose key a KEYED dataset keeps the record, and gives back the
records a message left, which a Cancel without an info needs. It also tells a repeat from a stranger of the same name.

Rows are facts about messages, so writing one twice, or one whose records then fail to be stored, does no harm: it is
written and fsynced before the records are. A database is made with the first alert; most datasets never see one.
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
class Root:
    """The first message of a chain."""

    sender: str
    identifier: str


@dataclass(frozen=True, slots=True)
class KnownAlert:
    reference: Reference
    digest: bytes
    """Of all it says: the same message again has the same."""
    root: Root
    rows: tuple[Row, ...]
    """What it left in the dataset as current."""


class AlertLineage:
    """Thread-safe. Raises sqlite3.Error when the disk refuses."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None

    def find(self, sender: str, identifier: str) -> KnownAlert | None:
        row = self._one(
            "SELECT sent_s, digest, root_sender, root_identifier, rows FROM alerts WHERE identifier = ? AND sender = ?",
            identifier, sender,
        )  # fmt: skip
        if row is None:
            return None
        sent_s, digest, root_sender, root_identifier, rows = row
        reference = Reference(sender, identifier, datetime.fromtimestamp(sent_s, UTC))
        return KnownAlert(reference, digest, Root(root_sender, root_identifier), tuple(msgspec.json.decode(rows)))

    def other_sender(self, sender: str, identifier: str) -> str | None:
        """Somebody else who used this identifier."""
        row = self._one("SELECT sender FROM alerts WHERE identifier = ? AND sender <> ? LIMIT 1", identifier, sender)
        return None if row is None else str(row[0])

    def is_superseded(self, root: Root, sent: datetime) -> bool:
        """A later message of the chain has come before."""
        found = self._one(
            "SELECT 1 FROM alerts WHERE root_identifier = ? AND root_sender = ? AND sent_s > ? LIMIT 1",
            root.identifier, root.sender, int(sent.timestamp()),
        )  # fmt: skip
        return found is not None

    def remember(self, alert: KnownAlert, accepted_at_us: int) -> None:
        """Durable when this returns. What is known already stays as it is."""
        reference, root = alert.reference, alert.root
        with self._lock:
            self._connection().execute(
                "INSERT OR IGNORE INTO alerts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    reference.sender, reference.identifier, int(reference.sent.timestamp()), alert.digest,
                    root.sender, root.identifier, msgspec.json.encode(alert.rows), accepted_at_us,
                ),
            )  # fmt: skip

    def forget(self, horizon_us: int) -> None:
        """Delete what is older than the horizon."""
        with self._lock:
            if self._opened is not None or self._path.exists():
                self._connection().execute("DELETE FROM alerts WHERE accepted_at_us < ?", (horizon_us,))

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _one(self, query: str, *values: object) -> tuple[Any, ...] | None:
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
