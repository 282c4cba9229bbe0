"""Measures how long the processes of a live scenario work on a message: a probe near each broker.

A probe is a client that publishes to a topic of its own at that broker, and receives it. The emulated delay of its
messages is known, so what they take beyond it is the work of the client, the relay and the home at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from tocsin.client import TopicMessage, Topics, TopicSubscription
from tocsin.client.errors import SessionEnded
from tocsin.model.ids import TopicName

PERIOD_S: Final = 0.05


class WorkProbe:
    def __init__(self, topic: TopicName, client: Topics, delay_s: float, now_s: Callable[[], float]) -> None:
        """`delay_s`: the emulated delay from the client to the home and back."""
        self.measured: list[tuple[float, float]] = []
        """(published, seconds of work)"""
        self._topic, self._client, self._delay_s, self._now_s = topic, client, delay_s, now_s
        self._subscription: TopicSubscription | None = None

    async def ready(self) -> None:
        self._subscription = self._client.subscribe(self._topic)
        await self._subscription.ready()

    async def run(self) -> None:
        """Publish until cancelled."""
        assert self._subscription is not None
        reading = asyncio.create_task(self._read(self._subscription))
        try:
            while True:
                self._client.send(self._topic, repr(self._now_s()).encode())
                await asyncio.sleep(PERIOD_S)
        finally:
            reading.cancel()

    async def _read(self, subscription: TopicSubscription) -> None:
        with contextlib.suppress(SessionEnded):
            async for item in subscription:
                if isinstance(item, TopicMessage):
                    published_s = float(item.data)
                    work_s = self._now_s() - published_s - self._delay_s
                    self.measured.append((published_s, max(0.0, work_s)))
