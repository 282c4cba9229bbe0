"""Imports of a home: which of them wait while the log of one topic has much to store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.runtime.coordinator.harness import WAIT_S
from tocsin.broker.topics import effects
from tocsin.broker.topics.events import Event, ImportBroken, ImportReceived
from tocsin.client.topic_events import Deliver, TopicFrame
from tocsin.model.ids import TopicName
from tocsin.runtime.broker import topic_imports
from tocsin.runtime.broker.topic_imports import TopicImports
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.wire import topic as wire
from tocsin.wire.site_link import NeighbourAccess

SLOW, FAST = TopicName("slow"), TopicName("fast")


class ScriptedTopics:
    """The topics of a broker. A test says which imports have a full log."""

    def __init__(self) -> None:
        self.handlers: dict[type, Callable[[Any], None]] = {}
        self.full: set[int] = set()
        self.happened_events: list[Event] = []
        importing = SimpleNamespace(is_backlogged=lambda number: number in self.full, numbers=lambda number: {})
        self.core = SimpleNamespace(importing=importing)

    def happened(self, event: Event) -> None:
        self.happened_events.append(event)
        if isinstance(event, ImportBroken):
            self.handlers[effects.StopImport](effects.StopImport(event.number))


class ImportBench:
    """Imports of two topics from one neighbour, over one session."""

    def __init__(self) -> None:
        self.topics = ScriptedTopics()
        self.imports = TopicImports(cast(TopicsProcess, self.topics))
        neighbours = [NeighbourAccess("w", "http://127.0.0.1:9", "token")]
        self.topics.handlers[effects.UseNeighbours](effects.UseNeighbours(neighbours))
        for number, topic in ((1, SLOW), (2, FAST)):
            self.topics.handlers[effects.StartImport](effects.StartImport(number, topic, "w", ("w",)))
        [self.session] = self.imports._sessions["w"]

    def arrive(self, *topics: TopicName) -> None:
        frames = [TopicFrame(topic, wire.Messages(1, 1, 1, [(1, 1, b"x")])) for topic in topics]
        self.session._on_effect(Deliver(1, [*frames]))

    def reads(self) -> bool:
        return self.session._room.is_set()


def test_session_waits_for_a_full_log_also_when_other_topics_have_room() -> None:
    async def scenario() -> None:
        bench = ImportBench()
        bench.topics.full.add(1)
        bench.arrive(SLOW, FAST)
        assert not bench.reads()
        bench.topics.full.clear()
        async with asyncio.timeout(WAIT_S):
            while not bench.reads():
                await asyncio.sleep(0.01)
        await bench.imports.close()

    asyncio.run(scenario())


def test_log_that_stays_full_ends_its_own_import_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without enough replicas a log can be full for hours; the other topics of the neighbour must not wait for it."""

    async def scenario() -> None:
        bench = ImportBench()
        bench.topics.full.add(1)
        bench.arrive(SLOW)
        async with asyncio.timeout(WAIT_S):
            while not bench.reads():
                await asyncio.sleep(0.01)
        broken = [event for event in bench.topics.happened_events if isinstance(event, ImportBroken)]
        assert [event.number for event in broken] == [1]
        bench.arrive(SLOW, FAST)
        received = [event.number for event in bench.topics.happened_events if isinstance(event, ImportReceived)]
        assert received == [1, 2]
        assert bench.reads()
        await bench.imports.close()

    monkeypatch.setattr(topic_imports, "_PATIENCE_S", 0.1)
    asyncio.run(scenario())
