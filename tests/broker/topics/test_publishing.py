"""Senders of a topic: order, repeats, limits and permissions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.broker.topics.home_bench import LEASE_S, HomeBench, T
from tocsin.broker.topics.effects import RequestFlush, Send
from tocsin.broker.topics.events import FlushDue, RequestReceived
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire

OTHER = TopicName("other")


def test_home_numbers_messages_and_acknowledges_a_batch_once() -> None:
    bench = HomeBench(T)
    sender, receiver = bench.sender(), bench.receiver()
    bench.take(sender), bench.take(receiver)
    bench.publish(sender, 1, b"a", b"b", b"c")
    (messages,) = bench.take(receiver)
    assert isinstance(messages, wire.Messages)
    assert (messages.epoch, messages.sequence) == (1, 1)
    assert [(number, data) for _, number, data in messages.messages] == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert bench.take(sender) == [wire.Acknowledged(messages.at, 3)]


def test_frame_that_arrives_alone_is_sent_and_acknowledged_at_once() -> None:
    bench = HomeBench(T)
    sender, receiver = bench.sender(), bench.receiver()
    messages, acknowledged = bench.publish_alone(sender, 1, b"a", b"b")
    assert isinstance(messages, Send) and isinstance(acknowledged, Send)
    assert messages.connections == (receiver,)
    assert isinstance(messages.message, wire.Messages)
    assert [data for _, _, data in messages.message.messages] == [b"a", b"b"]
    assert (acknowledged.connections, acknowledged.message) == ((sender,), wire.Acknowledged(1, 2))


def test_frame_that_arrives_alone_takes_earlier_messages_along() -> None:
    bench = HomeBench(T)
    first, second, receiver = bench.sender(run=7), bench.sender(run=8), bench.receiver()
    at = bench.core.state.topics[T].at
    (flush,) = bench.core.handle(RequestReceived(first, wire.Publish(at, 1, [b"a"])), bench.now_s)
    assert flush == RequestFlush()
    sent = [effect.message for effect in bench.publish_alone(second, 1, b"b") if isinstance(effect, Send)]
    assert isinstance(sent[0], wire.Messages)
    assert [data for _, _, data in sent[0].messages] == [b"a", b"b"]
    assert sent[1:] == [wire.Acknowledged(at, 1), wire.Acknowledged(at, 1)]
    assert bench.core.handle(FlushDue(), bench.now_s) == []
    bench.do(RequestReceived(receiver, wire.Ping(5)))
    assert bench.last(receiver) == wire.Pong(5)


def test_frame_that_arrives_alone_waits_for_the_flush_of_many_receivers() -> None:
    bench = HomeBench(T)
    sender = bench.sender()
    receivers = [bench.receiver() for _ in range(101)]
    assert bench.publish_alone(sender, 1, b"a") == [RequestFlush()]
    bench.do(FlushDue())
    assert all(bench.data(receiver) == [b"a"] for receiver in receivers)


def test_frame_that_arrives_alone_is_refused_without_a_lease() -> None:
    bench = HomeBench(T)
    sender = bench.sender()
    bench.now_s += LEASE_S + 1
    (refusal,) = bench.publish_alone(sender, 1, b"a")
    assert isinstance(refusal, Send) and isinstance(refusal.message, wire.NotAccepted)
    assert refusal.message.code == "not_ready"


def test_sender_that_does_not_wait_is_acknowledged_at_the_next_tick() -> None:
    bench = HomeBench(T)
    sender, receiver = bench.connect(), bench.receiver()
    bench.ask(sender, wire.AttachSender(2, T, 7, prompt=False))
    bench.take(sender), bench.take(receiver)
    bench.publish(sender, 1, b"a")
    bench.publish(sender, 2, b"b")
    assert bench.data(receiver) == [b"a", b"b"]
    assert bench.take(sender) == []
    bench.pass_time(0.1)
    assert bench.take(sender) == [wire.Acknowledged(1, 2)]
    bench.pass_time(0.1)
    assert bench.take(sender) == []


def test_sender_that_attaches_again_as_prompt_is_acknowledged_at_once() -> None:
    bench = HomeBench(T)
    sender = bench.connect()
    bench.ask(sender, wire.AttachSender(2, T, 7, prompt=False))
    bench.ask(sender, wire.AttachSender(3, T, 7))
    bench.take(sender)
    bench.publish(sender, 1, b"a")
    assert bench.take(sender) == [wire.Acknowledged(1, 1)]


def test_repeated_numbers_are_acknowledged_and_not_delivered_again() -> None:
    bench = HomeBench(T)
    sender, receiver = bench.sender(), bench.receiver()
    bench.publish(sender, 1, b"a", b"b")
    bench.publish(sender, 1, b"a", b"b", b"c")
    bench.publish(sender, 2, b"b")
    assert bench.data(receiver) == [b"a", b"b", b"c"]
    assert bench.last(sender) == wire.Acknowledged(1, 3)


def test_numbers_beyond_the_expected_one_are_ignored() -> None:
    bench = HomeBench(T)
    sender, receiver = bench.sender(), bench.receiver()
    bench.take(sender)
    bench.publish(sender, 2, b"b")
    assert bench.take(sender) == []
    bench.publish(sender, 1, b"a", b"b")
    assert bench.data(receiver) == [b"a", b"b"]


def test_sender_that_reconnects_continues_behind_its_last_accepted_number() -> None:
    bench = HomeBench(T)
    bench.publish(bench.sender(), 1, b"a", b"b")
    again = bench.sender(number=1)
    assert bench.last(again) == wire.SenderAttached(2, 1, 3)
    assert bench.last(bench.sender(run=8, number=5)) == wire.SenderAttached(3, 1, 5)


def test_publishers_of_different_users_never_share_a_number() -> None:
    bench = HomeBench(T)
    bench.publish(bench.sender(user="ann"), 1, b"a")
    bob = bench.sender(user="bob")
    assert bench.last(bob) == wire.SenderAttached(2, 1, 1)


def test_message_above_the_limit_is_dropped_and_the_next_is_accepted() -> None:
    bench = HomeBench(T, topic_message_bytes=2)
    sender, receiver = bench.sender(), bench.receiver()
    bench.take(sender)
    bench.publish(sender, 1, b"ok", b"long", b"go")
    refused, acknowledged = bench.take(sender)
    assert isinstance(refused, wire.NotAccepted)
    assert (refused.number, refused.code) == (2, "too_large")
    assert acknowledged == wire.Acknowledged(1, 3)
    assert bench.data(receiver) == [b"ok", b"go"]


def test_sender_above_its_rate_waits_and_continues_without_loss() -> None:
    bench = HomeBench(T, topic_rate_per_s=2)
    sender, receiver = bench.sender(), bench.receiver()
    bench.take(sender)
    bench.publish(sender, 1, b"a", b"b", b"c", b"d")
    refused = bench.take(sender)[0]
    assert isinstance(refused, wire.NotAccepted)
    assert (refused.number, refused.code) == (3, "backlogged")
    bench.publish(sender, 5, b"e")
    bench.now_s += refused.retry_after_s or 0.0
    bench.publish(sender, 3, b"c", b"d", b"e")
    assert bench.data(receiver) == [b"a", b"b", b"c"]
    bench.now_s += 1.0
    bench.publish(sender, 4, b"d", b"e")
    assert bench.data(receiver) == [b"d", b"e"]


def test_publishing_without_attach_is_refused() -> None:
    bench = HomeBench(T)
    connection = bench.connect()
    bench.publish(connection, 1, b"a")
    refused = bench.last(connection)
    assert isinstance(refused, wire.NotAccepted)
    assert refused.code == "not_home"


def test_scopes_of_the_token_limit_sending_and_receiving() -> None:
    bench = HomeBench(T, OTHER)
    connection = bench.connect(scopes=frozenset({"send:swarm/#", "receive:other"}))
    for topic, may_send, may_receive in ((T, True, False), (OTHER, False, True)):
        bench.ask(connection, wire.AttachSender(1, topic, 7))
        bench.ask(connection, wire.AttachReceiver(2, topic))
        sent, received = bench.take(connection)
        assert isinstance(sent, wire.SenderAttached) is may_send
        assert isinstance(received, wire.ReceiverAttached) is may_receive
        assert {answer.code for answer in (sent, received) if isinstance(answer, wire.Refused)} == {"forbidden"}


def test_connection_has_a_limited_number_of_topics() -> None:
    bench = HomeBench(T, OTHER, topic_attachments=1)
    connection = bench.receiver()
    bench.ask(connection, wire.AttachReceiver(9, OTHER))
    refused = bench.last(connection)
    assert isinstance(refused, wire.Refused)
    assert refused.code == "too_many"


def test_table_of_publishers_is_bounded() -> None:
    bench = HomeBench(T, topic_publishers=2)
    for run in range(5):
        bench.publish(bench.sender(run=run), 1, b"x")
    assert len(bench.core.state.topics[T].publishers) == 2


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), max_size=30))
def test_any_resending_keeps_order_without_repeats(frames: list[tuple[int, int]]) -> None:
    bench = HomeBench(T)
    sender, receiver = bench.sender(), bench.receiver()
    for first, size in frames:
        bench.publish(sender, first, *(b"%d" % number for number in range(first, first + size)))
    got = [int(data) for data in bench.data(receiver)]
    assert got == list(range(1, len(got) + 1))
