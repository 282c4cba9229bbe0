"""A broker as a process: settings in, a listening server around a `BrokerProcess`, a clean stop on a signal."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tocsin.runtime.broker.cluster import DataClusterLink
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.broker.coordinator_link import LinkToCoordinator
from tocsin.runtime.broker.metrics import BrokerMetrics
from tocsin.runtime.broker.process import BrokerProcess
from tocsin.runtime.broker.routes import BrokerApi, make_app
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.broker.subscriber_socket import socket_class
from tocsin.runtime.broker.webhooks import WebhookSessions
from tocsin.runtime.http.listening import Server, listen, shown, stop_on_signals
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.trusted_keys import TrustedKeys

_BACKLOG = 4096
_DEAD_MS = 60_000
"""A peer that acknowledges nothing for this long is gone."""


class BrokerServer:
    """`run` it in an event loop. `ready` is told the address subscribers connect to."""

    def __init__(self, settings: BrokerSettings, ready: Callable[[str], None] = lambda address: None) -> None:
        self.settings = settings
        self._ready = ready
        self._stop = asyncio.Event()
        self.process = BrokerProcess(settings)
        self.keys = make_keys(settings)
        self.gate = ConnectionGuard(self.process, self.keys)
        self.metrics = BrokerMetrics()
        self.webhooks = WebhookSessions(self.process, self.metrics)
        self.api = BrokerApi(self.gate, self.metrics, self.webhooks)
        self.cluster = DataClusterLink(self.process)
        self.coordinator = None if settings.coordinator is None else LinkToCoordinator(self.process)
        self.address = ""

    def stop(self) -> None:
        """From the loop's own thread."""
        self._stop.set()

    async def run(self) -> None:
        settings = self.settings
        listening = listen(settings.host, settings.port)
        _watch_for_dead_peers(listening)
        scheme = "ws" if settings.tls_cert is None else "wss"
        self.address = f"{scheme}://{shown(settings.host)}:{listening.getsockname()[1]}"
        server = Server(
            uvicorn.Config(
                make_app(self.api),
                http=_http_class(self.gate),
                ws=socket_class(self.gate),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                date_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_graceful_shutdown=max(1, int(settings.stop_s)),
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
            )
        )
        with stop_on_signals(self._stop):
            await self._start()
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            sweeping = asyncio.create_task(self.gate.sweep())
            stopping = asyncio.create_task(self._stop.wait())
            try:
                while not server.started and not serving.done():
                    await asyncio.sleep(0.005)
                logger().info("listening", address=self.address, broker=settings.id)
                self._ready(self.address)
                await asyncio.wait((stopping, serving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (stopping, sweeping):
                    task.cancel()
                await self._close(server, serving)

    async def _start(self) -> None:
        self.process.cluster = self.cluster
        self.process.coordinator = self.coordinator
        self.process.webhooks = self.webhooks
        self.process.start(self.address)
        self.metrics.watch(self.process, lambda: len(self.gate.waiting), lambda: self.cluster.announcements.heard)
        await self.keys.start()
        self.cluster.start()
        if self.coordinator is not None:
            self.coordinator.start()
            self.cluster.settled = lambda: self.process.core.linked

    async def _close(self, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
        logger().info("stopping")
        self.api.stopping = True
        await self.process.stop()
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        await self.webhooks.stop()
        if self.coordinator is not None:
            await self.coordinator.stop()
        await self.cluster.stop()
        await self.keys.stop()


def make_keys(settings: BrokerSettings) -> TrustedKeys:
    """From a file or an address; what comes from an address is kept, so that the next start does not depend on it."""
    source = settings.keys
    if source is None:
        assert settings.coordinator is not None
        source = settings.coordinator.rstrip("/") + "/v1/keys"
    kept = Path(settings.state) / f"{settings.id}-keys.json"
    return TrustedKeys(source, insecure=settings.insecure, ca=settings.ca, kept=kept)


def _watch_for_dead_peers(listening: socket.socket) -> None:
    """Inherited by every connection: a peer that vanished without a word is noticed."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": _DEAD_MS}
    for name, value in options.items():
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _http_class(gate: ConnectionGuard) -> type[asyncio.Protocol]:
    """uvicorn's own, but a request that does not come to its end counts as a connection that never says who it is."""

    class BoundedHttp(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            gate.waiting.add(self, self.loop.time())

        def connection_lost(self, exc: Exception | None) -> None:
            gate.waiting.remove(self)
            super().connection_lost(exc)

        def on_message_complete(self) -> None:
            gate.waiting.remove(self)
            super().on_message_complete()

        def handle_websocket_upgrade(self) -> None:
            gate.waiting.remove(self)
            super().handle_websocket_upgrade()

        def expire(self) -> None:
            self.transport.abort()

    return BoundedHttp


def run_broker(settings: BrokerSettings, ready: Callable[[str], None]) -> None:
    """In the foreground, on uvloop where it exists."""

    async def run() -> None:
        await BrokerServer(settings, ready).run()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run())


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    return uvloop.new_event_loop
