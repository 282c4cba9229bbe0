"""The topic session: it follows homes, keeps few connections and reports refusals."""

from __future__ import annotations

from typing import TypeVar

from tocsin.client import topic_events as events
from tocsin.client.topic_frames import FrameReceiver
from tocsin.client.topic_receiving import ReceiverState
from tocsin.client.topic_session import TopicSession
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import topic as wire
from tocsin.wire.topic_directory import Refusal, TopicEntry, WatchAnswer

T = TopicName("a/b")
E = TypeVar("E")


class SessionBench:
    """A session with a hand-turned clock. Every connection that it opens is accepted at once."""

    def __init__(self) -> None:
        self.session = TopicSession(7, lambda: 0.0)
        self.now_s = 100.0
        self.effects: list[events.Effect] = []
        self.addresses: dict[int, str] = {}
        self.dead: set[str] = set()
        """Addresses that accept no connection."""

    def do(self, event: events.Event) -> list[events.Effect]:
        effects = self.session.handle(event, self.now_s)
        self.effects += effects
        for effect in effects:
            if isinstance(effect, events.Connect) and effect.address in self.dead:
                self.do(events.ConnectionLost(effect.connection, "refused"))
            elif isinstance(effect, events.Connect):
                self.addresses[effect.connection] = effect.address
                self.do(events.ConnectionOpened(effect.connection))
                self.hear(effect.address, wire.LoggedIn(0, BrokerId("b"), 5.0, 1000, 10_000))
            elif isinstance(effect, events.RequestFlush):
                self.do(events.FlushDue())
        return effects

    def learn(self, address: str, epoch: int = 1, created: int = 1, last_epoch: int = 1) -> None:
        entry = TopicEntry(T, created, epoch, BrokerId("b"), address)
        self.do(events.DirectoryReceived(WatchAnswer("r", last_epoch, [entry], "token"), ("a/+",)))

    def hear(self, address: str, message: wire.ToClient) -> None:
        number = max(number for number, known in self.addresses.items() if known == address)
        self.do(events.MessageReceived(number, message))

    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.1
            for address in set(self.addresses.values()):
                self.hear(address, wire.Beat())
            self.do(events.Ticked())

    def take(self, kind: type[E]) -> list[E]:
        """The effects of this kind, or messages of this kind in `Send`, since the last call for it."""
        found = [e.message if isinstance(e, events.Send) else e for e in self.effects]
        matching: list[E] = [effect for effect in found if isinstance(effect, kind)]
        self.effects = [e for e in self.effects if not isinstance(e.message if isinstance(e, events.Send) else e, kind)]
        return matching

    def attach_receiver(self, address: str, epoch: int = 1) -> None:
        request = self.take(wire.AttachReceiver)[-1]
        self.hear(address, wire.ReceiverAttached(request.id, 3, epoch, 0))


def test_subscription_is_ready_when_every_topic_is_attached() -> None:
    bench = SessionBench()
    bench.do(events.SubscribeRequested(1, "a/+"))
    assert bench.take(events.Watch) == [events.Watch((), ("a/+",))]
    bench.learn("ws://one")
    assert bench.take(events.MarkReady) == []
    bench.attach_receiver("ws://one")
    assert bench.take(events.MarkReady) == [events.MarkReady(1)]


def test_topic_created_after_the_subscription_is_received_from_its_first_message() -> None:
    bench = SessionBench()
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.do(events.DirectoryReceived(WatchAnswer("r", 4, [], "token"), ("a/+",)))
    bench.learn("ws://one", epoch=5, created=5, last_epoch=5)
    assert [request.after for request in bench.take(wire.AttachReceiver)] == [(5, 0)]


def test_moved_leads_to_the_new_home_over_one_new_connection() -> None:
    bench = SessionBench()
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.do(events.PublishRequested(11, T, b"x"))
    bench.learn("ws://one")
    bench.attach_receiver("ws://one")
    bench.hear("ws://one", wire.SenderAttached(bench.take(wire.AttachSender)[-1].id, 3, 1))
    assert bench.take(wire.Publish) == [wire.Publish(3, 1, [b"x"])]
    bench.hear("ws://one", wire.Moved(3, T, BrokerId("b2"), "ws://two"))
    assert sorted(bench.addresses.values()) == ["ws://one", "ws://two"]
    assert (len(bench.take(wire.AttachReceiver)), bench.take(wire.AttachSender)[-1].number) == (1, 1)


