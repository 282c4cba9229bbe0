"""The server of a broker: it listens, connects a `BrokerProcess` to its links, and stops cleanly on a signal."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvicorn

from tocsin.broker import effects
from tocsin.client.tls import context_for
from tocsin.leaders.addresses import split_addresses
from tocsin.runtime.broker.audited_sessions import AuditedSessions
from tocsin.runtime.broker.cluster import DataClusterLink
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.broker.coordinates import CoordinatesProcess
from tocsin.runtime.broker.coordinator_link import LinkToCoordinator
from tocsin.runtime.broker.keepalive import enable_keepalive
from tocsin.runtime.broker.metrics import BrokerMetrics
from tocsin.runtime.broker.mqtt_server import MqttServer
from tocsin.runtime.broker.probe_socket import probe_socket_class
from tocsin.runtime.broker.process import BrokerProcess
from tocsin.runtime.broker.replica_socket import replica_socket_class
from tocsin.runtime.broker.replicas import Replicas
from tocsin.runtime.broker.routes import BrokerContext, make_app
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.broker.subscriber_socket import socket_class
from tocsin.runtime.broker.topic_capacity import TopicCapacity
from tocsin.runtime.broker.topic_imports import TopicImports
from tocsin.runtime.broker.topic_logs import TopicLogs
from tocsin.runtime.broker.topic_recording import TopicRecording
from tocsin.runtime.broker.topic_socket import topic_socket_class
from tocsin.runtime.broker.topic_upstream import TopicUpstream
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.runtime.broker.upgrades import upgrade_class
from tocsin.runtime.broker.webhooks import WebhookSessions
from tocsin.runtime.http.audit import open_audit_log
from tocsin.runtime.http.bounded_protocols import make_http_class
from tocsin.runtime.http.listening import Server, listen, stop_on_signals, url_host
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.trusted_keys import POLL_S, TrustedKeys, external_keys
from tocsin.wire import coordinates, topic_log
from tocsin.wire import topic as wire
from tocsin.wire.site_link import Role

_BACKLOG = 4096


class BrokerServer:
    """`run` it in an event loop. It calls `ready` with the address that subscribers connect to."""

    def __init__(self, settings: BrokerSettings, ready: Callable[[str], None] = lambda address: None) -> None:
        self.settings = settings
        self._ready = ready
        self._stop = asyncio.Event()
        self.process = BrokerProcess(settings)
        self.keys = make_keys(settings)
        self.topics = TopicsProcess(self.process.id, settings.topic_limits, self.process.now_s, Role(settings.role))
        self.capacity = TopicCapacity(self.topics, settings.topic_capacity.capacity, Role(settings.role))
        self.coordinates: CoordinatesProcess | None = None
        """The agent of network coordinates; None if it is switched off."""
        if settings.coordinator is not None:
            self.topics.logs = TopicLogs(Path(settings.state) / "topics" / settings.id)
            self.topics.logs.report = self.topics.happened
            replicas = self.topics.replicas = Replicas(settings, self.topics.happened)
            self.topics.recording = TopicRecording(settings, self.topics.happened)
            if settings.coordinates:
                agent = self.coordinates = CoordinatesProcess(settings, self.process.now_s, replicas.token)
                self.topics.core.clients.own = lambda: agent.core.coordinate
                self.topics.core.clients.draw_nonce = partial(secrets.randbits, 53)
        self.guard = ConnectionGuard(self.process, self.keys, self.topics)
        self.keys.on_change = self._end_revoked
        self.guard.audit = open_audit_log(settings, f"broker {settings.id}")
        if self.guard.audit is not None:
            self.process.audit(AuditedSessions(self.guard.audit))
        self.cluster = DataClusterLink(self.process)
        self.metrics = BrokerMetrics(
            self.process, self.topics, lambda: len(self.guard.half_open), lambda: self.cluster.announcements.heard
        )
        self.webhooks = WebhookSessions(self.process, self.metrics)
        self.context = BrokerContext(self.guard, self.metrics, self.webhooks)
        self.coordinator = (
            None
            if settings.coordinator is None
            else LinkToCoordinator(self.process, self.topics, self.capacity, self.coordinates)
        )
        self.mqtt = None if settings.mqtt_port is None else MqttServer(self.guard)
        self.upstream = make_upstream(settings, self.topics)
        """Of an edge: receives the topics that it relays."""
        self.imports = TopicImports(self.topics, settings.connect_from)
        """Receives flows of neighbouring sites."""
        self.metrics.mqtt = None if self.mqtt is None else self.mqtt.process
        self.address = ""

    @property
    def mqtt_address(self) -> str | None:
        """Where MQTT clients connect; None without MQTT."""
        return None if self.mqtt is None else self.mqtt.address

    def _end_revoked(self) -> None:
        self.guard.end_revoked()
        if self.mqtt is not None:
            self.mqtt.process.end_revoked()

    def stop(self) -> None:
        """Begin to stop the server. Call it from the loop's thread."""
        self._stop.set()

    async def run(self) -> None:
        settings = self.settings
        listening = listen(settings.host, settings.port)
        enable_keepalive(listening)
        scheme = "ws" if settings.tls_cert is None else "wss"
        self.address = f"{scheme}://{url_host(settings.host)}:{listening.getsockname()[1]}"
        server = Server(
            uvicorn.Config(
                make_app(self.context),
                http=make_http_class(self.guard.half_open, settings.tls_cert, settings.tls_key),
                ws=upgrade_class(self._upgrades(), socket_class(self.guard)),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                date_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_graceful_shutdown=max(1, int(settings.stop_s)),
            )
        )
        with stop_on_signals(self._stop):
            await self._start()
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            sweeping = asyncio.create_task(self.guard.half_open.sweep_forever())
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

    def _upgrades(self) -> dict[str, type[asyncio.Protocol]]:
        """Path → the protocol of the WebSockets there."""
        upgrades: dict[str, type[asyncio.Protocol]] = {
            wire.PATH: topic_socket_class(self.guard),
            topic_log.PATH: replica_socket_class(self.guard),
        }
        if self.coordinates is not None:
            upgrades[coordinates.PATH] = probe_socket_class(self.guard, self.coordinates.answer)
        if self.mqtt is not None:
            upgrades |= self.mqtt.upgrades
        return upgrades

    async def _start(self) -> None:
        self.process.handlers |= {
            effects.CallWebhook: self.webhooks.begin,
            effects.RequestBackend: self.cluster.ask,
            effects.ReleaseBackend: self.cluster.release,
            effects.Fetch: self.cluster.fetches.fetch,
            effects.CancelFetch: self.cluster.fetches.cancel_fetch,
            effects.StoreUpdates: self.cluster.store,
        }
        if self.coordinator is not None:
            self.process.handlers[effects.SendToCoordinator] = self.coordinator.send
        self.process.start(self.address)
        self.topics.start()
        self.capacity.start()
        if self.coordinates is not None:
            self.coordinates.start_ticking()
        await self.keys.start()
        self.cluster.start()
        if self.coordinator is not None:
            self.coordinator.start()
            self.cluster.settled = lambda: self.process.core.linked
        if self.upstream is not None:
            self.upstream.own_address = self.settings.address or self.address
        if self.mqtt is not None:
            await self.mqtt.start(self.settings.address or self.address)

    async def _close(self, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
        logger().info("stopping")
        self.context.stopping = True
        if self.mqtt is not None:
            await self.mqtt.stop()
        if self.coordinates is not None:
            await self.coordinates.stop()
        await self.capacity.stop()
        await self.topics.stop()
        if self.upstream is not None:
            await self.upstream.close()
        await self.imports.close()
        await self.process.stop()
        self.guard.close_streams()
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        await self.webhooks.stop()
        if self.coordinator is not None:
            await self.coordinator.stop()
        await self.cluster.stop()
        await self.keys.stop()
        if self.guard.audit is not None:
            await asyncio.to_thread(self.guard.audit.close)


def make_upstream(settings: BrokerSettings, topics: TopicsProcess) -> TopicUpstream | None:
    if settings.role != Role.EDGE:
        return None
    assert settings.coordinator is not None, "settings.check demands a coordinator"
    tls = context_for(True if settings.ca is None else settings.ca)
    user = f"relay-{settings.id}"
    return TopicUpstream(topics, settings.coordinator, lambda: settings.secret("coordinator"), tls, user)


def make_keys(settings: BrokerSettings) -> TrustedKeys:
    """Keys from a file or an address. Keys from an address are also saved, so that the next start does not need it."""
    source = settings.keys
    if source is None:
        assert settings.coordinator is not None
        source = ",".join(address + "/v1/keys" for address in split_addresses(settings.coordinator))
    kept = Path(settings.state) / f"{settings.id}-keys.json"
    external = external_keys(settings.oidc, insecure=settings.insecure)
    return TrustedKeys(source, insecure=settings.insecure, ca=settings.ca, kept=kept, poll_s=POLL_S, external=external)
