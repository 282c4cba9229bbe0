"""A lease in a SQL database: one process at a time leads, and only the leader's transactions commit [decision 26].

`LeaseTable` has the SQL, `Silence` decides when a lease has ended, `Lease` keeps it in a thread. No clock is compared
with one of another machine: the leader counts from before it requested a renewal, a standby from after it saw one.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.database.database import Database, session_options
from tocsin.database.formats import StoredFormat
from tocsin.wire.errors import Code, NotLeading, TocsinError

CLOCK_RATES = 1.1
"""A standby waits this many times the duration: the rates of two clocks may differ by 10 %."""
MARGIN_S = 0.5
"""And this much longer."""
POLL_S = 0.25
"""Pause between two looks of a standby."""
RENEWALS = 4
"""The leader renews this many times in the duration of its lease."""
_ANSWER_MS = 2_000
"""The longest statement and the longest wait for a lock of the lease's own session."""
_BOOT_TIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

_tables = sa.MetaData()
_leases = sa.Table(
    "leases",
    _tables,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),  # every transaction of the leader locks and compares it
)
_beats = sa.Table(
    "lease_beats",
    _tables,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),  # counts the renewals of this epoch
    sa.Column("duration_s", sa.Float, nullable=False),
    sa.Column("released", sa.Boolean, nullable=False),
    sa.Column("session", sa.Text, nullable=False),  # names the leader's database sessions
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("machine", sa.Text, nullable=False),  # of the leader, if its machine can tell when it is dead; or empty
)
_FORMAT = StoredFormat("leases", _tables)


class LeaseLost(NotLeading):
    """Another process leads. What this process had not committed is not committed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another {name} has taken over: this one commits nothing more")


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lease or wants it."""

    address: str = ""
    machine: str = ""
    """Names the machine if a lock there ends with the process: see `Lease.acquire`."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    epoch: int
    beat: int
    duration_s: float
    released: bool
    session: str
    address: str
    machine: str


class Silence:
    """How long a lease has not been renewed, by the clock of the process that looks."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._since_s = 0.0
        self.renewed = False
        """True if the lease was renewed between two looks: its leader lives."""

    def observe(self, state: LeaseState, now_s: float) -> bool:
        """Note a look that was finished at `now_s`. Return True if the lease has certainly ended at the leader too."""
        seen = (state.epoch, state.beat)
        if seen != self._seen:
            self.renewed = self.renewed or self._seen is not None
            self._seen, self._since_s = seen, now_s
        return now_s - self._since_s >= CLOCK_RATES * state.duration_s + MARGIN_S

    def interrupted(self) -> None:
        """Note a look that failed. The leader may have been without the database too: it gets its time again."""
        self._seen = None


class LeaseTable:
    def __init__(self, url: str) -> None:
        # PostgreSQL ends a session of a process that was stopped in the middle of a transaction.
        self._database = Database(url, _FORMAT, connect_args=session_options(url, "tocsin lease", _ANSWER_MS))

    def close(self) -> None:
        self._database.close()

    def read(self, name: str) -> LeaseState | None:
        columns = [column for column in _beats.c if column.name != "name"]
        rows = self._database.rows(sa.select(*columns).where(_beats.c.name == name))
        return LeaseState(**rows[0]._mapping) if rows else None

    def take(self, name: str, seen: LeaseState | None, session: str, holder: Holder, duration_s: float) -> int | None:
        """Begin a new epoch and return it; None if another process has changed the lease since it was `seen`."""
        if seen is not None:
            self._end_sessions(seen.session)
        epoch = 1 if seen is None else seen.epoch + 1
        row = {
            "epoch": epoch,
            "beat": 0,
            "duration_s": duration_s,
            "released": False,
            "session": session,
            "address": holder.address,
            "machine": holder.machine,
        }
        try:
            with self._database.write() as connection:
                if seen is None:
                    connection.execute(sa.insert(_beats).values(name=name, **row))
                    connection.execute(sa.insert(_leases).values(name=name, epoch=epoch))
                    return epoch
                unchanged = sa.and_(_of(_beats, name, seen.epoch), _beats.c.beat == seen.beat)
                if connection.execute(sa.update(_beats).where(unchanged).values(**row)).rowcount != 1:
                    return None
                # Waits until a transaction of the former leader that has passed its check has ended.
                connection.execute(sa.update(_leases).where(_leases.c.name == name).values(epoch=epoch))
                return epoch
        except sa.exc.IntegrityError:
            return None

    def renew(self, name: str, epoch: int) -> bool:
        """Count a renewal. Return False if the epoch has ended."""
        with self._database.write() as connection:
            statement = sa.update(_beats).where(_of(_beats, name, epoch)).values(beat=_beats.c.beat + 1)
            return connection.execute(statement).rowcount == 1

    def release(self, name: str, epoch: int) -> None:
        with self._database.write() as connection:
            connection.execute(sa.update(_beats).where(_of(_beats, name, epoch)).values(released=True))

    def _end_sessions(self, session: str) -> None:
        """End the former leader's sessions: a stopped process would hold the locks of its transaction for ever."""
        with self._database.write() as connection:
            if connection.dialect.name == "postgresql":
                ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :session"
                connection.execute(sa.text(ended), {"session": session})


