"""The lease, epochs and both sides of a move at a broker."""

from __future__ import annotations

from tests.broker.topics.home_bench import LEASE_S, HomeBench, T
from tocsin.broker.topics import events
from tocsin.broker.topics.lease import Lease
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import topic as wire
from tocsin.wire import topic_link

B2 = BrokerId("b2")


def codes(messages: list[wire.ToClient]) -> list[str]:
    return [m.code for m in messages if isinstance(m, wire.NotAccepted | wire.Refused | wire.Ended)]


def test_lease_counts_from_the_request_not_from_the_answer() -> None:
    lease = Lease()
    lease.start(10.0)
    number = lease.request(10.0)
    assert number == 1
    lease.renewed(number, 5.0)
    assert lease.valid(14.9)
    assert not lease.valid(15.0)


def test_lease_ignores_answers_of_a_former_link_and_unknown_numbers() -> None:
    lease = Lease()
    lease.start(10.0)
    number = lease.request(10.0)
    lease.stop()
    assert number is not None
    lease.renewed(number, 5.0)
    lease.renewed(99, 5.0)
    assert not lease.valid(10.0)
    assert lease.request(11.0) is None


def test_lease_is_requested_four_times_in_its_duration() -> None:
    lease = Lease()
    lease.start(0.0)
    lease.renewed(lease.request(0.0) or 0, 4.0)
    assert [lease.request(at_s) for at_s in (0.9, 1.0, 1.5, 2.0)] == [None, 2, None, 3]


def test_home_whose_lease_ended_refuses_and_sends_its_clients_away() -> None:
    bench = HomeBench(T)
    sender, receiver = bench.sender(), bench.receiver()
    bench.do(events.LinkLost())
    bench.take(sender), bench.take(receiver)
    bench.now_s += LEASE_S
    bench.publish(sender, 1, b"a")
    assert codes(bench.take(sender)) == ["not_ready"]
    bench.do(events.Ticked())
    assert codes(bench.take(sender)) == codes(bench.take(receiver)) == ["not_home"]
    assert codes(bench.take(bench.receiver())) == ["not_ready"]


def test_home_that_gets_its_lease_back_continues_the_sequence() -> None:
    bench = HomeBench(T)
    bench.publish(bench.sender(), 1, b"a", b"b")
    bench.do(events.LinkLost())
    bench.pass_time(2 * LEASE_S)
    bench.hear(topic_link.OwnTopics([topic_link.OwnedTopic(T, 1)]))
    bench.renew()
    bench.publish(bench.sender(number=3), 3, b"c")
    assert bench.data(bench.receiver(after=(1, 1))) == [b"b", b"c"]


def test_topic_that_is_not_on_the_list_is_dropped() -> None:
    bench = HomeBench(T)
    receiver = bench.receiver()
    bench.take(receiver)
    bench.hear(topic_link.OwnTopics([]))
    assert codes(bench.take(receiver)) == ["not_home"]
    assert codes(bench.take(bench.receiver())) == ["not_home"]
    assert bench.core.state.recent_bytes == 0


def test_new_epoch_without_state_starts_a_new_sequence() -> None:
    bench = HomeBench(T)
    bench.publish(bench.sender(), 1, b"a")
    bench.hear(topic_link.OwnTopics([topic_link.OwnedTopic(T, 4)]))
    bench.publish(bench.sender(), 1, b"a")
    attached, messages = bench.take(bench.receiver(after=(1, 1)))
    assert isinstance(attached, wire.ReceiverAttached)
    assert attached.missed == (1, 2)
    assert isinstance(messages, wire.Messages)
    assert (messages.epoch, messages.sequence) == (4, 1)


def test_source_of_a_move_sends_everything_before_moved() -> None:
    bench = HomeBench(T)
    sender, receiver = bench.sender(), bench.receiver()
    bench.take(sender), bench.take(receiver)
    bench.core.handle(events.RequestReceived(sender, wire.Publish(1, 1, [b"a"])), bench.now_s)
    bench.hear(topic_link.StopTopic(T, 1, B2, "ws://b2"))
    assert [type(message) for message in bench.take(receiver)] == [wire.Messages, wire.Moved]
    assert [type(message) for message in bench.take(sender)] == [wire.Acknowledged, wire.Moved]
    stopped = bench.reports[-1]
    assert isinstance(stopped, topic_link.TopicStopped)
    assert (stopped.state.sequence, stopped.state.since, [n for _, n in stopped.state.publishers]) == (1, 1, [1])
    bench.publish(sender, 2, b"b")
    assert codes(bench.take(sender)) == ["not_home"]
    assert codes(bench.take(bench.receiver())) == ["not_home"]


