"""The catalog: the one transactional database of the data cluster.

Data lies in immutable Parquet files under the root. The catalog alone decides which files belong to a dataset or to a
channel's results. One transaction makes a batch of records or an execution visible and moves the position it was read
from, so a process that dies at any point has done either all of it or nothing. Files that neither a row nor
a write intent names are leftovers of such deaths; `cluster.upkeep` deletes them.

SQLite by default, any SQLAlchemy URL otherwise. The catalog knows neither Spark nor clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.cluster.catalog.dead_letters import DeadLetterTable
from tocsin.cluster.catalog.definitions import ChannelTable, DatasetTable, FeedTable
from tocsin.cluster.catalog.executions import ExecutionTable
from tocsin.cluster.catalog.files import FileTable
from tocsin.cluster.catalog.log_alerts import LogAlertTable
from tocsin.cluster.catalog.logs import LogTable
from tocsin.cluster.catalog.subscriptions import SubscriptionTable
from tocsin.cluster.catalog.tables import read_fact, schema, tokens, write_fact
from tocsin.cluster.catalog.trials import TrialTable
from tocsin.cluster.catalog.writes import WriteTable
from tocsin.database.database import Database, Guard
from tocsin.database.formats import StoredFormat


def _store_small_files(_connection: Connection) -> None:
    """Format 2: the catalog itself may store the bytes of a small file [decision 19]. There is nothing to convert."""


def _share_logs(_connection: Connection) -> None:
    """Format 3: a dataset's log may be in objects that the catalog lists [decision 25]. There is nothing to convert."""


_FORMAT = StoredFormat("data root", schema, (_store_small_files, _share_logs))
"""Of the catalog and all files below the root. The catalog alone says what the files hold."""
_GENERATION = "generation"
"""The fact that holds the last number given to an epoch or a folder."""


class Catalog:
    """Thread-safe. The process that holds the lease of the data root writes to it; gateways only to shared logs."""

    def __init__(self, url: str, guard: Guard | None = None, *, as_it_is: bool = False) -> None:
        """`guard` refuses the transactions of a process that has lost the lease.

        `as_it_is`: for a process beside the one that leads. It neither creates nor converts a catalog.
        """
        self._database = Database(url, _FORMAT, guard, as_it_is=as_it_is)
        self.datasets = DatasetTable(self._database)
        self.feeds = FeedTable(self._database)
        self.channels = ChannelTable(self._database)
        self.executions = ExecutionTable(self._database)
        self.files = FileTable(self._database)
        self.subscriptions = SubscriptionTable(self._database)
        self.dead_letters = DeadLetterTable(self._database)
        self.trials = TrialTable(self._database)
        self.writes = WriteTable(self._database)
        self.logs = LogTable(self._database)
        self.log_alerts = LogAlertTable(self._database)

    def close(self) -> None:
        self._database.close()

    def next_generation(self, count: int = 1, at_least: int = 0) -> int:
        """Reserve `count` numbers that this catalog never gave out, all above `at_least`, and return the first.

        Channel epochs, feed logs and checkpoints are named by these numbers.
        """
        with self._database.write() as connection:
            last = max(int(read_fact(connection, _GENERATION) or 0), at_least)
            write_fact(connection, _GENERATION, str(last + count))
            return last + 1

    def has_fact(self, name: str) -> bool:
        return self.fact(name) is not None

    def fact(self, name: str) -> str | None:
        with self._database.read() as connection:
            return read_fact(connection, name)

    def set_fact(self, name: str, value: str) -> None:
        with self._database.write() as connection:
            write_fact(connection, name, value)

    def add_token(self, digest: str, name: str, scopes: Sequence[str], expires_s: float | None) -> None:
        row = {"digest": digest, "name": name, "scopes": " ".join(scopes), "expires_s": expires_s}
        self._database.execute(sa.insert(tokens).values(**row))

    def tokens(self) -> list[tuple[str, str, tuple[str, ...], float | None]]:
        """(digest, name, scopes, expiry in seconds or None) of every token."""
        rows = self._database.rows(sa.select(tokens))
        return [(row.digest, row.name, tuple(row.scopes.split()), row.expires_s) for row in rows]

    def remove_token(self, digest: str) -> None:
        self._database.execute(sa.delete(tokens).where(tokens.c.digest == digest))
