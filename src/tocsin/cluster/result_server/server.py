"""`tocsin results`: serves pulls of results from the catalog and the files, without Spark and without a lease.

Brokers pull from any of several such processes, and go on to the next when one fails. Subscriptions, announcements and
records stay with the data cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp

from tocsin.cluster.catalog import Catalog
from tocsin.cluster.pulling import ResultSource
from tocsin.cluster.result_server.settings import ResultServerSettings
from tocsin.cluster.server.metrics import ClusterMetrics
from tocsin.cluster.server.routes import results
from tocsin.cluster.server.routes.authentication import authenticate
from tocsin.cluster.server.routes.context import ClusterContext, context_of
from tocsin.cluster.server.tokens import TokenStore
from tocsin.cluster.stored_results import StoredResults
from tocsin.runtime.http.answers import answer
from tocsin.runtime.http.application import make_application
from tocsin.runtime.http.bounded_protocols import make_http_class
from tocsin.runtime.http.half_open import HalfOpenConnections
from tocsin.runtime.http.listening import CLOSE_S, Server, listen, stop_on_signals, url_host
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.trusted_keys import POLL_S, TrustedKeys
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code, TocsinError

if TYPE_CHECKING:
    from tocsin.cluster.engine import DataCluster

router = APIRouter(tags=["status"])
PART = "result server"
_RETRY_S = 0.5


class ResultContext(ClusterContext):
    """The state that the routes of results share, without a data cluster."""

    def __init__(self, settings: ResultServerSettings, stored: StoredResults, tokens: TokenStore) -> None:
        super().__init__(cast("Any", None), ClusterMetrics(), cast("Any", settings))
        self.tokens = tokens
        self._stored = stored

    @property
    def source(self) -> ResultSource:
        return self._stored

    @property
    def cluster(self) -> DataCluster:
        raise TocsinError(Code.NOT_FOUND, "this process serves results only: ask the data cluster")

    def now_s(self) -> float:
        return time.time()

    def require_open(self) -> None:
        """The catalog is open as long as this process runs."""


@router.get("/healthz", response_class=Response)
@router.get("/readyz", response_class=Response)
async def ready(request: Request) -> Response:
    """Answer that the process can read the catalog, or 503."""
    source = context_of(request).source
    try:
        await asyncio.to_thread(source.catalog.fact, "ready")
    except Exception as error:
        reason = f"the catalog does not answer ({type(error).__name__})"
        return answer({"ready": False, "reasons": [reason]}, 503)
    return answer({"ready": True, "reasons": []})


@router.get("/metrics", response_class=Response)
def metrics(request: Request) -> Response:
    return Response(context_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


@router.post(wire.JOINT_RESULTS, response_class=Response)
async def joint_results() -> Response:
    """Refuse: only the data cluster has the latest results in memory. Brokers then pull each channel by itself."""
    raise TocsinError(Code.NOT_FOUND, "this process reads results from files: pull each channel by itself")


def make_app(context: ResultContext) -> ASGIApp:
    description = "Results of a Tocsin data cluster. Calls under /v1 need a bearer token."
    return authenticate(make_application(PART, description, context, (router, results.router)), context)


class ResultServer:
    """`run` it in an event loop. `ready` is called with the address."""

    def __init__(
        self, settings: ResultServerSettings, ready: Callable[[str, str | None], None] = lambda address, token: None
    ) -> None:
        self.settings = settings
        self._ready = ready
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Begin to stop the server. Call it in the loop's thread."""
        self._stop.set()

    async def run(self) -> None:
        settings = self.settings
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32, "blocking"))
        catalog = await self._open()
        tokens = await asyncio.to_thread(TokenStore, catalog, time.time, time.monotonic)
        context = ResultContext(settings, StoredResults(catalog, settings.cluster().storage()), tokens)
        if settings.keys is not None:
            context.keys = TrustedKeys(settings.keys, insecure=settings.insecure, ca=settings.keys_ca, poll_s=POLL_S)
            context.keys.on_change = context.end_revoked
            await context.keys.start()
        listening = listen(settings.host, settings.port)
        scheme = "http" if settings.tls_cert is None else "https"
        address = f"{scheme}://{url_host(settings.host)}:{listening.getsockname()[1]}"
        half_open = HalfOpenConnections(settings.half_open, settings.login_s)
        server = Server(
            uvicorn.Config(
                make_app(context),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                proxy_headers=False,
                http=make_http_class(half_open, settings.tls_cert, settings.tls_key),
                timeout_graceful_shutdown=CLOSE_S,
            )
        )
        with stop_on_signals(self._stop):
            tasks = [
                asyncio.create_task(server.serve(sockets=[listening])),
                asyncio.create_task(self._stop.wait()),
            ]
            background = [
                asyncio.create_task(half_open.sweep_forever()),
                asyncio.create_task(context.end_expired()),
            ]
            logger().info("listening", address=address)
            self._ready(address, None)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            for task in (*background, tasks[1]):
                task.cancel()
            await asyncio.gather(*tasks, *background, return_exceptions=True)
        if context.keys is not None:
            await context.keys.stop()
        await asyncio.to_thread(catalog.close)

    async def _open(self) -> Catalog:
        """The catalog, as soon as the data cluster has made it."""
        url, attempts = self.settings.cluster().catalog_url(), 0
        while True:
            try:
                return await asyncio.to_thread(Catalog, url, as_it_is=True)
            except TocsinError as error:
                if error.code is not Code.NOT_FOUND:
                    raise
                attempts += 1
                if attempts == 1:
                    logger().info("waiting for the catalog", reason=error.message)
                await asyncio.sleep(_RETRY_S)
