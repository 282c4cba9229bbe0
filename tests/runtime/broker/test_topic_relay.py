"""The relay of topics: which connection serves a home, and what several sessions of the relay deliver."""

from __future__ import annotations

import asyncio
import ssl

import jwt
import pytest

from tocsin.broker.topics import events as topic_events
from tocsin.broker.topics.limits import TopicLimits
from tocsin.client.topic_driver import TopicSocket
from tocsin.client.topic_events import Deliver, DirectoryReceived, Item, TopicGap, TopicMessage
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import Position
from tocsin.runtime.broker import topic_relay
from tocsin.runtime.broker.topic_relay import LocalHome, TopicRelay
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.wire import site_link, topic_link
from tocsin.wire.topic import Login
from tocsin.wire.topic_directory import TopicEntry, WatchAnswer

T = TopicName("swarm/3/leader")
ADDRESS = "ws://127.0.0.1:8600"


def make_relay() -> TopicRelay:
    """A relay whose coordinator does not answer."""
    loop = asyncio.get_running_loop()
    topics = TopicsProcess(BrokerId("b1"), TopicLimits(), loop.time)
    relay = TopicRelay(topics, "http://127.0.0.1:9", lambda: "token", ssl.create_default_context(), "relay-b1")
    relay.own_address = ADDRESS
    return relay


def message(sequence: int) -> TopicMessage:
    return TopicMessage(T, b"%d" % sequence, Position(1, sequence), 1, sequence)


def test_home_in_the_same_process_needs_no_socket() -> None:
    async def scenario() -> None:
        relay = make_relay()
        relay.watch("#")
        session = relay._sessions[0]
        own = session._make_socket(session.driver, 901, ADDRESS + "/")
        other = session._make_socket(session.driver, 902, "ws://127.0.0.1:9")
        assert isinstance(own, LocalHome)
        assert isinstance(other, TopicSocket)
        other.close()
        await asyncio.gather(own.task, other.task, return_exceptions=True)
        await relay.close()

    asyncio.run(scenario())


def test_relay_is_the_same_user_at_its_own_broker_as_at_others() -> None:
    """Homes know a publisher by its user: with another one, a message that is sent again after a move would repeat."""

    async def scenario() -> None:
        relay = make_relay()
        relay.watch("#")
        session = relay._sessions[0]
        own = session._make_socket(session.driver, 901, ADDRESS)
        token = jwt.encode({"sub": "broker-1"}, "k" * 32)
        own.send(Login(1, token))
        assert [connection.user for connection in relay.topics.core.state.connections.values()] == ["broker-1"]
        own.close()
        await asyncio.gather(own.task, return_exceptions=True)
        await relay.close()

    asyncio.run(scenario())


def test_message_that_matches_several_patterns_is_delivered_once() -> None:
    async def scenario() -> None:
        relay = make_relay()
        got: list[Item] = []
        relay.on_items = got.extend
        relay.watch("swarm/#")
        relay.watch("swarm/+/leader")
        items: list[Item] = [message(1), TopicGap(T, 1, 2, 3), message(4)]
        for number in relay._sessions[0].patterns:
            relay._sessions[0]._on_effect(Deliver(number, items))
        assert got == items
        await relay.close()

    asyncio.run(scenario())


def test_message_that_two_sessions_receive_is_delivered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_relay, "_MOST_PER_SESSION", 1)

    async def scenario() -> None:
        relay = make_relay()
        got: list[Item] = []
        relay.on_items = got.extend
        relay.watch("swarm/#")
        relay.watch("swarm/+/leader")
        first, second = relay._sessions
        first._on_effect(Deliver(1, [message(1), message(2)]))
        second._on_effect(Deliver(2, [message(1)]))
        second._on_effect(Deliver(2, [message(2), message(3)]))
        first._on_effect(Deliver(1, [message(3)]))
        assert got == [message(1), message(2), message(3)]
        relay.unwatch("swarm/#")
        relay.watch("other")
        assert relay.sessions == 2, "a session with room is used again"
        await relay.close()

    asyncio.run(scenario())


def test_relay_publishes_and_receives_at_its_own_broker_in_order() -> None:
    async def scenario() -> None:
        relay = make_relay()
        topics = relay.topics
        reports: list[topic_link.FromBroker | site_link.FromBroker] = []
        topics.report = reports.append
        owned = topic_link.OwnTopics([topic_link.OwnedTopic(T, 7)])
        topics.happened(topic_events.CoordinatorMessageReceived(owned))
        topics.start()
        got: list[Item] = []
        settled: list[tuple[int, str | None, str]] = []
        relay.on_items = got.extend
        relay.on_settled = lambda *outcome: settled.append(outcome)
        await asyncio.sleep(0.15)
        renewals = [report.number for report in reports if isinstance(report, topic_link.RenewLease)]
        lease = topic_link.LeaseRenewed(renewals[-1], 60.0)
        topics.happened(topic_events.CoordinatorMessageReceived(lease))
        relay.watch("swarm/#")
        for number in range(1, 4):
            relay.publish(number, T, b"%d" % number)
        assert relay.waiting_bytes > 0
        _answer_directory(relay)
        async with asyncio.timeout(10):
            while len(got) < 3 or len(settled) < 3:
                await asyncio.sleep(0.01)
        assert [item.data for item in got if isinstance(item, TopicMessage)] == [b"1", b"2", b"3"]
        assert settled == [(1, None, ""), (2, None, ""), (3, None, "")]
        assert relay.waiting_bytes == 0
        await relay.close()
        await topics.stop()

    asyncio.run(scenario())


def _answer_directory(relay: TopicRelay) -> None:
    """Answer the relay's request to the directory as the coordinator would: this broker is the home."""
    entry = TopicEntry(T, 7, 7, BrokerId("b1"), ADDRESS)
    answer = WatchAnswer("1", 6, [entry], "token")
    relay._sessions[0].driver.handle(DirectoryReceived(answer, ("swarm/#",)))
