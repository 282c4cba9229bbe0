"""The driver of a subscriber's session on the event loop that our own processes use."""

from __future__ import annotations

import asyncio

import pytest

from tocsin.client.connection import Codec
from tocsin.client.coordinator import Coordinator, Registration
from tocsin.client.driver import SessionDriver
from tocsin.client.events import Handled, Place, Started, Stopped
from tocsin.client.holdings import WantAsked
from tocsin.client.patience import Patience
from tocsin.client.session import SubscriberSession
from tocsin.client.tls import context_for
from tocsin.client.waiting import Waiting
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, SubscriberId, SubscriptionId
from tocsin.wire import session as wire


def test_a_result_may_be_handled_while_something_is_due_at_once() -> None:
    """uvloop's handle for "at once" has no `when`; asking it ended subscribers that were busy."""
    uvloop = pytest.importorskip("uvloop")

    async def scenario() -> None:
        session = SubscriberSession(lambda: 0.5)
        tls = context_for(True)
        coordinator = Coordinator("http://127.0.0.1:1", None, tls)
        driver = SessionDriver(session, coordinator, None, {}, Codec(wire.JSON), tls, Waiting(10))
        session.holdings.retry[WantAsked(1)] = 0.0  # long due
        driver._schedule()
        driver.happen(Handled(SubscriptionId("s"), Cursor(1, 1)))
        session.holdings.retry.clear()
        await driver.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


class OnlyBroker(Coordinator):
    """Knows one broker and sends everybody there."""

    def __init__(self, address: str) -> None:
        super().__init__("http://127.0.0.1:1", None, context_for(True))
        self._place = Place(BrokerId("b"), address, "t")

    async def register(self, user: str | None, where: dict[str, float]) -> Registration:
        return Registration(SubscriberId(user or "u"), "t")

    async def request_broker(
        self, registration: Registration, where: dict[str, float], avoid: BrokerId | None
    ) -> Place:
        return self._place


def test_a_broker_that_hangs_is_left_and_nothing_of_the_attempts_remains() -> None:
    """A process that was stopped in its tracks (SIGSTOP) still accepts connections, and answers none of them."""

    async def scenario() -> None:
        hanging = 0
        many = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal hanging
            hanging += 1
            if hanging >= 4:
                many.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        patience = Patience(open_s=0.05, shortest_s=0.01, longest_s=0.02, stop_s=0.05)
        session = SubscriberSession(lambda: 0.5, patience=patience)
        coordinator = OnlyBroker(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        driver = SessionDriver(session, coordinator, None, {}, Codec(wire.JSON), context_for(True), Waiting(10))
        async with server, asyncio.timeout(20):
            driver.happen(Started())
            await many.wait()
            assert len(driver._connections) <= 2, "the attempt under way, and one that is just being given up"
            driver.happen(Stopped())
            await driver.close()

    asyncio.run(scenario())
