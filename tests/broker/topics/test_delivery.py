"""Receivers of a topic: every message after the attach, or a gap that covers it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.broker.topics.home_bench import HomeBench, T
from tocsin.broker.message_encoding import Encoding
from tocsin.broker.topics import effects, events
from tocsin.wire import topic as wire


def test_new_receiver_starts_with_the_next_message() -> None:
    bench = HomeBench(T)
    sender = bench.sender()
    bench.publish(sender, 1, b"a")
    receiver = bench.receiver()
    bench.publish(sender, 2, b"b")
    attached, *_ = bench.got[receiver]
    assert attached == wire.ReceiverAttached(2, 1, 1, 1, since=1)
    assert bench.data(receiver) == [b"b"]


def test_receiver_that_reconnects_gets_recent_messages_behind_its_position() -> None:
    bench = HomeBench(T)
    bench.publish(bench.sender(), 1, b"a", b"b", b"c")
    assert bench.data(bench.receiver(after=(1, 1))) == [b"b", b"c"]
    assert bench.data(bench.receiver(after=(1, 3))) == []


def test_messages_that_are_not_kept_are_reported_as_a_gap() -> None:
    bench = HomeBench(T, topic_recent_bytes=2)
    bench.publish(bench.sender(), 1, b"a", b"b", b"c", b"d")
    _, gap, messages = bench.take(bench.receiver(after=(1, 1)))
    assert gap == wire.Gap(1, 1, 2, 2)
    assert isinstance(messages, wire.Messages)
    assert (messages.sequence, [entry[2] for entry in messages.messages]) == (3, [b"c", b"d"])


def test_position_of_an_earlier_epoch_gives_a_gap_of_unknown_length() -> None:
    bench = HomeBench(T, epoch=6)
    bench.publish(bench.sender(), 1, b"a")
    attached, messages = bench.take(bench.receiver(after=(5, 17)))
    assert attached == wire.ReceiverAttached(2, 1, 6, 0, missed=(5, 18), since=6)
    assert isinstance(messages, wire.Messages)
    assert (messages.epoch, messages.sequence) == (6, 1)


def test_position_of_a_later_epoch_is_refused() -> None:
    bench = HomeBench(T, epoch=6)
    refused = bench.last(bench.receiver(after=(7, 1)))
    assert isinstance(refused, wire.Refused)
    assert refused.code == "not_home"


def test_blocked_receiver_gets_kept_messages_when_it_drains() -> None:
    bench = HomeBench(T)
    sender, slow, quick = bench.sender(), bench.receiver(), bench.receiver()
    bench.do(events.ConnectionBlocked(slow))
    bench.publish(sender, 1, b"a", b"b")
    assert bench.data(quick) == [b"a", b"b"]
    assert bench.data(slow) == []
    bench.do(events.ConnectionDrained(slow))
    bench.publish(sender, 3, b"c")
    assert bench.data(slow) == [b"a", b"b", b"c"]


def test_slow_receiver_gets_a_gap_and_others_see_nothing_of_it() -> None:
    bench = HomeBench(T, topic_recent_bytes=1)
    sender, slow, quick = bench.sender(), bench.receiver(), bench.receiver()
    bench.take(slow)
    bench.do(events.ConnectionBlocked(slow))
    for number in range(1, 6):
        bench.publish(sender, number, b"%d" % number)
    bench.do(events.ConnectionDrained(slow))
    gap, messages = bench.take(slow)
    assert gap == wire.Gap(1, 1, 1, 4)
    assert isinstance(messages, wire.Messages)
    assert messages.sequence == 5
    assert bench.data(quick) == [b"1", b"2", b"3", b"4", b"5"]


def test_long_catch_up_pauses_until_the_connection_drains() -> None:
    bench = HomeBench(T, topic_message_bytes=100_000)
    bench.publish(bench.sender(), 1, *(bytes([number]) * 100_000 for number in range(1, 5)))
    receiver = bench.receiver(after=(1, 0))
    first = bench.data(receiver)
    assert len(first) == 2
    assert bench.drains == [receiver]
    bench.do(events.ConnectionDrained(receiver))
    assert [data[0] for data in (*first, *bench.data(receiver))] == [1, 2, 3, 4]


def test_one_frame_is_shared_by_all_receivers_of_an_encoding() -> None:
    bench = HomeBench(T)
    sender = bench.sender()
    packed = [bench.receiver() for _ in range(3)]
    text = bench.connect(encoding=Encoding.JSON)
    bench.ask(text, wire.AttachReceiver(9, T))
    bench.core.handle(events.RequestReceived(sender, wire.Publish(1, 1, [b"x"])), bench.now_s)
    sent = [effect for effect in bench.core.handle(events.FlushDue(), bench.now_s) if isinstance(effect, effects.Send)]
    fan_out = {effect.connections for effect in sent if isinstance(effect.message, wire.Messages)}
    assert fan_out == {tuple(packed), (text,)}


def test_detached_receiver_gets_nothing_more() -> None:
    bench = HomeBench(T)
    sender, receiver = bench.sender(), bench.receiver()
    bench.ask(receiver, wire.Detach(5, 1))
    bench.take(receiver)
    bench.publish(sender, 1, b"a")
    assert bench.take(receiver) == []


def test_quiet_connection_gets_a_beat() -> None:
    bench = HomeBench(T, topic_beat_s=4.0)
    connection = bench.connect()
    bench.pass_time(1.0)
    assert bench.take(connection) == []
    bench.pass_time(1.5)
    assert bench.take(connection) == [wire.Beat()]


def test_lost_connection_leaves_nothing_behind() -> None:
    bench = HomeBench(T)
    sender, receiver = bench.sender(), bench.receiver()
    bench.publish(sender, 1, b"a")
    for connection in (sender, receiver):
        bench.do(events.ConnectionLost(connection))
    topic = bench.core.state.topics[T]
    assert not (topic.clients or bench.core.state.connections)


@given(
    st.lists(st.sampled_from(["publish", "block", "drain", "lose", "attach"]), max_size=60),
    st.integers(1, 60),
)
def test_receiver_misses_nothing_without_a_gap(steps: list[str], recent_bytes: int) -> None:
    bench = HomeBench(T, topic_recent_bytes=recent_bytes)
    sender, receiver = bench.sender(), bench.receiver()
    number, position, blocked = 0, 0, False

    def read() -> None:
        nonlocal position
        for message in bench.take(receiver):
            match message:
                case wire.Messages():
                    assert message.sequence == position + 1
                    assert [entry[1] for entry in message.messages] == list(
                        range(position + 1, position + 1 + len(message.messages))
                    )
                    position += len(message.messages)
                case wire.Gap(_, _, first, last):
                    assert first == position + 1
                    position = last

    for step in steps:
        if step == "publish":
            number += 1
            bench.publish(sender, number, b"0123456789")
        elif step == "block":
            blocked = True
            bench.do(events.ConnectionBlocked(receiver))
        elif step == "drain":
            blocked = False
            bench.do(events.ConnectionDrained(receiver))
        elif step == "lose":
            read()
            bench.do(events.ConnectionLost(receiver))
            receiver, blocked = bench.receiver(after=(1, position)), False
        else:
            bench.ask(receiver, wire.AttachReceiver(1, T, (1, position))) if not bench.got.get(receiver) else None
        read()
    if blocked:
        bench.do(events.ConnectionDrained(receiver))
    read()
    assert position == number
