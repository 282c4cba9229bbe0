"""The MQTT part of a broker's server: it listens on a port of its own and connects the MQTT process to its relay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tocsin.client.tls import context_for
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.broker.keepalive import enable_keepalive
from tocsin.runtime.broker.mqtt import MqttProcess
from tocsin.runtime.broker.mqtt_socket import PATH, mqtt_socket_classes
from tocsin.runtime.broker.topic_relay import TopicRelay
from tocsin.runtime.http.listening import listen, url_host
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.tls_accept import TlsAccept, server_context


class MqttServer:
    def __init__(self, guard: ConnectionGuard) -> None:
        settings = guard.process.settings
        assert settings.coordinator is not None, "settings.check demands a coordinator"
        self._settings = settings
        tls = context_for(True if settings.ca is None else settings.ca)
        relay = TopicRelay(
            guard.topics, settings.coordinator, lambda: settings.secret("coordinator"), tls, f"relay-{settings.id}"
        )
        self.process = MqttProcess(guard, relay)
        self._tcp, websocket = mqtt_socket_classes(self.process)
        self.upgrades: dict[str, type[asyncio.Protocol]] = {PATH: websocket}
        """Path → the protocol of WebSockets there."""
        self.address = ""
        """Where clients connect, `host:port`."""
        self._server: asyncio.Server | None = None

    async def start(self, own_address: str) -> None:
        """Listen. `own_address` is the address by which the coordinator knows this broker."""
        settings = self._settings
        assert settings.mqtt_port is not None
        listening = listen(settings.host, settings.mqtt_port)
        enable_keepalive(listening)
        self.address = f"{url_host(settings.host)}:{listening.getsockname()[1]}"
        self.process.relay.own_address = own_address
        self.process.start(settings.mqtt_address or self.address)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make_protocol(), sock=listening, backlog=4096)
        logger().info("listening for MQTT", address=self.address, tls=settings.tls_cert is not None)

    def _make_protocol(self) -> Callable[[], asyncio.Protocol]:
        """Makes the protocol of a connection; with TLS if the broker has a certificate, as for HTTP."""
        if self._settings.tls_cert is None:
            return self._tcp
        context = server_context(self._settings.tls_cert, self._settings.tls_key)
        return lambda: TlsAccept(self._tcp, context, self.process.guard.half_open)

    async def stop(self) -> None:
        """Refuse new clients, close the connections of the others and leave the topics."""
        if self._server is not None:
            self._server.close()
        await self.process.stop()