def test_refused_hint_returns_to_the_home_of_the_directory() -> None:
    bench = SessionBench()
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.learn("ws://one")
    bench.attach_receiver("ws://one")
    bench.hear("ws://one", wire.Moved(3, T, BrokerId("b2"), "ws://two"))
    request = bench.take(wire.AttachReceiver)[-1]
    bench.hear("ws://two", wire.Refused(request.id, "not_home", "no", 0.2))
    bench.pass_time(0.5)
    sent = [
        e.connection for e in bench.effects if isinstance(e, events.Send) and isinstance(e.message, wire.AttachReceiver)
    ]
    assert [bench.addresses[number] for number in sent] == ["ws://one"]


def test_working_connection_gets_a_moment_to_send_moved() -> None:
    bench = SessionBench()
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.learn("ws://one")
    bench.attach_receiver("ws://one")
    bench.learn("ws://two", epoch=2)
    bench.pass_time(0.5)
    assert "ws://two" not in bench.addresses.values()
    bench.pass_time(1.0)
    assert "ws://two" in bench.addresses.values()


def test_silent_connection_is_closed_and_replaced() -> None:
    bench = SessionBench()
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.learn("ws://one")
    bench.attach_receiver("ws://one")
    bench.now_s += 12.0
    bench.do(events.Ticked())
    assert len(bench.take(events.Disconnect)) == 1
    bench.now_s += 1.0
    bench.do(events.Ticked())
    assert list(bench.addresses.values()) == ["ws://one", "ws://one"]


def test_unused_connection_is_closed_after_a_while() -> None:
    bench = SessionBench()
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.learn("ws://one")
    bench.attach_receiver("ws://one")
    bench.pass_time(40.0)
    assert bench.take(events.Disconnect) == []
    bench.do(events.UnsubscribeRequested(1))
    assert len(bench.take(wire.Detach)) == 1
    bench.pass_time(35.0)
    assert len(bench.take(events.Disconnect)) == 1


def test_refusals_of_the_directory_and_of_a_home_settle_messages() -> None:
    bench = SessionBench()
    bench.do(events.PublishRequested(11, T, b"x"))
    refusal = {T: Refusal("unknown_topic", "there is no topic a/b")}
    bench.do(events.DirectoryReceived(WatchAnswer("r", 1, [], "token", refusal), ()))
    assert [(settle.ticket, settle.code) for settle in bench.take(events.Settle)] == [(11, "unknown_topic")]
    bench.do(events.PublishRequested(12, T, b"x"))
    bench.learn("ws://one")
    request = bench.take(wire.AttachSender)[-1]
    bench.hear("ws://one", wire.Refused(request.id, "forbidden", "no"))
    assert [(settle.ticket, settle.code) for settle in bench.take(events.Settle)] == [(12, "forbidden")]


def test_message_dropped_while_the_session_attaches_again_is_not_reported_as_accepted() -> None:
    bench = SessionBench()
    for ticket in (1, 2):
        bench.do(events.PublishRequested(ticket, T, b"m"))
    bench.learn("ws://one")
    (attach,) = bench.take(wire.AttachSender)
    bench.hear("ws://one", wire.SenderAttached(attach.id, 3, 1))
    bench.hear("ws://one", wire.NotAccepted(3, 1, "not_home", "another broker is the home"))
    bench.hear("ws://one", wire.NotAccepted(3, 1, "limited", "congested"))
    bench.pass_time(1.0)
    (attach,) = bench.take(wire.AttachSender)
    bench.hear("ws://one", wire.SenderAttached(attach.id, 3, 3))
    assert [(settle.ticket, settle.code) for settle in bench.take(events.Settle)] == [(1, "limited"), (2, None)]


