"""`tocsin gateway`: a listening server that accepts records into shared logs. It has neither Spark nor state.

It has the data cluster's settings, and its routes for records: `POST /v1/datasets/{name}/records`, the WebSocket
`/v1/datasets/{name}/stream`, and the route of brokers that record topics. Everything else is at the data cluster.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import uvicorn
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp

from tocsin.cluster.server.gateway.process import GatewayProcess
from tocsin.cluster.server.metrics import ClusterMetrics
from tocsin.cluster.server.process import ClusterProcess
from tocsin.cluster.server.routes import ClusterContext, records, topic_records
from tocsin.cluster.server.routes.authentication import authenticate
from tocsin.cluster.server.routes.context import context_of
from tocsin.cluster.server.routes.records import MESSAGE_BYTES
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.cluster.server.tokens import TokenStore
from tocsin.runtime.http.answers import answer
from tocsin.runtime.http.application import make_application
from tocsin.runtime.http.audit import open_audit_log
from tocsin.runtime.http.bounded_protocols import BoundedWebSocket, make_http_class
from tocsin.runtime.http.half_open import HalfOpenConnections
from tocsin.runtime.http.listening import CLOSE_S, Server, listen, stop_on_signals, url_host
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.trusted_keys import POLL_S, TrustedKeys, external_keys

SWITCH_S = 0.0002
"""How long a thread holds Python's interpreter while another waits for it: see the data cluster's server."""
PART = "gateway"
router = APIRouter(tags=["status"])


@router.get("/healthz", response_class=Response)
async def alive() -> Response:
    return answer({"alive": True})


@router.get("/readyz", response_class=Response)
async def ready(request: Request) -> Response:
    reasons = context_of(request).process.reasons_not_ready()
    return answer({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@router.get("/metrics", response_class=Response)
def metrics(request: Request) -> Response:
    return Response(context_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


def make_gateway_app(context: ClusterContext) -> ASGIApp:
    description = "Accepts records into datasets with shared logs. Calls under /v1 need a bearer token."
    routes = make_application(PART, description, context, (records.router, topic_records.router, router))
    return authenticate(records.publishing_first(routes), context)


class GatewayServer:
    """`run` it in an event loop. `ready` is called with the address."""

    def __init__(self, settings: ClusterProcessSettings, ready: Callable[[str], None] = lambda address: None) -> None:
        self.settings = settings
        self._ready = ready
        self._stop = asyncio.Event()
        self.process = GatewayProcess(settings.cluster)
        # The routes of records use only those parts of a data cluster's process that a gateway has too.
        self.context = ClusterContext(cast("ClusterProcess", self.process), ClusterMetrics(), settings)
        self.context.audit = open_audit_log(settings, PART)
        if settings.keys is not None:
            external = external_keys(settings.oidc, insecure=settings.insecure)
            self.context.keys = TrustedKeys(
                settings.keys,
                insecure=settings.insecure,
                ca=settings.keys_ca,
                kept=None,
                poll_s=POLL_S,
                external=external,
            )
            self.context.keys.on_change = self.context.end_revoked
        self.address = ""

    def stop(self) -> None:
        """Begin to stop the server. Call it in the loop's thread."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until a signal or `stop`."""
        settings = self.settings
        sys.setswitchinterval(SWITCH_S)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32, "blocking"))
        listening = listen(settings.host, settings.port)
        scheme = "http" if settings.tls_cert is None else "https"
        self.address = f"{scheme}://{url_host(settings.host)}:{listening.getsockname()[1]}"
        half_open = HalfOpenConnections(settings.half_open, settings.login_s)
        server = Server(
            uvicorn.Config(
                make_gateway_app(self.context),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                proxy_headers=False,
                http=make_http_class(half_open, settings.tls_cert, settings.tls_key),
                ws=BoundedWebSocket,
                ws_max_size=min(settings.cluster.limits.body_bytes, MESSAGE_BYTES) + 1024,
                ws_max_queue=4,
                ws_per_message_deflate=False,
                timeout_graceful_shutdown=CLOSE_S,
            )
        )
        with stop_on_signals(self._stop):
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            sweeping = asyncio.create_task(half_open.sweep_forever())
            starting = asyncio.create_task(self._start())
            stopping = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait((starting, stopping, serving), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    await starting  # raises the reason if the start failed
                    await asyncio.wait((stopping, serving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (starting, stopping, sweeping):
                    task.cancel()
                await self._close(server, serving)

    async def _start(self) -> None:
        datasets = await self.process.start()
        if self.context.keys is not None:
            await self.context.keys.start()
        self.context.tokens = await asyncio.to_thread(TokenStore, datasets.catalog, time.time, time.monotonic)
        self.context.in_background(self.context.end_expired())
        logger().info("listening", address=self.address)
        self._ready(self.address)

    async def _close(self, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
        logger().info("stopping")
        try:
            if self.context.keys is not None:
                await self.context.keys.stop()
            self.process.begin_stop()
            await self.context.publishers_answered(CLOSE_S)
            await self.process.stop()
        finally:
            server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            if self.context.audit is not None:
                await asyncio.to_thread(self.context.audit.close)
