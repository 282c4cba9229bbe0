"""The MQTT part of a broker's server: it listens on a port of its own and connects the MQTT process to its relay."""

from __future__ import annotations

import asyncio
import ssl

from tocsin.client.tls import context_for
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.broker.keepalive import enable_keepalive
from tocsin.runtime.broker.mqtt import MqttProcess
from tocsin.runtime.broker.mqtt_socket import PATH, mqtt_socket_classes
from tocsin.runtime.broker.topic_relay import TopicRelay
from tocsin.runtime.http.listening import listen, url_host
from tocsin.runtime.http.logs import logger


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
        self._server = await loop.create_server(self._tcp, sock=listening, ssl=self._tls(), backlog=4096)
        logger().info("listening for MQTT", address=self.address, tls=settings.tls_cert is not None)

    def _tls(self) -> ssl.SSLContext | None:
        """The broker's own certificate, as for HTTP."""
        if self._settings.tls_cert is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._settings.tls_cert, self._settings.tls_key)
        return context

    async def stop(self) -> None:
        """Refuse new clients, close the connections of the others and leave the topics."""
        if self._server is not None:
            self._server.close()
        await self.process.stop()
