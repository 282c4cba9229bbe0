"""The session driver on asyncio and uvloop."""

from __future__ import annotations

import asyncio

import pytest

from tocsin.client.coordinator import CoordinatorClient
from tocsin.client.delivery_queue import DeliveryQueue
from tocsin.client.driver import SessionDriver
from tocsin.client.events import BrokerAddress, ResultHandled, Started, Stopped
from tocsin.client.session import SubscriberSession
from tocsin.client.subscriptions import Subscribing
from tocsin.client.timing import Patience
from tocsin.client.tls import context_for
from tocsin.client.websocket import Codec
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, SubscriptionId
from tocsin.wire import session as wire


def test_result_can_be_handled_while_a_timer_is_due() -> None:
    """uvloop's timer handle for "at once" has no `when`, so the driver must not ask for it."""
    uvloop = pytest.importorskip("uvloop")

    async def scenario() -> None:
        session = SubscriberSession(lambda: 0.5)
        tls = context_for(True)
        coordinator = CoordinatorClient("http://127.0.0.1:1", None, tls)
        driver = SessionDriver(session, coordinator, Codec(wire.JSON), tls, DeliveryQueue(10))
        session.subscriptions.retry_at_s[Subscribing(1)] = 0.0  # overdue
        driver._schedule()
        driver.handle(ResultHandled(SubscriptionId("s"), Cursor(1, 1)))
        session.subscriptions.retry_at_s.clear()
        await driver.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


class FixedCoordinator(CoordinatorClient):
    """Assigns the same broker to every subscriber."""

    def __init__(self, address: str) -> None:
        super().__init__("http://127.0.0.1:1", None, context_for(True))
        self._broker = BrokerAddress(BrokerId("b"), address, "t")

    async def request_broker(self, avoid: BrokerId | None) -> BrokerAddress:
        return self._broker


def test_hanging_broker_is_abandoned_and_its_connections_are_closed() -> None:
    """A process stopped by SIGSTOP still accepts connections and answers none of them."""

    async def scenario() -> None:
        hanging = 0
        several = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal hanging
            hanging += 1
            if hanging >= 4:
                several.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        patience = Patience(open_s=0.05, shortest_s=0.01, longest_s=0.02, stop_s=0.05)
        session = SubscriberSession(lambda: 0.5, patience=patience)
        coordinator = FixedCoordinator(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        driver = SessionDriver(session, coordinator, Codec(wire.JSON), context_for(True), DeliveryQueue(10))
        async with server, asyncio.timeout(20):
            driver.handle(Started())
            await several.wait()
            assert len(driver._sockets) <= 2, "the current attempt and one that is being closed"
            driver.handle(Stopped())
            await driver.close()

    asyncio.run(scenario())
