"""The clients of `epulsar-migration --live`: one per topic, which publishes to the topic and receives its messages.

A topic that moves soon, or has moved just now, has a message every 10 ms, so that a pause of that length is seen. The
other topics have a few per second: all at the high rate would keep two cores busy, and the clients would measure
themselves. A client knows that its topic has moved by the epoch of a message.
"""

from __future__ import annotations

import asyncio
import gc
import time
from array import array
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from tocsin.client import TopicMessage, Topics
from tocsin.experiments.runner import Row

FAST_S: Final = 0.01
_SLOTS: Final = 5
"""The topics take turns within `FAST_S`: a burst of all would wait for itself."""
_SLOW_TURNS: Final = 300
"""A slow topic has one message in so many turns."""
_RESERVES: Final = {"pulsar": 8}
"""Topics at the high rate beside those that move. Clients of Pulsar learn last that their topic has moved."""
_RESERVE: Final = 3
_AFTER_S: Final = 0.05
"""How long a topic keeps the high rate after its move."""
_DRAIN_S: Final = 60.0
_AT_ONCE: Final = 8
"""Clients that connect, or disconnect, at the same time."""


@dataclass(slots=True, eq=False)
class _Topic:
    name: str
    client: Topics
    contexts: AsyncExitStack = field(default_factory=AsyncExitStack)
    sent: int = 0
    epoch: int = 0
    """Of the last message that arrived."""
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """(when, number) of the present run."""
    moved_s: float | None = None
    """When the first message of the new home arrived."""
    fast: tuple[int, int | None] | None = None
    """The numbers of the first and the last message at the high rate."""


class MovingTopics:
    def __init__(self, coordinator: str, token: str, topics: list[str], workflow: str, executors: int) -> None:
        self.topics = topics
        self._fast = executors + _RESERVES.get(workflow, _RESERVE)
        options: dict[str, Any] = {"token": token, "coordinates": False, "prompt": False}
        self._topics = [_Topic(name, Topics(coordinator, **options)) for name in topics]
        self._by_name = {topic.name: topic for topic in self._topics}
        self._tasks: list[asyncio.Task[None]] = []
        self._moved = 0
        self._change = asyncio.Event()
        self._lags_s = array("d")
        self._measuring = False

    async def __aenter__(self) -> MovingTopics:
        for first in range(0, len(self._topics), _AT_ONCE):
            await asyncio.gather(*map(self._open, self._topics[first : first + _AT_ONCE]))
        self._tasks.append(asyncio.create_task(self._publish()))
        # A collection of all objects of this process takes longer than the pauses that it measures.
        gc.collect()
        gc.freeze()
        gc.disable()
        return self

    async def _open(self, topic: _Topic) -> None:
        await topic.contexts.enter_async_context(topic.client)
        subscription = await topic.contexts.enter_async_context(topic.client.subscribe(topic.name))
        self._tasks.append(asyncio.create_task(self._read(topic, subscription)))
        await topic.client.publish(topic.name, b"0")
        topic.sent = 1

    async def __aexit__(self, *_: object) -> None:
        gc.enable()
        gc.unfreeze()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for first in range(0, len(self._topics), _AT_ONCE):
            await asyncio.gather(*(topic.contexts.aclose() for topic in self._topics[first : first + _AT_ONCE]))

    # -- one run -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """From now on every topic moves once, in the order of `topics`."""
        for topic in self._topics:
            topic.arrivals, topic.moved_s, topic.fast = topic.arrivals[-1:], None, None
        self._moved, self._lags_s, self._measuring = 0, array("d"), True

    async def wait_until_moved(self, count: int) -> None:
        """Wait until so many topics have moved, and their clients have received a message of the new home."""
        while self._moved < count:
            self._change.clear()
            await self._change.wait()

    async def settle(self) -> None:
        """Wait until everything that was sent has arrived, or until nothing arrives any more."""
        await asyncio.sleep(2 * _AFTER_S)
        self._measuring = False
        until_s = time.perf_counter() + _DRAIN_S
        expected = [topic.sent for topic in self._topics]
        while time.perf_counter() < until_s:
            if all(topic.arrivals[-1][1] >= sent - 1 for topic, sent in zip(self._topics, expected, strict=True)):
                return
            await asyncio.sleep(0.05)

    def lag_p99_s(self) -> float:
        """How late the event loop of these clients was in the worst of a hundred turns."""
        ordered = sorted(self._lags_s)
        return ordered[int(0.99 * len(ordered))]

    def row(self, name: str) -> Row:
        topic = self._by_name[name]
        first, last = topic.fast or (topic.sent, None)
        numbers = [number for _, number in topic.arrivals]
        pauses_s = [
            later_s - earlier_s
            for (earlier_s, earlier), (later_s, later) in pairwise(topic.arrivals)
            if earlier >= first and (last is None or later <= last)
        ]
        before = any(first <= number for at_s, number in topic.arrivals if at_s < (topic.moved_s or 0.0))
        return {
            "downtime_ms": 1e3 * max(0.0, max(pauses_s, default=0.0) - FAST_S),
            "lost": numbers[-1] - numbers[0] + 1 - len(set(numbers)),
            "reordered": sum(later <= earlier for earlier, later in pairwise(numbers)),
            "observed": before,
        }

    # -- messages ------------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        due_s, turn = time.perf_counter(), 0
        while True:
            now_s = time.perf_counter()
            if self._measuring:
                self._lags_s.append(max(0.0, now_s - due_s))
                self._choose_fast(now_s)
            for number, topic in enumerate(self._topics):
                is_fast = topic.fast is not None and topic.fast[1] is None
                if number % _SLOTS == turn % _SLOTS if is_fast else number % _SLOW_TURNS == turn % _SLOW_TURNS:
                    topic.client.send(topic.name, b"%d" % topic.sent).add_done_callback(_check)
                    topic.sent += 1
            turn += 1
            due_s = max(due_s + FAST_S / _SLOTS, now_s)
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))

    def _choose_fast(self, now_s: float) -> None:
        """The first topics that have not moved get the high rate; those that have moved keep it for a moment."""
        left = self._fast
        for topic in self._topics:
            if topic.moved_s is None:
                if left and topic.fast is None:
                    topic.fast = (topic.sent, None)
                left -= 1
                if not left:
                    return
            elif topic.fast is not None and topic.fast[1] is None and now_s > topic.moved_s + _AFTER_S:
                topic.fast = (topic.fast[0], topic.sent - 1)

    async def _read(self, topic: _Topic, subscription: Any) -> None:
        async for item in subscription:
            if not isinstance(item, TopicMessage):
                continue
            now_s = time.perf_counter()
            topic.arrivals.append((now_s, int(item.data)))
            if item.position.epoch > topic.epoch:
                if self._measuring and topic.epoch and topic.moved_s is None:
                    topic.moved_s = now_s
                    self._moved += 1
                    self._change.set()
                topic.epoch = item.position.epoch


def _check(sent: asyncio.Future[None]) -> None:
    """Read the error of a refused message, which no task awaits. The message is a loss, and the rows report it."""
    if not sent.cancelled():
        sent.exception()
