"""Capacity of a home: limits that change at run time, loads as offered, profiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.limits import TopicLimits
from tocsin.model.ids import BrokerId, TopicName
from tocsin.runtime.broker.topic_capacity import TopicCapacity
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import site_link, topic_link
from tocsin.wire import topic as wire
from tocsin.wire.site_link import Capacity, ReportProfile, Role, SetCapacity

T = TopicName("site/sensor")


@dataclass
class Client:
    """A connection that decodes the frames it gets."""

    received: list[wire.ToClient] = field(default_factory=list)
    drained: Callable[[], None] = lambda: None
    claims: Claims | None = None
    closed: bool = False

    def write(self, data: bytes) -> None:
        header = 10 if data[1] & 0x7F == 127 else 4 if data[1] & 0x7F == 126 else 2
        self.received.append(msgspec.msgpack.decode(data[header:], type=wire.ToClient))

    def await_drain(self) -> None:
        self.drained()

    def close(self, reason: str) -> None:
        self.closed = True

    @property
    def sequences(self) -> list[int]:
        """Sequence numbers of the messages; those of a gap are negative."""
        numbers: list[int] = []
        for message in self.received:
            if isinstance(message, wire.Messages):
                numbers += range(message.sequence, message.sequence + len(message.messages))
            elif isinstance(message, wire.Gap):
                numbers += [-number for number in range(message.first, message.last + 1)]
        return numbers


class Home:
    """A home with a capacity, a clock and timers that the test turns."""

    def __init__(self, capacity: Capacity, role: Role = Role.PLAIN, receivers: int = 3, **limits: int) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.process = TopicsProcess(BrokerId("b1"), TopicLimits(**limits), lambda: self.now_s)
        self.capacity = TopicCapacity(self.process, capacity, role, self._call_later)
        self.capacity.set_capacity(capacity)
        self.process.handlers[effects.RequestFlush] = lambda effect: None  # the test flushes itself
        self.reports: list[site_link.FromBroker] = []
        self.capacity.report = self.reports.append
        self.process.happened(events.CoordinatorMessageReceived(topic_link.OwnTopics([topic_link.OwnedTopic(T, 1)])))
        self.process.core.state.lease.until_s = float("inf")
        self.receivers = [self.connect(f"r{number}", wire.AttachReceiver(1, T)) for number in range(receivers)]
        self.sender = self.connect("sender", wire.AttachSender(1, T, 7))
        self._numbers = 0

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.now_s + delay_s, callback))

    def connect(self, user: str, attach: wire.FromClient) -> tuple[Client, ConnectionId]:
        client = Client()
        identity = self.process.new_connection(client)
        client.drained = lambda: self.process.connection_drained(identity)
        self.process.happened(events.ConnectionOpened(identity, user, 0, run=5))
        self.process.happened(events.RequestReceived(identity, attach))
        return client, identity

    def publish(self, data: bytes, messages: int = 1) -> None:
        request = wire.Publish(self.process.core.state.topics[T].at, self._numbers + 1, [data] * messages)
        self._numbers += messages
        self.process.happened(events.PublishedAlone(self.sender[1], request))
        self.process.happened(events.FlushDue())

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.timers and min(self.timers, key=lambda timer: timer[0])[0] <= end_s:
            self.timers.sort(key=lambda timer: timer[0])
            self.now_s, callback = self.timers.pop(0)
            callback()
            self.process.happened(events.FlushDue())
        self.now_s = end_s


def test_home_without_limits_and_role_counts_and_shapes_nothing() -> None:
    home = Home(Capacity())
    assert (home.process.egress, home.process.matching, home.process.meter) == (None, None, None)
    assert home.process.observe is None
    assert home.process.handle == home.process.core.handle
    home.publish(b"x")
    assert [client.sequences for client, _ in home.receivers] == [[1]] * 3


def test_offered_load_counts_every_receiver_and_its_own_topic() -> None:
    home = Home(Capacity(out_bytes_per_s=1e9))
    home.capacity.site_load()
    for _ in range(10):
        home.publish(bytes(1_000), messages=2)
    home.now_s += 2.0
    (topic,) = home.capacity.site_load().topics
    assert (topic.topic, topic.receivers, topic.senders) == (T, 3, 1)
    assert topic.matched_per_s == 10.0
    assert topic.in_bytes_per_s == pytest.approx(10_000, rel=0.05)
    assert topic.out_bytes_per_s == pytest.approx(30_000, rel=0.06)


def test_offered_load_has_the_size_of_an_overload() -> None:
    home = Home(Capacity(out_bytes_per_s=10_000.0), topic_queue_bytes=20_000)
    home.capacity.site_load()
    for second in range(8):
        for _ in range(20):
            home.publish(bytes(1_000))
            home.run(0.05)
        load = home.capacity.site_load()
        if second:
            assert load.topics[0].out_bytes_per_s == pytest.approx(60_000, rel=0.15), second
            assert load.sent_bytes_per_s == pytest.approx(10_000, rel=0.15)
    assert home.process.core.state.topics[T].lagging, "connections are blocked by now"
    assert 0 < load.waiting_bytes <= 3 * 22_000


def test_slow_output_keeps_order_and_reports_gaps_instead_of_losing() -> None:
    home = Home(Capacity(out_bytes_per_s=20_000.0), topic_queue_bytes=10_000, topic_recent_bytes=20_000)
    for _ in range(200):
        home.publish(bytes(1_000))
        home.run(0.02)
    home.capacity.handle(SetCapacity(Capacity()))
    assert home.process.egress is None
    for client, _ in home.receivers:
        assert [abs(number) for number in client.sequences] == list(range(1, 201))
        assert any(number < 0 for number in client.sequences)
    home.publish(b"last")
    assert [client.sequences[-1] for client, _ in home.receivers] == [201] * 3


def test_output_limited_at_run_time_sends_at_the_new_rate() -> None:
    home = Home(Capacity(), receivers=2)
    home.capacity.handle(SetCapacity(Capacity(out_bytes_per_s=50_000.0)))
    for _ in range(300):
        home.publish(bytes(1_000))
    home.run(2.0)
    assert sum(len(client.sequences) for client, _ in home.receivers) == pytest.approx(98, rel=0.1)
    home.capacity.handle(SetCapacity(Capacity(out_bytes_per_s=1e9)))
    home.run(1.0)
    assert [client.sequences for client, _ in home.receivers] == [list(range(1, 301))] * 2


def test_large_frame_of_a_publisher_leaves_in_frames_of_a_burst() -> None:
    home = Home(Capacity(out_bytes_per_s=200_000.0), receivers=1)
    home.publish(bytes(1_000), messages=100)
    client, _ = home.receivers[0]
    batches = [len(message.messages) for message in client.received if isinstance(message, wire.Messages)]
    assert batches == [10]
    home.run(0.6)
    assert client.sequences == list(range(1, 101))


def test_closed_connection_gets_nothing_after_its_close_frame() -> None:
    home = Home(Capacity(out_bytes_per_s=5_000.0), receivers=1)
    client, identity = home.receivers[0]
    for _ in range(5):
        home.publish(bytes(1_000))
    home.process.happened(events.ConnectionRevoked(identity))
    assert client.closed and isinstance(client.received[-1], wire.Closing)
    home.run(5.0)
    assert isinstance(client.received[-1], wire.Closing)
    assert home.process.egress is not None and home.process.egress.waiting_bytes == 0


def test_messages_beyond_the_matching_budget_wait_in_order() -> None:
    home = Home(Capacity(matched_per_s=100.0))
    home.capacity.site_load()
    for _ in range(300):
        home.publish(b"x")
    home.now_s += 1.0
    load = home.capacity.site_load()
    assert load.topics[0].matched_per_s == 300.0
    assert load.waiting_messages == pytest.approx(294, abs=2)
    home.run(1.0)
    assert len(home.receivers[0][0].sequences) == pytest.approx(200, rel=0.1)
    home.capacity.handle(SetCapacity(Capacity()))
    home.process.happened(events.FlushDue())
    assert [client.sequences for client, _ in home.receivers] == [list(range(1, 301))] * 3
    assert home.process.matching is None


def test_publisher_is_refused_for_a_while_when_the_queue_is_full() -> None:
    home = Home(Capacity(matched_per_s=10.0))
    for _ in range(100):
        home.publish(b"x")
    refused = [message for message in home.sender[0].received if isinstance(message, wire.NotAccepted)]
    assert refused and refused[0].code == "backlogged" and refused[0].retry_after_s
    home.run(60.0)
    accepted = [message for message in home.sender[0].received if isinstance(message, wire.Acknowledged)]
    assert home.receivers[0][0].sequences == list(range(1, accepted[-1].number + 1))
    assert accepted[-1].number == refused[0].number - 1


def test_client_that_may_not_publish_takes_nothing_of_the_matching_budget() -> None:
    home = Home(Capacity(matched_per_s=10.0))
    stranger, identity = home.connect("mallory", wire.AttachReceiver(1, T))
    topic = home.process.core.state.topics[T]
    for number in range(100):
        home.process.happened(events.RequestReceived(identity, wire.Publish(topic.at + number, 1, [b""] * 100)))
    assert home.process.matching is not None and home.process.matching.waiting_messages == 0
    assert {message.code for message in stranger.received if isinstance(message, wire.NotAccepted)} == {"not_home"}
    home.publish(b"x")
    assert home.receivers[0][0].sequences == [1]


def test_matching_of_a_head_is_not_limited() -> None:
    home = Home(Capacity(matched_per_s=1.0), Role.HEAD)
    for _ in range(50):
        home.publish(b"x")
    assert home.receivers[0][0].sequences == list(range(1, 51))


def test_profile_names_receivers_or_the_senders_of_a_head() -> None:
    for role, expected in ((Role.EDGE, ["r0/5", "r1/5", "r2/5"]), (Role.HEAD, ["sender/5"])):
        home = Home(Capacity(), role)
        home.publish(bytes(1_000))
        home.now_s += 1.0
        home.capacity.site_load()
        home.capacity.handle(ReportProfile(4))
        profile = home.reports[-1]
        assert isinstance(profile, site_link.SiteProfile) and profile.number == 4
        assert sorted(client for client, _ in profile.topics[T]) == expected
        assert all(rate_per_s == pytest.approx(1_050, rel=0.05) for _, rate_per_s in profile.topics[T])


def test_neighbouring_sites_count_as_receivers_and_are_in_no_profile() -> None:
    home = Home(Capacity(out_bytes_per_s=2_000.0), Role.EDGE, receivers=0, topic_queue_bytes=1_000)
    home.process.handlers[effects.UseNeighbours] = lambda effect: None
    home.process.happened(events.FederationReceived(site_link.Federate("east")))
    home.connect("site-west", wire.AttachReceiver(1, T, flows={"east": 0}))
    home.connect("site-north", wire.AttachReceiver(1, T, flows={"south": 0}))
    home.now_s += 1.0
    for waiting in range(2):
        (load,) = home.capacity.site_load().topics
        assert (load.receivers, load.senders) == (1, 1), "the other site takes no messages of this one"
        home.capacity.handle(ReportProfile(4))
        assert home.reports[-1] == site_link.SiteProfile(4, {})
        for _ in range(5 * (1 - waiting)):
            home.publish(bytes(1_000))
        assert waiting or home.process.core.state.topics[T].lagging, "the connection of the neighbour is full"
        home.now_s += 1.0


def test_relays_are_in_no_profile_of_a_home() -> None:
    home = Home(Capacity(), Role.EDGE, receivers=1)
    home.connect("relay-e2", wire.AttachReceiver(1, T, at_home=True))
    home.capacity.handle(ReportProfile(4))
    profile = home.reports[-1]
    assert isinstance(profile, site_link.SiteProfile)
    assert [client for client, _ in profile.topics[T]] == ["r0/5"]


def test_blocked_connections_get_beats() -> None:
    home = Home(Capacity(out_bytes_per_s=100.0), receivers=1, topic_queue_bytes=2_000)
    for _ in range(5):
        home.publish(bytes(1_000))
    home.capacity.beat_blocked()
    assert home.receivers[0][0].received[-1] == wire.Beat()
