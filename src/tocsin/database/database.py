"""One SQL database for stored state: SQLite by default, PostgreSQL by URL. Connections, transactions, bulk inserts."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.engine import Connection

from tocsin.database.formats import StoredFormat, bring_up_to_date, check_format

T = TypeVar("T")


class Guard(Protocol):
    """Decides whether this process may write: see `database.lease`."""

    session: str
    """The name of this process's sessions at the server."""

    def check(self, connection: Connection) -> None:
        """Called first in each writing transaction. Raises if the transaction must not commit."""


class Database:
    """Thread-safe. `write` is one transaction; `read` sees one consistent state and never waits for a writer."""

    def __init__(
        self,
        url: str,
        format: StoredFormat,
        guard: Guard | None = None,
        connect_args: Mapping[str, object] | None = None,
        *,
        as_it_is: bool = False,
    ) -> None:
        """Open the store, and create or convert it if that is necessary. `connect_args` are for the driver.

        With `as_it_is`, nothing is created or converted, and a store of another format is refused.
        """
        if connect_args is None:
            connect_args = session_options(url, "tocsin" if guard is None else guard.session)
        # After a restart of the server, a new connection is opened before the next transaction, which then succeeds.
        self._engine = sa.create_engine(url, pool_pre_ping=True, connect_args=dict(connect_args))
        self._guard = guard
        self._writing = threading.RLock()
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin)
        self._writer = self._engine.execution_options(writes=True)
        try:
            if as_it_is:
                with self.read() as connection:
                    check_format(connection, format)
            else:
                with self.write() as connection:
                    bring_up_to_date(connection, format)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        # SQLite has one writer: waiting here is cheaper than in its busy loop. It does no harm to other databases.
        with self._writing, self._writer.begin() as connection:
            if self._guard is not None:
                self._guard.check(connection)
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            yield connection

    def execute(self, statement: sa.Executable) -> None:
        """Run one statement in a transaction of its own."""
        with self.write() as connection:
            connection.execute(statement)

    def rows(self, query: sa.Executable) -> Sequence[sa.Row[Any]]:
        with self.read() as connection:
            return connection.execute(query).all()


def session_options(url: str, session: str, answer_ms: int | None = None) -> dict[str, object]:
    """How the driver connects. A server that is cut off is noticed after some seconds instead of a quarter of an hour.

    With `answer_ms`, statements and waits for locks that take longer fail.
    """
    if sa.make_url(url).get_backend_name() != "postgresql":
        return {}
    options = {
        "application_name": session,
        "connect_timeout": 3,
        "keepalives_idle": 3,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": 6_000,
    }
    if answer_ms is not None:
        options["options"] = f"-c statement_timeout={answer_ms} -c lock_timeout={answer_ms}"
    return options


def insert_many(
    connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, object]], *, ignore_existing: bool = False
) -> None:
    if not rows:
        return
    statement: Any = sa.insert(table)
    if ignore_existing:
        if connection.dialect.name == "sqlite":
            statement = statement.prefix_with("OR IGNORE")
        else:
            statement = postgresql_insert(table).on_conflict_do_nothing()
    connection.execute(statement, [dict(row) for row in rows])


def chunks(items: Sequence[T], size: int = 10_000) -> Iterator[Sequence[T]]:
    """Slices of at most `size` items: databases limit the number of values in one statement."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # _begin sends BEGIN, not Python's driver
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", "cache_size=-65536"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A transaction that first reads and then writes can fail with "database is locked" in spite of the timeout.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