class Lease:
    """Thread-safe. `acquire` it once; from then on a thread renews it until `release`."""

    def __init__(
        self,
        url: str,
        name: str,
        holder: Holder,
        duration_s: float,
        clock_s: Callable[[], float] | None = None,
    ) -> None:
        """`duration_s` is infinite if a lock of the machine protects the store, so that no renewals are needed."""
        self.name = name
        self.session = f"tocsin:{secrets.token_hex(8)}"
        """The application name of the leader's database sessions."""
        self.epoch = 0
        self.is_clean = True
        """False if the leader of the former epoch may still run, and write to files."""
        self.on_lost: Callable[[], object] = lambda: None
        """Called once, from the thread, when another process has taken the lease."""
        self.on_waiting: Callable[[LeaseState], None] = lambda state: None
        """Called again and again while another process holds the lease."""
        self._table = LeaseTable(url)
        self.holder = holder
        """Stored when this process takes the lease."""
        self._duration_s = duration_s
        self._renews = duration_s < float("inf")
        self._clock_s = clock_s or boot_clock_s
        self._until_s = 0.0
        self._lost = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(
        self,
        *,
        standby: bool,
        stopped: Callable[[], bool] = lambda: False,
        is_dead: Callable[[LeaseState | None], bool] = lambda state: False,
        sleep: Callable[[float], object] = time.sleep,
    ) -> bool:
        """Wait until this process leads. Return False if `stopped` says so first.

        Raises IN_USE if another process renews the lease, unless this one is a `standby`. `is_dead` may prove that the
        holder's process has ended, so that there is nothing to wait for.
        """
        silence = Silence()
        while not stopped():
            try:
                began_s = self._clock_s()
                state = self._table.read(self.name)
                ended = is_dead(state) or state is None or state.released
                if ended or (state is not None and silence.observe(state, self._clock_s())):
                    epoch = self._table.take(self.name, state, self.session, self.holder, self._stored_duration_s)
                    if epoch is not None:
                        self._lead(epoch, began_s, is_clean=ended)
                        return True
            except sa.exc.SQLAlchemyError:
                if not standby:
                    raise
                silence.interrupted()
            else:
                if state is not None:
                    self.on_waiting(state)
                    if silence.renewed and not standby:
                        where = f" at {state.address}" if state.address else ""
                        message = f"another {self.name} leads{where}: stop it, or start this one as its standby"
                        raise TocsinError(Code.IN_USE, message)
            sleep(POLL_S)
        return False

    @property
    def _stored_duration_s(self) -> float:
        return self._duration_s if self._renews else 0.0

    @property
    def renews(self) -> bool:
        """False if a lock of the machine is all of the lease."""
        return self._renews

    def follows(self, epoch: int) -> bool:
        """True if no other process can still write to files that only the leader of `epoch` and those before it used.

        The end of the former term proves nothing for files that its leader has not opened: the one before may run.
        """
        return epoch == self.epoch or (self.is_clean and (not self._renews or epoch == self.epoch - 1))

    def _lead(self, epoch: int, began_s: float, *, is_clean: bool) -> None:
        self.epoch, self.is_clean = epoch, is_clean
        self._until_s = began_s + self._duration_s
        if self._renews:
            self._thread = threading.Thread(target=self._renew, name=f"lease of the {self.name}", daemon=True)
            self._thread.start()

    def is_held(self) -> bool:
        """True if no other process can have taken the lease yet. A process that was stopped gets False first."""
        return not self._lost and self._clock_s() < self._until_s

    def require(self) -> None:
        """Raise unless the lease is held."""
        if not self.is_held():
            raise NotLeading(f"this {self.name} may have lost its lease: its database does not answer")

    def check(self, connection: Connection) -> None:
        """Let a transaction commit only if this process leads. The lease is not taken before the transaction ends."""
        epoch = sa.select(_leases.c.epoch).where(_leases.c.name == self.name).with_for_update(read=True)
        if connection.scalar(epoch) != self.epoch:
            self._lose()
            raise LeaseLost(self.name)

    def release(self) -> None:
        """Let a standby take over at once. Call it after the last transaction."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(2 * _ANSWER_MS / 1e3)
        try:
            if self.epoch and not self._lost:
                self._table.release(self.name, self.epoch)
        except sa.exc.SQLAlchemyError:
            pass  # a standby waits until the lease has ended
        finally:
            self._until_s = 0.0
            self._table.close()

    def _renew(self) -> None:
        while not self._ended.wait(self._duration_s / RENEWALS):
            began_s = self._clock_s()
            try:
                renewed = self._table.renew(self.name, self.epoch)
            except sa.exc.SQLAlchemyError:
                continue  # tried again; meanwhile `is_held` becomes False by itself
            if not renewed:
                self._lose()
                return
            self._until_s = began_s + self._duration_s

    def _lose(self) -> None:
        was_lost, self._lost = self._lost, True
        if not was_lost:
            self.on_lost()


def boot_clock_s() -> float:
    """A clock without steps that also counts while the machine sleeps, where the system has such a clock."""
    return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)


def _of(table: sa.Table, name: str, epoch: int) -> Any:
    return sa.and_(table.c.name == name, table.c.epoch == epoch)
