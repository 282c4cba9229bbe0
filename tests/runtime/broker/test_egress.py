"""The egress shaper: order per connection, exact rate, blocked connections, closed ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.broker.topics.effects import Send
from tocsin.broker.topics.events import ConnectionId
from tocsin.model.ids import BrokerId, TopicName
from tocsin.runtime.broker.egress import Connection, Egress
from tocsin.runtime.broker.pace import WAKE_S
from tocsin.wire import topic as wire

T = TopicName("t")
KINDS: list[wire.ToClient] = [
    wire.Messages(1, 1, 1, []),
    wire.Gap(1, 1, 1, 2),
    wire.ReceiverAttached(1, 1, 1, 0),
    wire.Moved(1, T, BrokerId("b"), ""),
    wire.Ended(1, T, "not_home", ""),
    wire.Detached(1),
]


@dataclass
class Client:
    frames: list[bytes] = field(default_factory=list)
    drains: int = 0

    def write(self, data: bytes) -> None:
        self.frames.append(data)

    def await_drain(self) -> None:
        self.drains += 1


class Loop:
    """An egress with a clock that the test turns, and its timers."""

    def __init__(self, rate_per_s: float, clients: int = 3, queue_bytes: int = 1 << 20) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.clients = {ConnectionId(number): Client() for number in range(clients)}
        self.blocked: list[ConnectionId] = []
        connections: dict[ConnectionId, Connection] = dict(self.clients)
        self.connections = connections
        self.egress = Egress(
            rate_per_s, queue_bytes, connections, lambda: self.now_s, self._call_later, self.blocked.append
        )

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        assert delay_s >= WAKE_S
        self.timers.append((self.now_s + delay_s, callback))

    def send(self, data: bytes, *to: int, message: wire.ToClient = KINDS[0]) -> None:
        self.egress.send(Send(tuple(map(ConnectionId, to)) or tuple(self.clients), message, data))

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.timers and min(self.timers, key=lambda timer: timer[0])[0] <= end_s:
            self.timers.sort(key=lambda timer: timer[0])
            self.now_s, callback = self.timers.pop(0)
            callback()
        self.now_s = end_s

    def received(self, client: int) -> list[bytes]:
        return self.clients[ConnectionId(client)].frames

    @property
    def received_bytes(self) -> int:
        return sum(len(frame) for client in self.clients.values() for frame in client.frames)


@pytest.mark.parametrize("rate_per_s", [10_000.0, 200_000.0, 5e6])
def test_backlogged_output_has_the_rate_within_one_percent(rate_per_s: float) -> None:
    loop = Loop(rate_per_s, queue_bytes=1 << 30)
    for _ in range(int(8 * rate_per_s / 3_000)):
        loop.send(bytes(1_000))
    loop.run(1.0)
    before = loop.received_bytes
    loop.run(5.0)
    assert loop.received_bytes - before == pytest.approx(5 * rate_per_s, rel=0.01, abs=3_000)
    assert loop.egress.sent_bytes == loop.received_bytes


def test_changed_rate_holds_at_once_and_keeps_order() -> None:
    loop = Loop(10_000.0, clients=1)
    for number in range(1_000):
        loop.send(b"%04d" % number * 25)
    loop.run(2.0)
    at_first = loop.received_bytes
    loop.egress.set_rate(40_000.0)
    loop.run(1.0)
    assert loop.received_bytes - at_first == pytest.approx(40_000, rel=0.05)
    loop.egress.set_rate(math.inf)
    assert [frame[:4] for frame in loop.received(0)] == [b"%04d" % number for number in range(1_000)]
    assert loop.egress.waiting_bytes == 0


def test_large_fan_out_leaves_in_parts_of_the_burst() -> None:
    loop = Loop(100_000.0, clients=1_000)
    loop.send(bytes(1_000))
    assert loop.received_bytes <= 100_000 * 0.05 + 2_500
    loop.run(1.0)
    assert loop.received_bytes == pytest.approx(105_000, rel=0.05)
    loop.run(10.0)
    assert all(len(client.frames) == 1 for client in loop.clients.values())


def test_frames_that_are_no_part_of_a_stream_do_not_wait() -> None:
    loop = Loop(1_000.0, clients=1)
    for _ in range(10):
        loop.send(bytes(1_000))
    others: list[wire.ToClient] = [wire.Acknowledged(1, 1), wire.Beat(), wire.Pong(1), wire.Closing("x", "", True)]
    for message in others:
        loop.send(b"now", message=message)
    assert loop.received(0).count(b"now") == len(others)
    assert len(loop.received(0)) == len(others) + 1


def test_short_frame_waits_only_behind_its_own_connection() -> None:
    loop = Loop(1_000.0, clients=2)
    for _ in range(3):
        loop.send(bytes(1_000), 0)
    loop.send(b"ended", message=KINDS[4])
    assert loop.received(1) == [b"ended"]
    assert b"ended" not in loop.received(0)
    loop.run(10.0)
    assert loop.received(0)[-1] == b"ended"


def test_full_connection_is_blocked_and_drained_later() -> None:
    loop = Loop(10_000.0, clients=2, queue_bytes=5_000)
    for _ in range(7):
        loop.send(bytes(1_000), 0)
    loop.send(bytes(1_000), 1)
    assert loop.blocked == [ConnectionId(0)]
    assert loop.egress.is_blocked(ConnectionId(0)) and not loop.egress.is_blocked(ConnectionId(1))
    loop.run(0.3)
    assert loop.clients[ConnectionId(0)].drains == 0
    loop.run(1.0)
    assert loop.clients[ConnectionId(0)].drains == 1
    assert not loop.egress.is_blocked(ConnectionId(0))


def test_frames_of_a_closed_connection_leave_the_shaper_without_cost() -> None:
    loop = Loop(10_000.0, clients=2)
    for _ in range(50):
        loop.send(bytes(1_000), 0)
    loop.send(bytes(500), 1)
    assert loop.egress.waiting_bytes == pytest.approx(49_500, abs=1_000)
    del loop.connections[ConnectionId(0)]
    loop.egress.forget(ConnectionId(0))
    assert loop.egress.waiting_bytes == 500
    loop.run(0.5)
    assert loop.received(1) == [bytes(500)], "49 frames of the closed connection would take five seconds"
    assert loop.egress.waiting_bytes == 0


def test_connections_that_come_and_go_do_not_fill_the_queue() -> None:
    loop = Loop(1_000.0, clients=1, queue_bytes=5_000)
    frames = [b"%d" % number + bytes(996) for number in range(8)]
    for frame in frames:
        loop.send(frame, 0)
    for number in range(1, 200):
        name = ConnectionId(number)
        loop.connections[name] = Client()
        for _ in range(6):
            loop.egress.send(Send((name,), KINDS[0], bytes(1_000)))
        loop.egress.send(Send((ConnectionId(0), name), KINDS[0], b"to both"))
        del loop.connections[name]
        loop.egress.forget(name)
        assert loop.egress._shaper.queued_cost < 40_000
    loop.run(30.0)
    assert loop.received(0) == frames + [b"to both"] * 199
    assert (loop.egress.waiting_bytes, loop.egress._shaper.queued_cost) == (0, 0.0)


def test_connection_that_vanished_unannounced_leaves_nothing_behind() -> None:
    loop = Loop(1_000.0, clients=1, queue_bytes=2_000)
    for _ in range(5):
        loop.send(bytes(1_000))
    assert loop.blocked == [ConnectionId(0)]
    loop.connections.clear()
    loop.run(5.0)
    assert (loop.egress.waiting_bytes, loop.egress.blocked) == (0, [])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 0.2),
            st.integers(0, len(KINDS) - 1),
            st.sets(st.integers(0, 3), min_size=1),
            st.integers(1, 3_000),
            st.one_of(st.none(), st.floats(500.0, 1e6), st.just(math.inf)),
        ),
        min_size=1,
        max_size=80,
    )
)
def test_every_connection_gets_every_frame_once_in_order(
    sends: list[tuple[float, int, set[int], int, float | None]],
) -> None:
    loop = Loop(20_000.0, clients=4)
    expected: dict[int, list[bytes]] = {number: [] for number in range(4)}
    for number, (wait_s, kind, to, size, rate_per_s) in enumerate(sends):
        loop.run(wait_s)
        data = b"%06d" % number + bytes(size)
        if rate_per_s is not None:
            loop.egress.set_rate(rate_per_s)
        loop.send(data, *sorted(to), message=KINDS[kind])
        for client in to:
            expected[client].append(data)
    loop.egress.set_rate(math.inf)
    assert {number: loop.received(number) for number in range(4)} == expected
    assert loop.egress.waiting_bytes == 0
