"""The data cluster as a process: settings in, a listening server around a `ClusterProcess`, a clean stop on a signal.

The port is open before Spark has started, so that a supervisor can tell a slow start from a crash: /healthz answers,
/readyz gives the reasons, and every other path answers 503.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import uvicorn

from tocsin.cluster.engine import DataCluster
from tocsin.cluster.recovery import JVM_END_S
from tocsin.cluster.root_lease import RootLease
from tocsin.cluster.server.metrics import ClusterMetrics
from tocsin.cluster.server.process import ClusterProcess
from tocsin.cluster.server.routes import ClusterContext, make_app
from tocsin.cluster.server.routes.records import MESSAGE_BYTES
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.cluster.server.spark_watch import SparkLost
from tocsin.cluster.server.tokens import TokenStore
from tocsin.cluster.spark.network import use_secret
from tocsin.cluster.spark.session import Session, make_session
from tocsin.cluster.temporary import run_sample_channels
from tocsin.model.ids import ChannelName
from tocsin.runtime.http.audit import open_audit_log
from tocsin.runtime.http.bounded_protocols import BoundedWebSocket, make_http_class
from tocsin.runtime.http.half_open import HalfOpenConnections
from tocsin.runtime.http.listening import CLOSE_S, Server, listen, stop_on_signals, url_host, write_secret
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.standby import leading_only
from tocsin.runtime.http.trusted_keys import POLL_S, TrustedKeys, external_keys
from tocsin.wire.errors import NotLeading

ADMIN_TOKEN_FILE = "admin-token"
SWITCH_S = 0.0002
"""How long a thread holds Python's interpreter while another thread waits for it; Python's default is 5 ms.

A thread that has written or fsynced needs the interpreter again. Behind an event loop that parses records without a
pause, each sync would take several times 5 ms."""
KEYS_FILE = "trusted-keys.json"
"""In the state folder: the keys fetched last, for a start while the coordinator does not answer."""


class ClusterServer:
    """`run` it in an event loop.

    `ready` is called with the address, and with the first admin token at the first start (else None).
    """

    def __init__(
        self,
        settings: ClusterProcessSettings,
        ready: Callable[[str, str | None], None] = lambda address, token: None,
        spark: Session | None = None,
    ) -> None:
        """A `spark` session that is passed in is not stopped at the end."""
        self.settings = settings
        self._ready = ready
        self._given_session = spark
        self._own_session: Session | None = None
        self._stop = asyncio.Event()
        self.metrics = ClusterMetrics()
        self.process = ClusterProcess(
            self._open,
            self.metrics,
            executions=settings.executions,
            maintain_s=settings.maintain_s,
            stop_s=settings.stop_s,
            spark_deadline_s=settings.spark_deadline_s,
            standby=settings.standby,
        )
        self._loop: asyncio.AbstractEventLoop
        self._announced = False
        self.context = ClusterContext(self.process, self.metrics, settings)
        self.context.audit = open_audit_log(settings, "data cluster")
        if settings.keys is not None:
            external = external_keys(settings.oidc, insecure=settings.insecure)
            self.context.keys = TrustedKeys(
                settings.keys,
                insecure=settings.insecure,
                ca=settings.keys_ca,
                kept=settings.cluster.state_folder() / KEYS_FILE,
                poll_s=POLL_S,
                external=external,
            )
            self.context.keys.on_change = self.context.end_revoked
        self.address = ""

    def _open(self, arrived: Callable[[ChannelName], None]) -> DataCluster:
        spark = self._given_session
        if spark is None:
            if self.settings.spark_secret_file is not None:
                use_secret(self.settings.spark_secret_file)
            spark = self._own_session = make_session(self.settings.master, self.settings.spark)
        self.process.leading.warm_up = partial(run_sample_channels, spark)
        lease = RootLease(self.settings.cluster, self.settings.lease_s, self.address)
        self.process.leading.wait(lease)
        try:
            return DataCluster(spark, self.settings.cluster, time.time, arrived, lease=lease)
        except BaseException:
            lease.release()
            raise

    def _announce_standby(self) -> None:
        """A supervisor knows that the process is up. Called from another thread."""

        def announce() -> None:
            if not self._announced:
                self._announced = True
                self._ready(self.address, None)

        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(announce)

    def stop(self) -> None:
        """Begin to stop the server. Call it in the loop's thread."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until a signal or `stop`. Raises `SparkLost` if Spark is lost, when publishers have their answers.

        Raises `NotLeading` if another process has taken the lease.
        """
        settings = self.settings
        self._loop = asyncio.get_running_loop()
        self.process.leading.on_standby = self._announce_standby
        sys.setswitchinterval(SWITCH_S)
        # These threads wait for disks: more of them than cores.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32, "blocking"))
        listening = listen(settings.host, settings.port)
        scheme = "http" if settings.tls_cert is None else "https"
        self.address = f"{scheme}://{url_host(settings.host)}:{listening.getsockname()[1]}"
        half_open = HalfOpenConnections(settings.half_open, settings.login_s)
        server = Server(
            uvicorn.Config(
                leading_only(make_app(self.context), self.process.leading.refusal),
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
            lost = asyncio.create_task(self.process.lost.wait())
            try:
                await asyncio.wait((starting, stopping, serving), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    await starting  # raises the reason if the start failed
                    await asyncio.wait((stopping, serving, lost), return_when=asyncio.FIRST_COMPLETED)
                else:
                    self.process.leading.stop()
                    await asyncio.gather(starting, return_exceptions=True)  # Spark cannot be stopped half-way up
            finally:
                for task in (stopping, sweeping, lost):
                    task.cancel()
                if self.process.lost.is_set():
                    await self._close_without_spark(server, serving)
                else:
                    await self._close(server, serving)

    async def _start(self) -> None:
        keys = self.context.keys
        fetching = None if keys is None else asyncio.create_task(keys.start())
        cluster = await self.process.start()
        tokens = TokenStore(cluster.catalog, time.time, time.monotonic)
        first = None
        if not tokens.all():
            _, first = await asyncio.to_thread(tokens.create, "first administrator", ["admin"])
            if self.settings.token_file:
                write_secret(cluster.settings.state_folder() / ADMIN_TOKEN_FILE, first)
        if fetching is not None:
            await fetching
        self.context.tokens = tokens
        self.context.in_background(self.context.end_expired())
        logger().info("listening", address=self.address)
        if not self._announced or first is not None:
            self._announced = True
            self._ready(self.address, first)

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
            if self._own_session is not None:
                await asyncio.to_thread(self._own_session.stop)

    async def _close_without_spark(self, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
        """Answer the publishers whose records are on disk, let executions fail, and raise. So too without the lease.

        Calls nothing of Spark: it could block.

        The data cluster is not closed. Its next start recovers as after a crash, at which nothing is lost.
        """
        if not self.process.lease_lost:
            await self.context.publishers_answered(CLOSE_S)
            await self.process.executions_ended(JVM_END_S + CLOSE_S)
        server.should_exit = True
        await asyncio.wait((serving,), timeout=1 if self.process.lease_lost else 2 * CLOSE_S)
        if self.process.lease_lost:
            raise NotLeading(self.process.lost_reason)
        raise SparkLost(self.process.lost_reason)
