"""A client's agent of network coordinates: when it probes, and when its coordinate counts."""

from __future__ import annotations

import random

import pytest

from tocsin.client.topic_connection import ClientConnection
from tocsin.client.topic_coordinates import FIRST_SAMPLES, PROBE_S, ClientAgent
from tocsin.client.topic_events import (
    Connect,
    ConnectionOpened,
    Effect,
    GatewayChanged,
    LandmarksReceived,
    MessageReceived,
    Send,
    Ticked,
)
from tocsin.client.topic_session import TopicSession
from tocsin.coords.coordinate import DIMENSIONS, Coordinate, distance_s
from tocsin.model.ids import BrokerId
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code

BROKERS_S = {"ws://a": (0.0, 0.0), "ws://b": (0.06, 0.0), "ws://c": (0.0, 0.08)}
"""Address → position; the client is at (0.03, 0.04), 50 ms from each broker."""


def at(x_s: float, y_s: float) -> Coordinate:
    return Coordinate((x_s, y_s, *[0.0] * (DIMENSIONS - 2)), 0.0, 0.0, 0.05)


def new_agent() -> ClientAgent:
    rng = random.Random(3)
    return ClientAgent(lambda: rng.gauss(0.0, 1.0))


def measure(agent: ClientAgent, addresses: list[str], seconds: float) -> list[wire.Locate]:
    """Run the agent; every broker answers after 50 ms. Returns what the client reported."""
    connections = [ClientConnection(n, address, ready=True, probes=True) for n, address in enumerate(addresses, 1)]
    reports: list[wire.Locate] = []
    for step in range(int(seconds / 0.1)):
        now_s = 10.0 + 0.1 * step
        for effect in list(agent.probes(connections, now_s)):
            assert isinstance(effect, Send)
            assert isinstance(effect.message, wire.Probe)
            connection = connections[effect.connection - 1]
            answer = wire.Probed(effect.message.id, 5, at(*BROKERS_S[connection.address]))
            reports += [_report(effect) for effect in agent.probed(connection, answer, now_s + 0.050)]
    return reports


def _report(effect: Effect) -> wire.Locate:
    assert isinstance(effect, Send)
    assert isinstance(effect.message, wire.Locate)
    return effect.message


def test_three_brokers_give_a_coordinate_that_predicts_their_distances() -> None:
    agent = new_agent()
    reports = measure(agent, list(BROKERS_S), 20.0)
    assert agent.coordinate is not None
    for position in BROKERS_S.values():
        assert distance_s(agent.coordinate, at(*position)) == pytest.approx(0.050, rel=0.1)
    assert reports[0] == wire.Locate(5, None)
    assert reports[-1].coordinate == agent.coordinate


def test_single_broker_gives_no_coordinate() -> None:
    agent = new_agent()
    reports = measure(agent, ["ws://a"], 20.0)
    assert reports
    assert all(report.coordinate is None for report in reports)
    agent.references = 1
    assert agent.coordinate is not None, "the network has one broker"


def test_client_probes_every_five_seconds_after_the_first_samples() -> None:
    agent = new_agent()
    assert FIRST_SAMPLES <= len(measure(agent, ["ws://a"], 8.0)) <= FIRST_SAMPLES + 1
    connection = ClientConnection(1, "ws://a", ready=True, probes=True)
    assert len(list(agent.probes([connection], 10.0 + 8.0 + 2 * PROBE_S))) == 1


def test_broker_without_probes_and_lost_answers_are_no_problem() -> None:
    agent = new_agent()
    old = ClientConnection(1, "ws://a", ready=True)
    assert list(agent.probes([old], 10.0)) == []
    new = ClientConnection(2, "ws://b", ready=True, probes=True)
    [probe] = agent.probes([new], 10.0)
    assert list(agent.probes([new], 10.0 + PROBE_S)) == [], "an answer is on its way"
    assert len(list(agent.probes([new], 10.0 + 2 * PROBE_S))) == 1
    assert isinstance(probe, Send)
    assert isinstance(probe.message, wire.Probe)
    assert list(agent.probed(new, wire.Probed(probe.message.id, 5, None), 30.0)) == [], "the answer is too old"


def test_session_connects_to_landmarks_logs_in_and_probes() -> None:
    session = TopicSession(7, lambda: 0.0, agent=new_agent())
    [connect] = session.handle(LandmarksReceived("t1", ["ws://a"]), 1000.0)
    assert isinstance(connect, Connect)
    number = connect.connection
    [login] = session.handle(ConnectionOpened(number), 1000.1)
    assert isinstance(login, Send)
    assert isinstance(login.message, wire.Login)
    assert login.message.token == "t1"
    session.handle(MessageReceived(number, wire.LoggedIn(1, BrokerId("a"), 5.0, 100, 100, True)), 1000.2)
    [probe] = session.handle(Ticked(), 1000.3)
    assert isinstance(probe, Send)
    assert isinstance(probe.message, wire.Probe)
    answer = wire.Probed(probe.message.id, 5, at(0.0, 0.0))
    assert session.handle(MessageReceived(number, answer), 1000.35) == [Send(number, wire.Locate(5))]


