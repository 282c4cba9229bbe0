"""The driver of a subscriber's session on the event loop that our own processes use."""

from __future__ import annotations

import asyncio

import pytest

from tocsin.client.connection import Codec
from tocsin.client.coordinator import Coordinator
from tocsin.client.driver import SessionDriver
from tocsin.client.events import Handled
from tocsin.client.holdings import WantAsked
from tocsin.client.session import SubscriberSession
from tocsin.client.tls import context_for
from tocsin.client.waiting import Waiting
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriptionId
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
