"""The server of an edge node: it puts the parts together, listens, and stops cleanly on a signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import uvicorn

from tocsin.runtime.edge.control_links import Control, ControlClient
from tocsin.runtime.edge.entry_log import EntryLogError
from tocsin.runtime.edge.metrics import EdgeMetrics
from tocsin.runtime.edge.node import NodeProcess
from tocsin.runtime.edge.root import RootProcess
from tocsin.runtime.edge.routes import EdgeContext, make_app
from tocsin.runtime.edge.settings import NodeFile
from tocsin.runtime.http.audit import open_audit_log
from tocsin.runtime.http.bounded_protocols import BoundedWebSocket, make_http_class
from tocsin.runtime.http.half_open import HalfOpenConnections
from tocsin.runtime.http.listening import Server, listen, stop_on_signals, url_host
from tocsin.runtime.http.logs import logger
from tocsin.wire.edge_peer import MESSAGE_BYTES
from tocsin.wire.errors import Code, TocsinError


class EdgeServer:
    """`run` it in an event loop. It calls `ready` with the node's address."""

    def __init__(
        self, file: NodeFile, ready: Callable[[str], None] = lambda address: None, pages: Path | None = None
    ) -> None:
        """`pages`: the folder of the tree view, which the root serves."""
        self.file = file
        self._pages = pages
        self._ready = ready
        self._stop = asyncio.Event()
        self._failed = False
        self.address = ""
        self.node: NodeProcess
        self.root: RootProcess | None = None

    def stop(self) -> None:
        """Begin to stop the server. Call it from the loop's thread."""
        self._stop.set()

    def _fail(self) -> None:
        self._failed = True
        self._stop.set()

    async def run(self) -> None:
        settings, secret = self.file.node, self.file.secret()
        self.file.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        listening = listen(settings.host, settings.port)
        try:
            root = self.root = RootProcess(self.file) if settings.is_root else None
            control: Control
            if root is not None:
                control = root.local
            else:
                assert settings.root is not None, "settings.check demands it"
                control = ControlClient(settings.root, secret)
            node = self.node = NodeProcess(self.file, control, None if root is None else root.on_result)
        except EntryLogError as error:
            listening.close()
            raise TocsinError(Code.IN_USE, str(error)) from error
        except BaseException:
            listening.close()
            raise
        node.on_failure = self._fail
        if root is not None:
            root.on_failure = self._fail
        scheme = "http" if settings.tls_cert is None else "https"
        self.address = f"{scheme}://{url_host(settings.host)}:{listening.getsockname()[1]}"
        half_open = HalfOpenConnections(settings.half_open, settings.login_s)
        audit = open_audit_log(settings, f"edge node {settings.name}")
        app = make_app(EdgeContext(node, root, EdgeMetrics(node, root)), settings, secret, audit, self._pages)
        server = Server(
            uvicorn.Config(
                app,
                http=make_http_class(half_open, settings.tls_cert, settings.tls_key),
                ws=BoundedWebSocket,
                ws_max_size=MESSAGE_BYTES,
                ws_max_queue=64,
                ws_per_message_deflate=False,
                ws_ping_interval=None,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=max(1, int(settings.stop_s)),
            )
        )
        with stop_on_signals(self._stop):
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            sweeping = asyncio.create_task(half_open.sweep_forever())
            stopping = asyncio.create_task(self._stop.wait())
            try:
                while not server.started and not serving.done():
                    await asyncio.sleep(0.005)
                node.start(settings.address or self.address)
                if root is not None:
                    await root.start()
                logger().info("listening", address=self.address, node=settings.name)
                self._ready(self.address)
                await asyncio.wait((stopping, serving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                logger().info("stopping", node=settings.name)
                for task in (stopping, sweeping):
                    task.cancel()
                await node.stop()
                if root is not None:
                    await root.stop()
                server.should_exit = True
                await asyncio.gather(serving, return_exceptions=True)
                if audit is not None:
                    await asyncio.to_thread(audit.close)
        if self._failed:
            raise TocsinError(Code.INTERNAL, "the edge node failed; the log has the traceback")
