"""The format of a store: which releases can read it [decision 22].

Each store has a number in the table `stored_formats` of its database. New tables, new columns that may be NULL and new
indexes leave it as it is: an older release ignores them. A change that an older release would misread needs the next
number, and a step that converts the stores of the number before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.wire.errors import Code, TocsinError

_FIRST = 1
"""The format of stores that were made before formats had numbers."""
_LOCK = 0x70C51
"""Of PostgreSQL: processes that open a store at the same time convert it one after the other."""

_metadata = sa.MetaData()
_formats = sa.Table(
    "stored_formats",
    _metadata,
    sa.Column("store", sa.String(64), primary_key=True),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("release", sa.Text, nullable=False),  # the last one that opened the store
)


@dataclass(frozen=True, slots=True)
class StoredFormat:
    store: str
    """Its name, for the table and for messages."""
    tables: sa.MetaData
    steps: Sequence[Callable[[Connection], None]] = ()
    """The first converts format 1 to 2, the next 2 to 3. Tables, columns and indexes of this release exist already."""

    @property
    def number(self) -> int:
        return _FIRST + len(self.steps)


def bring_up_to_date(connection: Connection, wanted: StoredFormat) -> None:
    """Create what is missing and convert an older store, in the transaction of `connection`. Refuse a newer store."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    _metadata.create_all(connection)
    found = _format_of(connection, wanted)
    if found > wanted.number:
        release = connection.scalar(sa.select(_formats.c.release).where(_formats.c.store == wanted.store))
        raise TocsinError(
            Code.NEWER_FORMAT,
            f"the {wanted.store} has format {found}, and Tocsin {version('tocsin')} reads formats up to "
            f"{wanted.number}: start Tocsin {release} or later, or restore a backup made before the update",
        )
    wanted.tables.create_all(connection)
    _add_missing_parts(connection, wanted.tables)
    for step in wanted.steps[found - _FIRST :]:
        step(connection)
    connection.execute(sa.delete(_formats).where(_formats.c.store == wanted.store))
    row = {"store": wanted.store, "format": wanted.number, "release": version("tocsin")}
    connection.execute(sa.insert(_formats).values(**row))


def check_format(connection: Connection, wanted: StoredFormat) -> None:
    """Raise unless the store has exactly this format. Changes nothing."""
    present = set(sa.inspect(connection).get_table_names())
    if not present.issuperset({_formats.name, *wanted.tables.tables}):  # another store may share the database
        raise TocsinError(Code.NOT_FOUND, f"there is no {wanted.store} yet: start the process that writes it first")
    found = _format_of(connection, wanted)
    if found != wanted.number:
        raise TocsinError(
            Code.NEWER_FORMAT if found > wanted.number else Code.NOT_READY,
            f"the {wanted.store} has format {found}, and Tocsin {version('tocsin')} reads format {wanted.number}: "
            "start the release of the process that writes it",
        )


def _format_of(connection: Connection, wanted: StoredFormat) -> int:
    found: int | None = connection.scalar(sa.select(_formats.c.format).where(_formats.c.store == wanted.store))
    if found is not None:
        return found
    present = set(sa.inspect(connection).get_table_names())
    return _FIRST if present.intersection(wanted.tables.tables) else wanted.number


def _add_missing_parts(connection: Connection, tables: sa.MetaData) -> None:
    """Add columns and indexes to tables that an earlier release created. Such columns may be NULL, because old rows
    lack them."""
    present = sa.inspect(connection)
    for table in tables.sorted_tables:
        names = {column["name"] for column in present.get_columns(table.name)}
        for column in table.columns:
            if column.name not in names:
                described = sa.schema.CreateColumn(column).compile(connection)
                connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {described}"))
        for index in table.indexes:
            index.create(connection, checkfirst=True)
