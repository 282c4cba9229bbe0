"""The process around the broker's agent of network coordinates: its clock, and its connections to peers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from tocsin.broker import coordinates as agent
from tocsin.broker.coordinates import CoordinateAgent
from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId
from tocsin.runtime.broker.connecting import tls_context
from tocsin.runtime.broker.core_driver import CoreDriver
from tocsin.runtime.broker.probe_link import ProbeLink
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.wire.coordinates import CoordinateReport

_TICK_S = 0.1


class CoordinatesProcess(CoreDriver[agent.Event]):
    def __init__(
        self, settings: BrokerSettings, now_s: Callable[[], float], token: Callable[[], Awaitable[str]]
    ) -> None:
        """`token` fetches a token for connections to other brokers."""
        super().__init__(now_s, _TICK_S, agent.Ticked(), agent.StopRequested())
        rng = random.Random()
        self.core = CoordinateAgent(lambda: rng.gauss(0.0, 1.0), rng.random)
        self.handle = self.core.handle
        self.report: Callable[[CoordinateReport], None] = lambda report: None
        """Sends a report to the coordinator; set by the link."""
        self._token = token
        self._source = settings.connect_from
        self._tls = tls_context((settings.coordinator or "").replace("http:", "https:"), settings.ca)
        self._links: dict[BrokerId, ProbeLink] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.handlers |= {
            agent.ConnectPeer: self._connect,
            agent.DisconnectPeer: self._disconnect,
            agent.SendProbe: self._send,
            agent.ReportCoordinate: lambda effect: self.report(effect.report),
        }

    def answer(self) -> Coordinate:
        """The coordinate for the answer to a probe of another broker."""
        return self.core.answer

    async def stop(self) -> None:
        await self.stop_ticking()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _connect(self, effect: agent.ConnectPeer) -> None:
        self._links[effect.broker] = ProbeLink(
            effect.broker, effect.address, self._token, self._tls, self._source, self.happened
        )

    def _disconnect(self, effect: agent.DisconnectPeer) -> None:
        task = self._links.pop(effect.broker).close()
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _send(self, effect: agent.SendProbe) -> None:
        self._links[effect.broker].send(effect.probe)
