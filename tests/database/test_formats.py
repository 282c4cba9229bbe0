"""Formats of stores: created, converted once, refused if they are newer; on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tests import postgresql
from tocsin.database.database import Database
from tocsin.database.formats import StoredFormat
from tocsin.wire.errors import Code, TocsinError

OLD = sa.MetaData()
sa.Table("people", OLD, sa.Column("name", sa.String(40), primary_key=True), sa.Column("metres", sa.Integer))
NEW = sa.MetaData()
people = sa.Table(
    "people",
    NEW,
    sa.Column("name", sa.String(40), primary_key=True),
    sa.Column("metres", sa.Integer),
    sa.Column("millimetres", sa.BigInteger, index=True),
)


def to_millimetres(connection: Connection) -> None:
    connection.execute(sa.update(people).values(millimetres=people.c.metres * 1000, metres=None))


def fail(connection: Connection) -> None:
    connection.execute(sa.delete(people))
    raise RuntimeError("the step fails")


FIRST = StoredFormat("list of people", OLD)
SECOND = StoredFormat("list of people", NEW, (to_millimetres,))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    yield from postgresql.running_or_skipped()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.sqlite'}"
    found: str = request.getfixturevalue("server")
    postgresql.make_empty(found)
    return found


def test_reader_waits_for_a_store_that_another_store_shares_the_database_with(url: str) -> None:
    other = sa.MetaData()
    sa.Table("places", other, sa.Column("name", sa.String(40)))
    Database(url, StoredFormat("list of places", other)).close()
    with pytest.raises(TocsinError, match="no list of people yet") as missing:
        Database(url, SECOND, as_it_is=True)
    assert missing.value.code is Code.NOT_FOUND
    Database(url, FIRST).close()
    with pytest.raises(TocsinError, match="format 1"):
        Database(url, SECOND, as_it_is=True)
    Database(url, SECOND).close()
    Database(url, SECOND, as_it_is=True).close()


def stored(url: str, query: str) -> list[tuple[object, ...]]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(sa.text(query))]
    engine.dispose()
    return rows


def open_and_close(url: str, format: StoredFormat) -> None:
    Database(url, format).close()


def add_person(url: str) -> None:
    database = Database(url, FIRST)
    database.execute(sa.text("INSERT INTO people (name, metres) VALUES ('ann', 12)"))
    database.close()


def format_number(url: str) -> int:
    [(number,)] = stored(url, "SELECT format FROM stored_formats WHERE store = 'list of people'")
    assert isinstance(number, int)
    return number


def test_new_store_has_the_format_of_this_release(url: str) -> None:
    open_and_close(url, SECOND)
    assert format_number(url) == 2


@pytest.mark.parametrize("has_number", [True, False])
def test_older_store_is_converted_once(url: str, has_number: bool) -> None:
    """Also one that was made before formats had numbers."""
    add_person(url)
    if not has_number:
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE stored_formats"))
        engine.dispose()
    for _ in range(2):
        open_and_close(url, SECOND)
        assert stored(url, "SELECT name, metres, millimetres FROM people") == [("ann", None, 12_000)]
        assert format_number(url) == 2


def test_added_column_does_not_change_the_format(url: str) -> None:
    add_person(url)
    open_and_close(url, StoredFormat("list of people", NEW))
    assert stored(url, "SELECT name, metres, millimetres FROM people") == [("ann", 12, None)]
    assert format_number(url) == 1
    open_and_close(url, FIRST)  # the older release opens it too


def test_newer_store_is_refused_and_stays_as_it_is(url: str) -> None:
    add_person(url)
    open_and_close(url, SECOND)
    with pytest.raises(
        TocsinError, match=r"has format 2, .* reads formats up to 1: start Tocsin .* or later"
    ) as refused:
        Database(url, FIRST)
    assert refused.value.code is Code.NEWER_FORMAT
    assert stored(url, "SELECT name, millimetres FROM people") == [("ann", 12_000)]
    assert format_number(url) == 2


def test_failed_step_leaves_the_store_as_it_was(url: str) -> None:
    add_person(url)
    with pytest.raises(RuntimeError, match="the step fails"):
        Database(url, StoredFormat("list of people", NEW, (to_millimetres, fail)))
    assert stored(url, "SELECT * FROM people") == [("ann", 12)]
    assert format_number(url) == 1


def test_two_stores_in_one_database_have_formats_of_their_own(url: str) -> None:
    other = sa.MetaData()
    sa.Table("places", other, sa.Column("name", sa.String(40), primary_key=True))
    open_and_close(url, SECOND)
    open_and_close(url, StoredFormat("list of places", other))
    assert sorted(stored(url, "SELECT store, format FROM stored_formats")) == [
        ("list of people", 2),
        ("list of places", 1),
    ]


def test_every_process_notices_a_server_that_is_cut_off(server: str) -> None:
    postgresql.make_empty(server)
    database = Database(server, FIRST)
    with database.read() as connection:
        options = connection.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]
    assert options["application_name"] == "tocsin"
    assert (options["connect_timeout"], options["tcp_user_timeout"]) == ("3", "6000")
    database.close()