def test_lagging_receiver_gets_moved_behind_its_last_message() -> None:
    bench = HomeBench(T)
    sender, slow = bench.sender(), bench.receiver()
    bench.take(slow)
    bench.do(events.ConnectionBlocked(slow))
    bench.publish(sender, 1, b"a")
    bench.hear(topic_link.StopTopic(T, 1, B2, "ws://b2"))
    assert bench.take(slow) == []
    bench.do(events.ConnectionDrained(slow))
    assert [type(message) for message in bench.take(slow)] == [wire.Messages, wire.Moved]


def test_target_lets_clients_wait_and_continues_the_sequence() -> None:
    source, target = HomeBench(T), HomeBench()
    sender = source.sender()
    source.publish(sender, 1, b"a", b"b")
    target.hear(topic_link.PrepareTopic(T, 2))
    assert target.reports[-1] == topic_link.TopicPrepared(T, 2)
    early = target.receiver(after=(1, 1))
    again = target.sender(number=2)
    assert target.take(early) == [wire.Waiting(1, 1)]
    assert target.take(again) == [wire.Waiting(2, 1)]
    source.hear(topic_link.StopTopic(T, 1, B2, "ws://b2"))
    stopped = source.reports[-1]
    assert isinstance(stopped, topic_link.TopicStopped)
    target.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, 2, stopped.state)))
    assert target.last(again) == wire.SenderAttached(2, 1, 3)
    target.publish(again, 3, b"c")
    _, gap, messages = target.take(early)
    assert gap == wire.Gap(1, 2, 2, 2), "the target has no copy of the source's messages"
    assert isinstance(messages, wire.Messages)
    assert (messages.epoch, messages.sequence) == (2, 3)
    assert [type(m) for m in target.take(target.receiver(after=(1, 2)))] == [wire.ReceiverAttached, wire.Messages]


def test_source_opens_again_in_the_same_epoch_when_the_move_fails() -> None:
    bench = HomeBench(T)
    sender = bench.sender()
    bench.publish(sender, 1, b"a")
    bench.hear(topic_link.StopTopic(T, 1, B2, "ws://b2"))
    bench.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, 1)))
    bench.publish(bench.sender(number=2), 2, b"b")
    assert bench.data(bench.receiver(after=(1, 0))) == [b"a", b"b"]


def test_abandoned_preparation_refuses_the_clients_that_waited() -> None:
    bench = HomeBench()
    bench.hear(topic_link.PrepareTopic(T, 2))
    early = bench.receiver()
    bench.hear(topic_link.ReleaseTopic(T, 2))
    assert codes(bench.take(early)) == ["not_home"]
    assert not bench.core.state.topics


def test_deleted_topic_ends_its_clients_for_good() -> None:
    bench = HomeBench(T)
    receiver = bench.receiver()
    bench.take(receiver)
    bench.hear(topic_link.ReleaseTopic(T, 1, deleted=True))
    assert codes(bench.take(receiver)) == ["unknown_topic"]


def test_messages_about_another_epoch_change_nothing() -> None:
    bench = HomeBench(T, epoch=5)
    bench.hear(topic_link.ReleaseTopic(T, 4))
    bench.hear(topic_link.StopTopic(T, 4, B2, "ws://b2"))
    bench.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, 4)))
    bench.hear(topic_link.PrepareTopic(T, 5))
    bench.publish(bench.sender(), 1, b"a")
    assert bench.data(bench.receiver(after=(5, 0))) == [b"a"]


def test_broker_with_too_many_topics_refuses_another() -> None:
    bench = HomeBench(T, topics=1)
    bench.hear(topic_link.OpenTopic(topic_link.OwnedTopic(TopicName("b"), 2)))
    assert isinstance(bench.reports[-1], topic_link.TopicRefused)
    assert list(bench.core.state.topics) == [T]


def test_stopping_broker_returns_its_lease_and_accepts_nothing_more() -> None:
    bench = HomeBench(T)
    sender = bench.sender()
    bench.do(events.StopRequested())
    assert bench.reports[-1] == topic_link.ReturnLease()
    assert bench.closed == {sender: "stopping"}
    late = bench.connect()
    bench.ask(late, wire.AttachSender(1, T, 7))
    assert codes(bench.take(late)) == ["not_ready"]


def test_expired_and_revoked_tokens_end_the_connection() -> None:
    bench = HomeBench(T)
    short, revoked = bench.connect(expires_s=101.0), bench.connect()
    bench.do(events.ConnectionRevoked(revoked))
    bench.pass_time(2.0)
    assert bench.closed == {short: "expired", revoked: "revoked"}
