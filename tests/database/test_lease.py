"""Leases: one leader at a time, and only its transactions commit; on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests import postgresql
from tocsin.database.database import Database
from tocsin.database.formats import StoredFormat
from tocsin.database.lease import CLOCK_RATES, MARGIN_S, Holder, Lease, LeaseLost, LeaseState, Silence
from tocsin.wire.errors import Code, TocsinError

TABLES = sa.MetaData()
notes = sa.Table("notes", TABLES, sa.Column("text", sa.String(40)))
FORMAT = StoredFormat("notes", TABLES)
NAME = "clerk"
NEVER_RENEWED_S = 100.0
"""So long that no test waits for a renewal of the thread."""


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


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def lease(url: str, clock: Clock, duration_s: float = NEVER_RENEWED_S, address: str = "") -> Lease:
    return Lease(url, NAME, Holder(address), duration_s, clock)


def write(url: str, guard: Lease, text: str) -> None:
    database = Database(url, FORMAT, guard)
    try:
        database.execute(sa.insert(notes).values(text=text))
    finally:
        database.close()


def written(url: str) -> list[str]:
    database = Database(url, FORMAT)
    texts = [row.text for row in database.rows(sa.select(notes))]
    database.close()
    return texts


def take_over(url: str, clock: Clock) -> Lease:
    standby = lease(url, clock)
    assert standby.acquire(standby=True, sleep=clock.sleep)
    return standby


def test_standby_leads_only_after_the_lease_has_ended_by_its_own_clock(url: str) -> None:
    leader_clock, standby_clock = Clock(), Clock()
    first = lease(url, leader_clock)
    assert first.acquire(standby=False)
    second = take_over(url, standby_clock)
    assert standby_clock.now_s - 100 >= CLOCK_RATES * NEVER_RENEWED_S + MARGIN_S
    assert second.epoch == first.epoch + 1 and not second.is_clean
    first.release()
    second.release()


def test_transaction_of_the_former_leader_is_refused_whole(url: str) -> None:
    clock = Clock()
    first = lease(url, clock)
    first.acquire(standby=False)
    write(url, first, "first")
    lost = threading.Event()
    first.on_lost = lost.set
    second = take_over(url, clock)
    with pytest.raises(LeaseLost):
        write(url, first, "late")
    write(url, second, "second")
    assert written(url) == ["first", "second"] and lost.is_set() and not first.is_held()
    first.release()
    second.release()


def test_released_lease_is_taken_at_once(url: str) -> None:
    clock = Clock()
    first = lease(url, clock)
    first.acquire(standby=False)
    first.release()
    second = lease(url, clock)
    assert second.acquire(standby=False, sleep=clock.sleep) and second.is_clean
    assert clock.now_s == 100
    second.release()


def test_lease_of_a_process_that_is_proven_dead_is_taken_at_once(url: str) -> None:
    clock = Clock()
    first = lease(url, clock)
    first.acquire(standby=False)
    second = lease(url, clock)
    assert second.acquire(standby=False, is_dead=lambda _: True, sleep=clock.sleep)
    assert clock.now_s == 100 and second.epoch == 2
    first.release()  # a lease that is lost cannot be released for the new leader
    assert second.is_held()
    write(url, second, "second")
    second.release()


def test_second_process_is_refused_while_the_first_renews(url: str) -> None:
    clock = Clock()
    first = lease(url, Clock(), duration_s=0.2, address="http://127.0.0.1:1")
    first.acquire(standby=False)
    second = lease(url, clock, duration_s=0.2)
    with pytest.raises(TocsinError, match="http://127") as error:
        second.acquire(standby=False, sleep=lambda _: threading.Event().wait(0.1))
    assert error.value.code is Code.IN_USE
    first.release()
    second.release()


def test_leader_counts_from_before_its_renewal(url: str) -> None:
    clock = Clock()
    first = lease(url, clock)
    first.acquire(standby=False)
    clock.now_s += NEVER_RENEWED_S - 0.001
    assert first.is_held()
    clock.now_s += 0.001
    assert not first.is_held()
    first.release()


def test_stop_ends_the_wait_of_a_standby(url: str) -> None:
    first = lease(url, Clock())
    first.acquire(standby=False)
    second, looks = lease(url, Clock()), iter([False, False, True])
    assert not second.acquire(standby=True, stopped=lambda: next(looks), sleep=lambda _: None)
    first.release()
    second.release()


def test_takeover_ends_an_open_transaction_of_the_former_leader(server: str) -> None:
    postgresql.make_empty(server)
    clock = Clock()
    first = lease(server, clock)
    first.acquire(standby=False)
    database = Database(server, FORMAT, first)
    with pytest.raises(sa.exc.SQLAlchemyError), database.write() as connection:
        connection.execute(sa.insert(notes).values(text="half"))  # the process is stopped here
        second = take_over(server, clock)
        connection.execute(sa.insert(notes).values(text="late"))
    assert written(server) == []
    database.close()
    first.release()
    second.release()


def test_silence_begins_again_after_a_look_that_failed() -> None:
    state = LeaseState(1, 7, 2.0, False, "s", "", "")
    silence = Silence()
    assert not silence.observe(state, 0.0)
    silence.interrupted()
    assert not silence.observe(state, 10.0)
    assert silence.observe(state, 10.001 + CLOCK_RATES * 2.0 + MARGIN_S) and not silence.renewed
