"""The process around the topics core: when it sends the messages of a frame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tocsin.broker.topics import events
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.limits import TopicLimits
from tocsin.model.ids import BrokerId, TopicName
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import topic as wire
from tocsin.wire import topic_link

T = TopicName("swarm/3/leader")
APART_S = 0.001


@dataclass
class Client:
    """A connection that records the frames it gets."""

    claims: Claims | None = None
    frames: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.frames.append(data)

    def await_drain(self) -> None: ...

    def close(self, reason: str) -> None: ...

    def batches(self) -> list[list[bytes]]:
        """The payloads of each frame with messages."""
        decoded = [msgspec.msgpack.decode(frame[2:], type=wire.ToClient) for frame in self.frames]
        return [[data for _, _, data in one.messages] for one in decoded if isinstance(one, wire.Messages)]


@dataclass
class Home:
    """A home with a hand-turned clock, a receiver and senders."""

    now_s: float = 100.0

    def __post_init__(self) -> None:
        self.process = TopicsProcess(BrokerId("b1"), TopicLimits(), lambda: self.now_s)
        self.process.happened(events.CoordinatorMessageReceived(topic_link.OwnTopics([topic_link.OwnedTopic(T, 1)])))
        self.process.core.state.lease.until_s = float("inf")
        self.receiver, identity = self._connect()
        self.process.happened(events.RequestReceived(identity, wire.AttachReceiver(1, T)))

    def _connect(self) -> tuple[Client, ConnectionId]:
        client = Client()
        identity = self.process.new_connection(client)
        self.process.happened(events.ConnectionOpened(identity, "ann", 0))
        return client, identity

    def sender(self, run: int) -> Callable[[int, bytes], None]:
        _, identity = self._connect()
        self.process.happened(events.RequestReceived(identity, wire.AttachSender(1, T, run)))
        at = self.process.core.state.topics[T].at
        return lambda number, data: self.process.publish_alone(identity, wire.Publish(at, number, [data]))


def test_single_frame_is_sent_before_the_turn_ends() -> None:
    async def scenario() -> None:
        home = Home()
        publish = home.sender(7)
        for number in (1, 2):
            publish(number, b"%d" % number)
            assert home.receiver.batches()[-1] == [b"%d" % number]
            home.now_s += APART_S

    asyncio.run(scenario())


def test_frames_of_one_turn_leave_together_after_the_first() -> None:
    async def scenario() -> None:
        home = Home()
        senders = [home.sender(run) for run in range(3)]
        for publish in senders:
            publish(1, b"1")
        assert home.receiver.batches() == [[b"1"]]
        await asyncio.sleep(0)
        assert home.receiver.batches() == [[b"1"], [b"1", b"1"]]
        home.now_s += APART_S
        for publish in senders:  # the home has seen that frames arrive together
            publish(2, b"2")
        assert len(home.receiver.batches()) == 2
        await asyncio.sleep(0)
        assert home.receiver.batches()[2:] == [[b"2", b"2", b"2"]]

    asyncio.run(scenario())


def test_home_sends_single_frames_at_once_again_after_a_pause() -> None:
    async def scenario() -> None:
        home = Home()
        first, second = home.sender(1), home.sender(2)
        first(1, b"a")
        second(1, b"b")
        await asyncio.sleep(0)
        home.now_s += 1.0
        first(2, b"c")
        assert home.receiver.batches() == [[b"a"], [b"b"], [b"c"]]

    asyncio.run(scenario())
