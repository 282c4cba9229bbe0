"""Which process may write to a data root [decision 26].

With an SQLite catalog the lock of the state folder is the lease: all processes are on one machine, and the kernel ends
the lock with its process. With a PostgreSQL catalog the lease is in the catalog and is renewed, because another machine
does not see the lock. The lock then only proves to a process on the same machine that a leader is dead. In both cases
every transaction checks the epoch of the lease.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Callable
from dataclasses import replace

import sqlalchemy as sa

from tocsin.cluster.retention import machine_uptime
from tocsin.cluster.settings import LEASE_S, ClusterSettings
from tocsin.cluster.store.storage import lock_root
from tocsin.database.lease import Holder, Lease, LeaseState


class RootLease:
    """`acquire` it before the data root is opened, and `release` it after the root is closed."""

    def __init__(self, settings: ClusterSettings, lease_s: float = LEASE_S, address: str = "") -> None:
        self._folder = settings.state_folder()
        self._folder.mkdir(parents=True, exist_ok=True)
        url = settings.catalog_url()
        self._has_lock_only = sa.make_url(url).get_backend_name() == "sqlite"
        self._place = ""
        self._lock: int | None = lock_root(self._folder) if self._has_lock_only else None
        try:
            self.lease = Lease(url, "data cluster", Holder(address), math.inf if self._has_lock_only else lease_s)
        except BaseException:
            self._unlock()
            raise

    def acquire(self, *, standby: bool = False, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait until this process may write. Return False if `stopped` says so first. See `Lease.acquire`."""
        try:
            return self.lease.acquire(standby=standby, stopped=stopped, is_dead=self._is_dead)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        self.lease.release()
        self._unlock()

    def _is_dead(self, state: LeaseState | None) -> bool:
        """True if the leader's process has ended: it had the lock of the folder on this machine, and has it no more.

        Takes the lock if it is free.
        """
        if self._has_lock_only:
            return True
        if self._lock is None:
            self._lock = _try_lock(str(self._folder / "lock"))
            if self._lock is not None:
                self._place = _place(self._lock)
                self.lease.holder = replace(self.lease.holder, machine=self._place)
        if self._lock is None or state is None:
            return False
        return self._place != "" and state.machine == self._place

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _try_lock(path: str) -> int | None:
    """A descriptor that holds the lock until it is closed; None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _place(lock: int) -> str:
    """Names this lock on this boot of the machine; "" if the boot has no name."""
    boot, found = machine_uptime().boot, os.fstat(lock)
    return "" if boot is None else f"{boot} {found.st_dev}:{found.st_ino}"
