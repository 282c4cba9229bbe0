"""Both sides of a direct hand-over at a broker: announce, wait for clients, hand over once, keep or report."""

from __future__ import annotations

from typing import Any

from tests.broker.topics.home_bench import HomeBench, T
from tocsin.broker.topics import effects, events
from tocsin.broker.topics.events import ConnectionId, StreamId
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import topic as wire
from tocsin.wire import topic_link
from tocsin.wire.topic_log import HandOver

B2 = BrokerId("b2")
ORDER = topic_link.StopTopic(T, 1, B2, "ws://b2", target_epoch=2, wait_s=3.0)


class PeerBench(HomeBench):
    """A home that can reach other brokers; `handed` has what it handed over."""

    def __init__(self, *topics: TopicName, **limits: Any) -> None:
        self.peers: list[effects.Effect] = []
        super().__init__(*topics, **limits)

    def carry_out(self, effect: effects.Effect) -> None:
        self.peers.append(effect)

    @property
    def handed(self) -> list[HandOver]:
        sent = [effect.message for effect in self.peers if isinstance(effect, effects.SendToReplica)]
        return [message for message in sent if isinstance(message, HandOver)]

    def ready(self, *connections: ConnectionId) -> None:
        for connection in connections:
            self.ask(connection, wire.Ready(self.core.state.topics[T].at))

    def connect_peer(self) -> None:
        self.do(events.ReplicaConnected(B2))

    def stopped(self) -> list[topic_link.TopicStopped]:
        return [report for report in self.reports if isinstance(report, topic_link.TopicStopped)]


def announced() -> tuple[PeerBench, ConnectionId, ConnectionId]:
    bench = PeerBench(T)
    sender, receiver = bench.sender(), bench.receiver()
    bench.take(sender), bench.take(receiver)
    bench.hear(ORDER)
    return bench, sender, receiver


def handed_over() -> PeerBench:
    bench, sender, receiver = announced()
    bench.connect_peer()
    bench.ready(sender, receiver)
    assert len(bench.handed) == 1
    return bench


def test_source_serves_while_its_clients_attach_to_the_target() -> None:
    bench, sender, receiver = announced()
    assert bench.take(sender) == bench.take(receiver) == [wire.Moving(1, T, B2, "ws://b2")]
    bench.publish(sender, 1, b"a")
    assert bench.data(receiver) == [b"a"]
    assert effects.ConnectReplica(B2, "ws://b2") in bench.peers


def test_source_hands_over_when_target_and_clients_are_ready() -> None:
    bench, sender, receiver = announced()
    bench.publish(sender, 1, b"a", b"b")
    bench.take(sender), bench.take(receiver)
    bench.connect_peer()
    bench.ready(sender)
    assert bench.handed == []
    bench.ready(receiver)
    state = bench.handed[0].state
    assert (bench.handed[0].epoch, state.sequence, [number for _, number in state.publishers]) == (2, 2, [2])
    assert bench.take(sender) == bench.take(receiver) == [wire.Moved(1, T, B2, "ws://b2")]
    assert bench.stopped() == [topic_link.TopicStopped(T, 1, state, handed_over=True)]
    bench.publish(sender, 3, b"c")
    assert isinstance(bench.last(sender), wire.NotAccepted)


def test_source_does_not_wait_for_ever_for_a_client() -> None:
    bench, sender, _ = announced()
    bench.connect_peer()
    bench.ready(sender)
    bench.pass_time(2.9)
    assert bench.handed == []
    bench.pass_time(0.2)
    assert len(bench.handed) == 1


def test_source_does_not_wait_for_a_client_that_left() -> None:
    bench, sender, receiver = announced()
    bench.connect_peer()
    bench.ready(sender)
    bench.do(events.ConnectionLost(receiver))
    bench.pass_time(0.1)
    assert len(bench.handed) == 1


def test_source_waits_for_a_client_that_attaches_after_the_announcement() -> None:
    bench, sender, receiver = announced()
    bench.connect_peer()
    late = bench.receiver()
    assert bench.last(late) == wire.Moving(1, T, B2, "ws://b2")
    bench.ready(sender, receiver)
    assert bench.handed == []
    bench.ready(late)
    assert len(bench.handed) == 1


def test_source_without_a_connection_to_the_target_hands_over_by_the_coordinator() -> None:
    bench, sender, receiver = announced()
    bench.ready(sender, receiver)
    bench.pass_time(3.1)
    assert bench.handed == []
    assert [report.handed_over for report in bench.stopped()] == [False]
    bench.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, 1)))
    bench.publish(bench.sender(), 1, b"a")
    assert bench.data(bench.receiver(after=(1, 0))) == [b"a"]


def test_source_whose_lease_ended_does_not_hand_over() -> None:
    bench, sender, receiver = announced()
    bench.connect_peer()
    bench.do(events.LinkLost())
    bench.now_s += 10.0
    bench.ready(sender, receiver)
    bench.do(events.Ticked())
    assert not bench.handed
    assert not bench.stopped()


