"""The upstream side of an edge: sessions for many topics, and fetches that cannot begin."""

from __future__ import annotations

import asyncio
import math
import ssl

import pytest

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.limits import TopicLimits
from tocsin.client import topic_driver
from tocsin.client.topic_events import Deliver, TopicFrame
from tocsin.model.ids import BrokerId, TopicName
from tocsin.runtime.broker import topic_upstream
from tocsin.runtime.broker.matching import Matching
from tocsin.runtime.broker.topic_upstream import TopicUpstream
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.wire import topic as wire
from tocsin.wire.site_link import Role

T = TopicName("swarm/3/leader")


def make_upstream() -> tuple[TopicsProcess, TopicUpstream]:
    """The upstream side of an edge whose coordinator does not answer."""
    topics = TopicsProcess(BrokerId("e1"), TopicLimits(), asyncio.get_running_loop().time, Role.EDGE)
    tls = ssl.create_default_context()
    return topics, TopicUpstream(topics, "http://127.0.0.1:9", lambda: "token", tls, "relay-e1")


def test_topics_beyond_the_names_of_one_request_get_another_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(topic_upstream, "_MOST_PER_SESSION", 2)
        topics, upstream = make_upstream()
        names = [TopicName(f"t/{number}") for number in range(5)]
        for name in names:
            topics.handlers[effects.StartRelay](effects.StartRelay(name))
        assert sorted(upstream._drivers.values()) == [1, 2, 2]
        topics.handlers[effects.StopRelay](effects.StopRelay(names[0]))
        topics.handlers[effects.StartRelay](effects.StartRelay(T))
        assert sorted(upstream._drivers.values()) == [1, 2, 2]
        await asyncio.sleep(0)
        assert upstream._relayed[T][0].session._patterns == {2: "t/1", 6: T}
        await upstream.close()

    asyncio.run(scenario())


def test_frames_of_a_home_reach_the_receivers_of_the_edge() -> None:
    async def scenario() -> None:
        topics, upstream = make_upstream()
        topics.happened(events.ConnectionOpened(events.ConnectionId(1), "ann", 1))
        topics.happened(events.RequestReceived(events.ConnectionId(1), wire.AttachReceiver(2, T)))
        driver = upstream._relayed[T][0]
        for frame in (wire.ReceiverAttached(9, 4, 3, 7, None, 3), wire.Messages(4, 3, 8, [(5, 1, b"x")])):
            driver._on_effect(Deliver(1, [TopicFrame(T, frame)]))
        relayed = topics.core.relaying.topics[T]
        assert (relayed.epoch, relayed.sequence, list(relayed.live)) == (3, 8, [1])
        await upstream.close()

    asyncio.run(scenario())


def test_fetch_without_a_known_home_fails_at_once() -> None:
    async def scenario() -> None:
        topics, upstream = make_upstream()
        failed: list[events.Event] = []
        topics.handlers[effects.StartRelay](effects.StartRelay(T))
        topics.observe = lambda event, effects: failed.append(event)
        topics.handlers[effects.FetchOlder](effects.FetchOlder(3, T, (1, 0)))
        assert failed == [events.OlderFailed(3)]
        await upstream.close()

    asyncio.run(scenario())


def test_edge_stops_reading_while_its_matching_is_full() -> None:
    async def scenario() -> None:
        topics, upstream = make_upstream()
        waiting: list[object] = []
        topics.matching = Matching(1.0, lambda: 0.0, lambda delay_s, callback: waiting.append(callback))
        topics.happened(events.ConnectionOpened(events.ConnectionId(1), "ann", 1))
        topics.happened(events.RequestReceived(events.ConnectionId(1), wire.AttachReceiver(2, T)))
        upstream.receive(events.relay_event(T, wire.ReceiverAttached(9, 4, 3, 0, None, 3)))
        for sequence in range(1, 8):
            upstream.receive(events.relay_event(T, wire.Messages(4, 3, sequence, [(5, sequence, b"x")])))
        upstream.receive(events.relay_event(T, wire.Gap(4, 3, 8, 9)))
        relayed = topics.core.relaying.topics[T]
        assert relayed.sequence == 1 and not upstream._room.is_set()
        topics.matching.set_rate(math.inf)
        assert relayed.sequence == 9 and upstream._room.is_set()
        await upstream.close()

    asyncio.run(scenario())


def test_edge_that_stops_reading_does_not_take_its_homes_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        topics, upstream = make_upstream()
        topics.handlers[effects.StartRelay](effects.StartRelay(T))
        (driver,) = upstream._drivers
        ticks: list[bool] = []
        monkeypatch.setattr(driver, "handle", lambda event: ticks.append(event.reads))
        monkeypatch.setattr(topic_driver, "_TICK_S", 0.0)
        upstream._room.clear()
        while len(ticks) < 3:
            await asyncio.sleep(0.01)
        upstream._room.set()
        while not ticks[-1]:
            await asyncio.sleep(0.01)
        assert ticks[0] is False
        monkeypatch.undo()
        await upstream.close()

    asyncio.run(scenario())