def answered(agent: ClientAgent, connection: ClientConnection, now_s: float, rtt_s: float) -> wire.Locate | None:
    """Let the broker of this connection answer the probe that is due; None if none is."""
    for effect in list(agent.probes([connection], now_s)):
        assert isinstance(effect, Send) and isinstance(effect.message, wire.Probe)
        answer = wire.Probed(effect.message.id, 5, at(*BROKERS_S[connection.address]))
        [report] = agent.probed(connection, answer, now_s + rtt_s)
        return _report(report)
    return None


def test_mobile_client_is_at_its_gateway_with_its_access_delay() -> None:
    agent = new_agent()
    gateway = ClientConnection(1, "ws://b", ready=True, probes=True)
    agent.use_gateway("ws://b")
    before = agent.coordinate
    answered(agent, gateway, 10.0, 0.020)
    after = agent.coordinate
    assert before is None
    assert after is not None
    assert distance_s(after, at(*BROKERS_S["ws://b"])) == pytest.approx(0.020)
    assert distance_s(after, at(*BROKERS_S["ws://a"])) == pytest.approx(0.080)


def test_home_learns_of_another_gateway_at_once() -> None:
    agent = new_agent()
    home = ClientConnection(1, "ws://a", ready=True, probes=True)
    agent.use_gateway("ws://a")
    for step in range(FIRST_SAMPLES):
        assert answered(agent, home, 10.0 + step, 0.020) is not None
    assert answered(agent, home, 31.0, 0.020) is None
    agent.use_gateway("ws://b")
    report = answered(agent, home, 31.1, 0.080)
    assert report is not None and report.moved and report.coordinate is None
    report = answered(agent, home, 31.5, 0.080)
    assert report is not None and not report.moved


def test_probe_on_its_way_during_a_move_does_not_announce_the_move() -> None:
    agent = new_agent()
    home = ClientConnection(1, "ws://a", ready=True, probes=True)
    [probe] = agent.probes([home], 10.0)
    assert isinstance(probe, Send) and isinstance(probe.message, wire.Probe)
    agent.use_gateway("ws://b")
    [report] = agent.probed(home, wire.Probed(probe.message.id, 5, at(0.0, 0.0)), 10.02)
    assert not _report(report).moved
    later = answered(agent, home, 10.4, 0.080)
    assert later is not None and later.moved


def test_move_right_after_a_probe_is_reported_soon() -> None:
    """The broker refuses two probes within 0.2 s, and the client would wait ten seconds for the answer."""
    agent = new_agent()
    home = ClientConnection(1, "ws://a", ready=True, probes=True)
    [probe] = agent.probes([home], 10.0)
    agent.use_gateway("ws://b")
    assert [list(agent.probes([home], 10.0 + late_s)) for late_s in (0.05, 0.1, 0.2)] == [[], [], []]
    assert isinstance(probe, Send) and isinstance(probe.message, wire.Probe)
    report = answered(agent, home, 10.31, 0.080)
    assert report is not None and report.moved


def test_refused_probe_is_sent_again_after_the_short_pause() -> None:
    agent = new_agent()
    home = ClientConnection(1, "ws://a", ready=True, probes=True)
    agent.use_gateway("ws://b")
    answered(agent, home, 9.0, 0.02)
    agent.use_gateway("ws://a")
    [probe] = agent.probes([home], 10.0)
    assert isinstance(probe, Send) and isinstance(probe.message, wire.Probe)
    agent.refused(home, wire.Refused(probe.message.id, Code.TOO_MANY, "at most one probe in 0.2 s", 0.2))
    assert list(agent.probes([home], 10.1)) == []
    report = answered(agent, home, 10.31, 0.080)
    assert report is not None and report.moved, "the broker has not heard of the move yet"


def test_client_of_the_papers_loop_reports_only_every_five_seconds() -> None:
    agent = new_agent()
    agent.prompt = False
    home = ClientConnection(1, "ws://a", ready=True, probes=True)
    times = [step / 10 for step in range(120) if answered(agent, home, step / 10, 0.02) is not None]
    assert times == [PROBE_S, 2 * PROBE_S]


def test_session_stays_connected_to_its_gateway() -> None:
    session = TopicSession(7, lambda: 0.0, agent=new_agent())
    assert session.handle(GatewayChanged("ws://b"), 1000.0) == [], "there is no token yet"
    effects = session.handle(LandmarksReceived("t1", []), 1000.1) + session.handle(Ticked(), 1000.2)
    [connect] = effects
    assert isinstance(connect, Connect)
    assert connect.address == "ws://b"
    session.handle(ConnectionOpened(connect.connection), 1000.3)
    logged_in = wire.LoggedIn(1, BrokerId("b"), 1e6, 100, 100, False)
    session.handle(MessageReceived(connect.connection, logged_in), 1000.4)
    for step in range(100):
        assert session.handle(Ticked(), 1001.0 + step) == []