def test_source_that_handed_over_never_opens_again_in_this_epoch() -> None:
    bench = handed_over()
    for message in (
        topic_link.OpenTopic(topic_link.OwnedTopic(T, 1)),
        topic_link.OwnTopics([topic_link.OwnedTopic(T, 1)]),
        topic_link.KeepTopic(T, 1, 2),
        ORDER,
    ):
        before = len(bench.stopped())
        bench.hear(message)
        assert bench.stopped()[before:] == [bench.stopped()[0]], message
        late = bench.sender()
        refusal = bench.last(late)
        assert isinstance(refusal, wire.Refused)
        assert refusal.code == "not_home"
    assert not [report for report in bench.reports if isinstance(report, topic_link.TopicKept)]
    assert len(bench.handed) == 1


def test_source_confirms_that_it_keeps_the_topic_and_forgets_the_order() -> None:
    bench, sender, receiver = announced()
    bench.hear(topic_link.KeepTopic(T, 1, 2))
    assert bench.reports[-1] == topic_link.TopicKept(T, 1, 2)
    bench.connect_peer()
    bench.ready(sender, receiver)
    bench.pass_time(3.1)
    assert not bench.handed
    assert not bench.stopped()
    bench.publish(sender, 1, b"a")
    assert effects.DisconnectReplica(B2) in bench.peers


def test_broker_that_does_not_host_the_topic_confirms_nothing() -> None:
    bench = PeerBench()
    before = list(bench.reports)
    bench.hear(topic_link.KeepTopic(T, 1, 2))
    assert bench.reports == before


# -- the target --------------------------------------------------------------------------------------------------------


def prepared() -> PeerBench:
    bench = PeerBench()
    bench.hear(topic_link.PrepareTopic(T, 2))
    return bench


def hand_over(bench: HomeBench, epoch: int = 2) -> None:
    state = topic_link.TopicState(7, 1, [])
    bench.do(events.HomeMessageReceived(StreamId(1), HandOver(T, epoch, state)))


def test_target_opens_with_the_state_and_accepts_messages_that_waited() -> None:
    bench = prepared()
    early = bench.connect()
    bench.ask(early, wire.AttachReceiver(1, T, (1, 3), early=True))
    sender = bench.sender()
    assert isinstance(bench.last(early), wire.Waiting)
    assert isinstance(bench.last(sender), wire.Waiting)
    bench.publish(sender, 1, b"a")
    assert bench.take(sender) == []
    hand_over(bench)
    assert bench.reports[-1] == topic_link.TopicOpened(T, 2)
    attached, messages = bench.take(early)
    assert attached == wire.ReceiverAttached(1, 1, 2, 7, since=1)
    assert isinstance(messages, wire.Messages)
    assert (messages.sequence, messages.messages[0][2]) == (8, b"a")
    assert [type(message) for message in bench.take(sender)] == [wire.SenderAttached, wire.Acknowledged]


def test_early_receiver_that_attaches_late_gets_every_message_of_the_target() -> None:
    bench = prepared()
    hand_over(bench)
    bench.publish(bench.sender(), 1, b"a", b"b")
    late = bench.connect()
    bench.ask(late, wire.AttachReceiver(1, T, (1, 3), early=True))
    assert bench.data(late) == [b"a", b"b"]


def test_target_that_opens_without_the_state_refuses_early_receivers() -> None:
    bench = prepared()
    early = bench.connect()
    bench.ask(early, wire.AttachReceiver(1, T, (1, 3), early=True))
    bench.take(early)
    bench.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, 2)))
    refusal = bench.last(early)
    assert isinstance(refusal, wire.Refused)
    assert refusal.code == "not_home"


def test_hand_over_of_another_epoch_or_to_an_open_topic_changes_nothing() -> None:
    bench = prepared()
    hand_over(bench, epoch=1)
    assert bench.reports[-1] == topic_link.TopicPrepared(T, 2)
    bench.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, 2)))
    hand_over(bench)
    assert bench.core.state.topics[T].sequence == 0


def test_target_keeps_an_arriving_topic_when_its_link_returns() -> None:
    bench = prepared()
    hand_over(bench)
    bench.publish(bench.sender(), 1, b"a")
    bench.hear(topic_link.OwnTopics([], arriving=[(T, 2)]))
    bench.hear(topic_link.PrepareTopic(T, 2))
    assert bench.reports[-1] == topic_link.TopicOpened(T, 2)
    assert bench.core.state.topics[T].sequence == 8
    bench.hear(topic_link.OwnTopics([], arriving=[(T, 3)]))
    assert T not in bench.core.state.topics


def test_waiting_messages_have_a_limit_and_are_refused_when_the_move_fails() -> None:
    bench = PeerBench(topic_uncommitted_bytes=10)
    bench.hear(topic_link.PrepareTopic(T, 2))
    sender = bench.sender()
    bench.take(sender)
    bench.publish(sender, 1, b"12345678")
    bench.publish(sender, 2, b"12345678")
    refusal = bench.last(sender)
    assert isinstance(refusal, wire.NotAccepted)
    assert (refusal.number, refusal.code) == (2, "not_ready")
    bench.hear(topic_link.ReleaseTopic(T, 2))
    assert [getattr(message, "code", None) for message in bench.take(sender)] == ["not_home", "not_home"]