def test_connection_that_the_driver_does_not_read_is_not_stalled() -> None:
    bench = SessionBench()
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.learn("ws://one")
    bench.attach_receiver("ws://one")
    for _ in range(600):
        bench.now_s += 0.1
        bench.do(events.Ticked(reads=False))
    assert bench.take(events.Disconnect) == []
    for _ in range(150):
        bench.now_s += 0.1
        bench.do(events.Ticked())
    assert len(bench.take(events.Disconnect)) == 1, "it is read again, and silent"


def test_relay_of_an_edge_follows_no_redirect() -> None:
    for make_receiver, connects in ((ReceiverState, 1), (FrameReceiver, 0)):
        bench = SessionBench()
        bench.session = TopicSession(7, lambda: 0.0, make_receiver=make_receiver)
        bench.do(events.SubscribeRequested(1, "a/+"))
        bench.learn("ws://one")
        bench.attach_receiver("ws://one")
        bench.take(events.Connect)
        bench.hear("ws://one", wire.Redirect(3, T, BrokerId("e2"), "ws://two"))
        assert len(bench.take(events.Connect)) == connects


def test_answer_to_a_former_attach_does_not_end_a_later_one() -> None:
    """The home of a prepared topic answers both when it opens: the attach that the client has left, and the early one
    after `moving`."""
    bench = SessionBench()
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.learn("ws://one")
    (former,) = bench.take(wire.AttachReceiver)
    bench.learn("ws://two", epoch=2)
    bench.pass_time(10.0)
    bench.attach_receiver("ws://two", epoch=2)
    bench.hear("ws://two", wire.Moving(3, T, BrokerId("one"), "ws://one"))
    (early,) = bench.take(wire.AttachReceiver)
    assert early.early
    bench.hear("ws://one", wire.Waiting(early.id, 5))
    bench.hear("ws://one", wire.ReceiverAttached(former.id, 5, 3, 0))
    bench.hear("ws://one", wire.ReceiverAttached(early.id, 5, 3, 0))
    assert bench.take(wire.Detach) == []
    bench.hear("ws://two", wire.Moved(3, T, BrokerId("one"), "ws://one"))
    bench.hear("ws://one", wire.Messages(5, 3, 1, [(9, 1, b"x")]))
    (delivered,) = bench.take(events.Deliver)
    assert [item.data for item in delivered.items if isinstance(item, events.TopicMessage)] == [b"x"]


def test_client_attaches_again_if_the_target_of_a_move_has_ended() -> None:
    bench = SessionBench()
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.learn("ws://one")
    bench.attach_receiver("ws://one")
    bench.hear("ws://one", wire.Moving(3, T, BrokerId("two"), "ws://two"))
    (early,) = bench.take(wire.AttachReceiver)
    bench.hear("ws://two", wire.Waiting(early.id, 5))
    bench.hear("ws://two", wire.ReceiverAttached(early.id, 5, 2, 0))
    bench.hear("ws://two", wire.Ended(5, T, "not_home", "this broker's lease has ended"))
    bench.hear("ws://one", wire.Moved(3, T, BrokerId("two"), "ws://two"))
    bench.learn("ws://two", epoch=3)
    bench.pass_time(10.0)
    assert bench.take(wire.AttachReceiver), "the target is the home again, in a new epoch"


def test_answer_to_a_former_subscription_does_not_count_for_the_next_one() -> None:
    """An edge that relays a topic again at once: with the former position, the later answer would look like a gap."""
    bench = SessionBench()
    bench.session = TopicSession(7, lambda: 0.0, make_receiver=FrameReceiver)
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.learn("ws://one")
    (former,) = bench.take(wire.AttachReceiver)
    bench.do(events.UnsubscribeRequested(1))
    bench.do(events.SubscribeRequested(2, "a/+"))
    bench.learn("ws://one")
    (later,) = bench.take(wire.AttachReceiver)
    bench.hear("ws://one", wire.ReceiverAttached(former.id, 3, 1, 16, None, 1))
    bench.hear("ws://one", wire.ReceiverAttached(later.id, 3, 1, 19, None, 1))
    delivered = [item for deliver in bench.take(events.Deliver) for item in deliver.items]
    assert delivered == [events.TopicFrame(T, wire.ReceiverAttached(later.id, 3, 1, 19, None, 1))]
    assert bench.take(wire.Detach) == []
