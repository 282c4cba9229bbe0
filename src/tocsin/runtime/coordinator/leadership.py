"""The lease of a coordinator, and the keys that the next leader needs to sign and to verify [decision 26].

With an SQLite store the lock of the state folder is the lease. With a PostgreSQL store the lease is in the store; each
coordinator has a state folder of its own, and the leader keeps a copy of the signing key and of the retired keys in the
store, because all tokens of the network depend on them.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from tocsin.database.lease import Holder, Lease, LeaseState
from tocsin.runtime.coordinator.key_ring import KEY_FILE, RETIRED_FILE
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.coordinator.store import CoordinatorStore
from tocsin.runtime.http.listening import write_secret
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import NotLeading

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Leadership:
    """`lead` waits in a thread until this process leads. The state folder is locked already."""

    def __init__(self, settings: CoordinatorSettings, address: str, announce: Callable[[], None]) -> None:
        """`announce` is called once, on the loop, when another coordinator leads."""
        self._loop = asyncio.get_running_loop()
        self._standby = settings.standby
        self._announce = announce
        self._leader: LeaseState | None = None
        self._stopped = threading.Event()
        self.uses_lock_only = sa.make_url(settings.store_url()).get_backend_name() == "sqlite"
        # The lock of the folder proves to the next process in the same folder that this one is dead.
        self._place = _place(settings.state_folder())
        duration_s = math.inf if self.uses_lock_only else settings.lease_s
        self.lease = Lease(settings.store_url(), "coordinator", Holder(address, self._place), duration_s)
        self.lease.on_waiting = self._note_leader

    async def lead(self) -> bool:
        """Return True when this process leads, False if `stop` was called before."""
        leads = await asyncio.to_thread(
            self.lease.acquire, standby=self._standby, stopped=self._stopped.is_set, is_dead=self._is_dead
        )
        if leads and self._leader is not None:
            logger().info("took over", epoch=self.lease.epoch, former=self._leader.address)
        self._leader = None
        return leads

    def stop(self) -> None:
        self._stopped.set()

    def refusal(self) -> NotLeading | None:
        """Why this process must not answer; None if it leads."""
        leader = self._leader
        if leader is not None:
            where = leader.address or "an unknown address"
            return NotLeading(f"this coordinator is a standby: the leader is at {where}", leader.address)
        if not self.lease.is_held():
            return NotLeading("this coordinator does not lead: its lease is not renewed, or it is starting")
        return None

    def _is_dead(self, state: LeaseState | None) -> bool:
        return self.uses_lock_only or (state is not None and self._place != "" and state.machine == self._place)

    def _note_leader(self, state: LeaseState) -> None:
        is_first, self._leader = self._leader is None, state
        if is_first and self._standby:
            logger().info("standby: waiting for the lease", leader=state.address, epoch=state.epoch)
            self._loop.call_soon_threadsafe(self._announce)


def share_keys(store: CoordinatorStore, folder: Path) -> bool:
    """Write the keys of the store into the folder, and return True. If the store has none, it gets the folder's."""
    stored = store.keys()
    if KEY_FILE not in stored:
        keep_keys(store, folder)
        return False
    for name in (KEY_FILE, RETIRED_FILE):
        path = folder / name
        if name in stored:
            write_secret(path, stored[name].rstrip("\n"))
        else:
            path.unlink(missing_ok=True)
    return True


def keep_keys(store: CoordinatorStore, folder: Path) -> None:
    """Store the keys of the folder, after they changed."""
    paths = [folder / name for name in (KEY_FILE, RETIRED_FILE)]
    store.keep_keys({path.name: path.read_text(encoding="utf-8") for path in paths if path.exists()})


def _place(folder: Path) -> str:
    """Names the lock of this folder on this boot of the machine; "" if the machine has no such name."""
    try:
        lock = (folder / "lock").stat()
        return f"{_BOOT.read_text(encoding='ascii').strip()} {lock.st_dev}:{lock.st_ino}"
    except OSError:
        return ""
