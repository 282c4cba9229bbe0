"""The coordinator's server: builds a `CoordinatorProcess` from settings, serves it, and stops cleanly on a signal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import Effect
from tocsin.coordinator.planning import Planner
from tocsin.runtime.coordinator.cluster import ClusterReleases
from tocsin.runtime.coordinator.cluster_watch import ClusterWatch
from tocsin.runtime.coordinator.key_ring import KEY_FILE, KeyRing
from tocsin.runtime.coordinator.leadership import Leadership, keep_keys, share_keys
from tocsin.runtime.coordinator.metrics import CoordinatorMetrics
from tocsin.runtime.coordinator.neighbour_file import read_neighbours
from tocsin.runtime.coordinator.neighbours import NeighbourConnections
from tocsin.runtime.coordinator.process import CoordinatorProcess
from tocsin.runtime.coordinator.routes import CoordinatorContext, make_app
from tocsin.runtime.coordinator.session_tokens import (
    hand_over_signer,
    neighbour_check,
    session_proofs,
    visitor_signer,
)
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.coordinator.store import CoordinatorStore
from tocsin.runtime.coordinator.watch import CoordinatorWatch
from tocsin.runtime.http.audit import open_audit_log
from tocsin.runtime.http.bounded_protocols import BoundedWebSocket, make_http_class
from tocsin.runtime.http.half_open import HalfOpenConnections
from tocsin.runtime.http.listening import CLOSE_S, Server, listen, stop_on_signals, url_host, write_secret
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.standby import answering_as_standby, leading_only
from tocsin.runtime.http.trusted_keys import external_keys
from tocsin.wire.errors import Code, TocsinError

__all__ = ["ADMIN_TOKEN_FILE", "KEY_FILE", "CoordinatorServer"]

ADMIN_TOKEN_FILE = "admin-token"
_HOUR_S = 3_600.0
_FRAME_BYTES = 64 << 20
"""The largest frame. It is large, because a broker lists all its subscribers when it registers."""


class CoordinatorServer:
    """`run` it in an event loop."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        ready: Callable[[str, str | None], None] = lambda address, token: None,
        planners: Mapping[str, Planner] | None = None,
        pages: Path | None = None,
    ) -> None:
        """`ready` is called with the address, and with the first admin token if this start made one.

        `pages` is the folder of the dashboard; None serves no dashboard.
        """
        self.settings = settings
        self._ready = ready
        self._planners = planners
        self._pages = pages
        self._stop = asyncio.Event()
        self.address = ""
        self._announced = False

    def stop(self) -> None:
        """Begin to stop the server. Call it from the loop's own thread."""
        self._stop.set()

    async def run(self) -> None:
        folder = self.settings.state_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        listening = listen(self.settings.host, self.settings.port)
        scheme = "http" if self.settings.tls_cert is None else "https"
        self.address = f"{scheme}://{url_host(self.settings.host)}:{listening.getsockname()[1]}"
        try:
            with _locked(folder), stop_on_signals(self._stop):
                leadership = self.leadership = Leadership(self.settings, self.address, self._announce)
                try:
                    if await self._lead(listening, leadership):
                        await self._run(folder, listening, leadership)
                finally:
                    await asyncio.to_thread(leadership.lease.release)
        finally:
            listening.close()

    def _announce(self) -> None:
        """A supervisor knows that this standby is up."""
        self._announced = True
        self._ready(self.address, None)

    async def _lead(self, listening: socket.socket, leadership: Leadership) -> bool:
        """Return True when this process leads. A standby refuses requests until then."""
        if leadership.uses_lock_only:
            return await leadership.lead()
        settings = self.settings
        tls = {"ssl_certfile": settings.tls_cert, "ssl_keyfile": settings.tls_key} if settings.tls_cert else {}
        async with answering_as_standby(listening, leadership.refusal, **tls):
            leading, stopping = asyncio.create_task(leadership.lead()), asyncio.create_task(self._stop.wait())
            await asyncio.wait((leading, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            leadership.stop()
            return await leading

    async def _run(self, folder: Path, listening: socket.socket, leadership: Leadership) -> None:
        settings = self.settings
        epoch = secrets.token_hex(4)
        store = await asyncio.to_thread(CoordinatorStore, settings.store_url(), epoch, leadership.lease)
        # To replace a lost admin token, an administrator removes its file. Removing the file needs the same permissions
        # as reading the key beside it.
        token_removed = settings.token_file and not (folder / ADMIN_TOKEN_FILE).exists()
        needs_token = token_removed or not (folder / KEY_FILE).exists()
        keys = KeyRing(folder, time.time)  # the first start makes the key
        if not leadership.uses_lock_only:
            if await asyncio.to_thread(share_keys, store, folder):
                needs_token = token_removed
            keys = KeyRing(folder, time.time)
        audit = open_audit_log(settings, "coordinator")
        external = next(iter(external_keys(settings.oidc, insecure=settings.insecure)), None)
        if not leadership.uses_lock_only:
            keys.on_change = lambda: keep_keys(store, folder)
        releases = ClusterReleases(settings, keys.signer)
        rules = settings.rules
        if settings.neighbours is not None and rules.site is not None:
            file = Path(settings.neighbours).absolute()
            rules = replace(rules, neighbours=read_neighbours(file, rules.site, insecure=settings.insecure))
        process = self.process = CoordinatorProcess(
            rules,
            store,
            epoch,
            hand_over_signer(keys, time.time, settings.session_hours * _HOUR_S),
            proves=session_proofs(keys, external, time.time),
            admits=neighbour_check(keys, time.time),
            host=visitor_signer(keys, time.time, rules.site_visit_s),
            planners=self._planners,
            tick_s=settings.tick_s,
            release_at_cluster=releases.release,
            keep_at_cluster=releases.keep,
            refusal=leadership.refusal,
        )
        loop = asyncio.get_running_loop()
        leadership.lease.on_lost = lambda: loop.call_soon_threadsafe(process.lose_lease)
        releases.done = process.post
        if rules.site is not None:
            process.neighbours = NeighbourConnections(rules.site, rules.neighbours, process.post)
        watch = CoordinatorWatch(settings, process.now_s)

        def handled(core: Coordinator | None, effects: Iterable[Effect], at_s: float) -> None:
            watch.handled(core, effects, at_s)
            self.context.revocations_changed(core)
            self.context.topic_changes.handled(core)

        process.on_handled = handled
        cluster_watch = ClusterWatch(settings, keys.signer, watch)
        metrics = CoordinatorMetrics(lambda: process.core, lambda: process.neighbours)
        self.context = CoordinatorContext(process, keys, settings, metrics, watch, external, audit)
        expiring = asyncio.create_task(self.context.end_expired())

        async def stop() -> None:
            for part in (cluster_watch, watch, process):
                await part.stop()  # may be called twice

        try:
            await process.start()
            if external is not None:
                await external.start()
            self.context.revocations_changed(process.core)
            await watch.start(process.core)
            cluster_watch.start()
            if process.neighbours is not None:
                process.neighbours.start()
            app = leading_only(make_app(self.context, self._pages), leadership.refusal)
            await self._serve(app, listening, self._first_token(folder) if needs_token else None, stop)
            if process.superseded:
                raise TocsinError(Code.IN_USE, "another coordinator has taken over this store")
            if process.failure is not None:
                reason = f"{type(process.failure).__name__}: {process.failure}"
                raise TocsinError(Code.INTERNAL, f"the coordinator's loop failed ({reason}); the log has the traceback")
        finally:
            expiring.cancel()
            if external is not None:
                await external.stop()
            await releases.stop()
            await stop()
            await asyncio.to_thread(store.close)
            if audit is not None:
                await asyncio.to_thread(audit.close)

    async def _serve(
        self, app: ASGIApp, listening: socket.socket, token: str | None, stop: Callable[[], Awaitable[None]]
    ) -> None:
        """Serve until a signal, a call of `stop`, or the end of the process's loop; then stop everything in order."""
        half_open = HalfOpenConnections(self.settings.half_open, self.settings.login_s)
        server = Server(self._config(app, half_open))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        sweeping = asyncio.create_task(half_open.sweep_forever())
        reasons = [asyncio.create_task(event.wait()) for event in (self._stop, self.process.ended)]
        logger().info("listening", address=self.address)
        if not self._announced or token is not None:
            self._ready(self.address, token)
        await asyncio.wait((serving, *reasons), return_when=asyncio.FIRST_COMPLETED)
        for task in (sweeping, *reasons):
            task.cancel()
        logger().info("stopping")
        await stop()
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)

    def _config(self, app: ASGIApp, half_open: HalfOpenConnections) -> uvicorn.Config:
        return uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            http=make_http_class(half_open, self.settings.tls_cert, self.settings.tls_key),
            ws=BoundedWebSocket,
            ws_max_size=_FRAME_BYTES,
            ws_max_queue=64,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=CLOSE_S,
        )

    def _first_token(self, folder: Path) -> str:
        token, _ = self.context.sign("first-administrator", ["admin"], None)
        if self.settings.token_file:
            write_secret(folder / ADMIN_TOKEN_FILE, token)
        return token


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder. Raises TocsinError if another coordinator runs on it, before this one takes over its store."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TocsinError(Code.IN_USE, f"another coordinator is running on {folder}") from None
        yield
    finally:
        os.close(descriptor)
