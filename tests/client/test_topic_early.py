"""The session attaches to the target of an announced move, keeps the order, and pauses for no round trip of its own."""

from __future__ import annotations

from tests.client.test_topic_session import SessionBench, T
from tocsin.client import topic_events as events
from tocsin.client.topic_events import TopicGap, TopicMessage
from tocsin.model.ids import BrokerId
from tocsin.wire import topic as wire

B2 = BrokerId("b2")
ENTRY = [(5, 1, b"a"), (5, 2, b"b"), (5, 3, b"c")]


def announced() -> tuple[SessionBench, int, int]:
    """A session whose sender and receiver wait at the target. Returns the ids of the two attaches."""
    bench = SessionBench()
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.do(events.PublishRequested(11, T, b"x"))
    bench.learn("ws://one")
    bench.attach_receiver("ws://one")
    bench.hear("ws://one", wire.SenderAttached(bench.take(wire.AttachSender)[-1].id, 3, 1))
    bench.take(wire.Publish), bench.take(wire.AttachReceiver)
    bench.hear("ws://one", wire.Moving(3, T, B2, "ws://two"))
    (sender,), (receiver,) = bench.take(wire.AttachSender), bench.take(wire.AttachReceiver)
    assert receiver.early
    bench.hear("ws://two", wire.Waiting(sender.id, 9))
    assert bench.take(wire.Ready) == []
    bench.hear("ws://two", wire.Waiting(receiver.id, 9))
    assert bench.take(wire.Ready) == [wire.Ready(3)]
    return bench, sender.id, receiver.id


def items(bench: SessionBench) -> list[object]:
    """What was delivered: the data of messages, and gaps."""
    delivered = [item for deliver in bench.take(events.Deliver) for item in deliver.items]
    return [item.data if isinstance(item, TopicMessage) else item for item in delivered]


def test_session_publishes_to_the_source_until_moved_then_to_the_target() -> None:
    bench, _, _ = announced()
    bench.do(events.PublishRequested(12, T, b"y"))
    assert bench.take(wire.Publish) == [wire.Publish(3, 2, [b"y"])]
    bench.hear("ws://one", wire.Acknowledged(3, 1))
    bench.hear("ws://one", wire.Moved(3, T, B2, "ws://two"))
    assert bench.take(wire.Publish) == [wire.Publish(9, 2, [b"y"])]
    bench.do(events.PublishRequested(13, T, b"z"))
    assert bench.take(wire.Publish) == [wire.Publish(9, 3, [b"z"])]


def test_answer_to_the_early_attach_acknowledges_and_repeats_nothing() -> None:
    bench, sender, _ = announced()
    bench.hear("ws://one", wire.Moved(3, T, B2, "ws://two"))
    bench.take(wire.Publish), bench.take(events.Settle)
    bench.hear("ws://two", wire.SenderAttached(sender, 9, 2))
    assert [settle.ticket for settle in bench.take(events.Settle)] == [11]
    assert bench.take(wire.Publish) == []


def test_messages_of_the_target_wait_for_the_last_ones_of_the_source() -> None:
    bench, _, receiver = announced()
    bench.hear("ws://two", wire.ReceiverAttached(receiver, 9, 2, 2))
    bench.hear("ws://two", wire.Messages(9, 2, 3, ENTRY[2:]))
    assert items(bench) == []
    bench.hear("ws://one", wire.Messages(3, 1, 1, ENTRY[:2]))
    assert items(bench) == [b"a", b"b"]
    bench.hear("ws://one", wire.Moved(3, T, B2, "ws://two"))
    assert items(bench) == [b"c"]


def test_lost_source_after_the_hand_over_is_a_gap() -> None:
    bench, _, receiver = announced()
    bench.hear("ws://one", wire.Messages(3, 1, 1, ENTRY[:1]))
    bench.hear("ws://two", wire.ReceiverAttached(receiver, 9, 2, 2))
    bench.hear("ws://two", wire.Messages(9, 2, 3, ENTRY[2:]))
    assert items(bench) == [b"a"]
    bench.do(events.ConnectionLost(min(bench.addresses), "reset"))
    assert items(bench) == [TopicGap(T, 1, 2, 2), b"c"]


def test_lost_source_before_the_hand_over_is_attached_again() -> None:
    bench, _, _ = announced()
    bench.do(events.ConnectionLost(min(bench.addresses), "reset"))
    bench.pass_time(0.5)
    attaches = bench.take(wire.AttachReceiver)
    assert [request.early for request in attaches[:1]] == [False]


def test_sender_attaches_again_if_the_source_died_after_acknowledging() -> None:
    bench, sender, _ = announced()
    bench.hear("ws://one", wire.Acknowledged(3, 1))
    bench.do(events.PublishRequested(12, T, b"y"))
    bench.learn("ws://two", epoch=2)
    bench.do(events.ConnectionLost(min(bench.addresses), "reset"))
    bench.take(wire.Publish), bench.take(wire.AttachSender)
    bench.hear("ws://two", wire.SenderAttached(sender, 9, 1))
    bench.pass_time(0.2)
    (attach,) = bench.take(wire.AttachSender)
    assert attach.number == 2
    bench.take(wire.Publish)
    bench.hear("ws://two", wire.SenderAttached(attach.id, 9, 2))
    assert bench.take(wire.Publish) == [wire.Publish(9, 2, [b"y"])]


def test_refused_early_attach_leaves_the_session_at_the_source() -> None:
    bench, sender, receiver = announced()
    bench.hear("ws://two", wire.Refused(receiver, "not_home", "no", 0.2))
    bench.hear("ws://two", wire.Refused(sender, "not_home", "no", 0.2))
    bench.hear("ws://one", wire.Messages(3, 1, 1, ENTRY[:1]))
    assert items(bench) == [b"a"]
    bench.do(events.PublishRequested(12, T, b"y"))
    assert bench.take(wire.Publish) == [wire.Publish(3, 2, [b"y"])]
    bench.hear("ws://one", wire.Moved(3, T, B2, "ws://two"))
    assert [request.early for request in bench.take(wire.AttachReceiver)] == [False]


def test_lost_target_leaves_the_session_at_the_source() -> None:
    bench, _, _ = announced()
    bench.do(events.ConnectionLost(max(bench.addresses), "reset"))
    bench.hear("ws://one", wire.Messages(3, 1, 1, ENTRY[:1]))
    assert items(bench) == [b"a"]
