"""A data cluster that waits for its lease, holds it, or has lost it [decision 26].

Driven by `ClusterProcess`. `wait` runs in the thread that opens the data cluster, after Spark has started: a standby is
warm, and opens the data root as soon as it leads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tocsin.cluster.root_lease import RootLease
from tocsin.database.lease import LeaseState
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import NotLeading


class Leading:
    """Thread-safe."""

    def __init__(self, *, standby: bool) -> None:
        self._standby = standby
        self._leader: LeaseState | None = None
        """The lease of the process that leads, while this one waits."""
        self._lease: RootLease | None = None
        self._stopped = threading.Event()
        self.on_standby: Callable[[], None] = lambda: None
        """Called once, from another thread, when this process is a standby and warm."""
        self.warm_up: Callable[[], object] = lambda: None
        """Called once by a standby: Spark loads and compiles in its first jobs what every later job needs."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called once, from any thread, when another process has taken the lease."""
        self._log = logger()

    def wait(self, lease: RootLease) -> None:
        """Return when this process leads. Raises NotLeading if `stop` is called first."""
        lease.lease.on_waiting = self._note_leader
        lease.lease.on_lost = lambda: self.on_lost()
        led = lease.acquire(standby=self._standby, stopped=self._stopped.is_set)
        if not led:
            lease.release()
            raise NotLeading("this standby is stopping")
        if self._leader is not None:
            self._log.info("took over", epoch=lease.lease.epoch, former=self._leader.address)
        self._lease, self._leader = lease, None

    def stop(self) -> None:
        """End the wait."""
        self._stopped.set()

    def reason(self) -> str | None:
        """Why this process must not answer for the data root; None if it may."""
        leader = self._leader
        if leader is not None:
            return f"this data cluster is a standby: the leader is at {leader.address or 'an unknown address'}"
        if self._lease is not None and not self._lease.lease.is_held():
            return "this data cluster may have lost its lease: the catalog does not answer"
        return None

    def require(self) -> None:
        """Raise unless this process may answer. What it has read or stored before the call is true for any leader."""
        if refusal := self.refusal():
            raise refusal

    def refusal(self) -> NotLeading | None:
        leader = self._leader
        return NotLeading(reason, leader.address if leader else "") if (reason := self.reason()) else None

    def holds(self) -> bool:
        return self.reason() is None

    def _note_leader(self, state: LeaseState) -> None:
        is_first, self._leader = self._leader is None, state
        if is_first and self._standby:
            self._log.info("standby: waiting for the lease", leader=state.address, epoch=state.epoch)
            threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()

    def _warm_up(self) -> None:
        """Beside the wait: a leader that dies meanwhile is followed at once, only more slowly."""
        try:
            self.warm_up()
        except Exception as error:
            self._log.warning("the warm-up failed: a takeover will take longer", reason=str(error)[:200])
        if not self._stopped.is_set():
            self.on_standby()
