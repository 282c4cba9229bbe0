"""An edge relays topics: positions of the home, one relay for all receivers, gaps, failovers and older messages."""

from __future__ import annotations

from typing import Any, TypeVar

from tests.broker.topics.home_bench import HomeBench, T
from tocsin.broker.topics import effects, events
from tocsin.broker.topics.core import TopicHomes
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.limits import TopicLimits
from tocsin.client.topic_frames import FrameReceiver
from tocsin.model.ids import BrokerId
from tocsin.wire import site_link, topic_link
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code
from tocsin.wire.site_link import Role

E = TypeVar("E", bound=effects.Effect)


class EdgeBench(HomeBench):
    """An edge whose home is the test."""

    def __init__(self, **limits: Any) -> None:
        self.done: list[effects.Effect] = []
        super().__init__(**limits)
        self.core = TopicHomes(BrokerId("e1"), TopicLimits(**limits), Role.EDGE)
        self.hear(topic_link.OwnTopics([]))
        self.renew()

    def carry_out(self, effect: effects.Effect) -> None:
        self.done.append(effect)

    def taken(self, kind: type[E]) -> list[E]:
        """The effects of this kind since the last call for it."""
        matching = [effect for effect in self.done if isinstance(effect, kind)]
        self.done = [effect for effect in self.done if not isinstance(effect, kind)]
        return matching

    def answer(self, epoch: int = 1, sequence: int = 0, since: int = 1) -> None:
        self.do(events.RelayAnswered(T, epoch, sequence, since))

    def pass_on(self, first: int, *data: bytes, epoch: int = 1) -> None:
        entries = [(9, first + index, part) for index, part in enumerate(data)]
        self.do(events.RelayReceived(T, epoch, first, entries))

    def relay(self, *data: bytes, sequence: int = 0) -> ConnectionId:
        """A live receiver of a topic that is relayed from `sequence` on; `data` are its first messages."""
        receiver = self.receiver()
        self.answer(sequence=sequence)
        self.pass_on(sequence + 1, *data)
        self.take(receiver)
        return receiver

    def site(self, message: site_link.ExpectReceivers | site_link.RedirectReceivers) -> None:
        self.do(events.SiteMessageReceived(message))

    def drain(self) -> None:
        drains, self.drains = self.drains, []
        for connection in drains:
            self.do(events.ConnectionDrained(connection))


def positions(messages: list[wire.ToClient]) -> list[tuple[int, int, bytes]]:
    """(epoch, sequence, data) of every message; nothing else may have come, except the answer to the attach."""
    found = []
    for message in messages:
        assert isinstance(message, wire.Messages | wire.ReceiverAttached), message
        if isinstance(message, wire.Messages):
            entries = enumerate(message.messages, message.sequence)
            found += [(message.epoch, sequence, entry[2]) for sequence, entry in entries]
    return found


def test_first_receiver_starts_the_relay_and_waits_for_the_home() -> None:
    bench = EdgeBench()
    one, two = bench.receiver(), bench.receiver()
    assert bench.taken(effects.StartRelay) == [effects.StartRelay(T)]
    assert bench.take(one) == []
    bench.answer(epoch=4, sequence=7, since=3)
    bench.pass_on(8, b"a", epoch=4)
    for receiver in (one, two):
        attached, message = bench.take(receiver)
        assert isinstance(attached, wire.ReceiverAttached)
        assert (attached.epoch, attached.sequence, attached.since) == (4, 7, 3)
        assert positions([message]) == [(4, 8, b"a")]


def test_plain_broker_and_sender_are_refused_with_not_home() -> None:
    plain, edge = HomeBench(), EdgeBench()
    for bench, client in ((plain, plain.receiver()), (edge, edge.sender())):
        refusal = bench.last(client)
        assert isinstance(refusal, wire.Refused)
        assert refusal.code == Code.NOT_HOME


def test_edge_does_not_relay_to_another_relay() -> None:
    """A former home that relays the topic now must send relays back to the home; its own relay would hear itself."""
    bench = EdgeBench()
    bench.relay(b"a")
    other = bench.connect("relay-e2")
    bench.ask(other, wire.AttachReceiver(1, T, (1, 1), at_home=True))
    refusal = bench.last(other)
    assert isinstance(refusal, wire.Refused) and refusal.code == Code.NOT_HOME
    assert FrameReceiver(T).request(1).at_home and FrameReceiver(T).request(1, early=True).at_home


def test_redirect_of_all_receivers_leaves_relays_at_the_home() -> None:
    bench = HomeBench(T)
    reader, relay = bench.receiver(), bench.connect("relay-e2")
    bench.ask(relay, wire.AttachReceiver(1, T, at_home=True))
    bench.take(reader), bench.take(relay)
    bench.do(events.SiteMessageReceived(site_link.RedirectReceivers(T, [], BrokerId("e2"), "ws://e2")))
    assert [type(message) for message in bench.take(reader)] == [wire.Redirect]
    assert bench.take(relay) == []
    bench.do(events.ConnectionLost(relay))
    assert not bench.core.state.topics[T].relays


def test_receiver_without_the_right_starts_no_relay() -> None:
    bench = EdgeBench()
    connection = bench.connect(scopes=frozenset({"receive:other"}))
    bench.ask(connection, wire.AttachReceiver(1, T))
    refusal = bench.last(connection)
    assert isinstance(refusal, wire.Refused)
    assert refusal.code == Code.FORBIDDEN
    assert bench.taken(effects.StartRelay) == []


def test_unused_relay_ends_after_a_pause() -> None:
    bench = EdgeBench()
    receiver = bench.relay(b"a")
    bench.do(events.ConnectionLost(receiver))
    bench.pass_time(9.0)
    assert bench.taken(effects.StopRelay) == []
    again = bench.receiver(after=(1, 0))
    assert bench.data(again) == [b"a"]
    bench.do(events.ConnectionLost(again))
    bench.pass_time(10.5)
    assert bench.taken(effects.StopRelay) == [effects.StopRelay(T)]
    assert bench.core.state.recent_bytes == 0


def test_receiver_resumes_from_the_memory_of_the_edge() -> None:
    bench = EdgeBench()
    bench.relay(b"a", b"b", b"c", sequence=5)
    assert positions(bench.take(bench.receiver(after=(1, 6)))) == [(1, 7, b"b"), (1, 8, b"c")]


def test_receiver_that_is_ahead_of_the_edge_waits_for_it() -> None:
    bench = EdgeBench()
    bench.relay(b"a")
    ahead = bench.receiver(after=(1, 2))
    assert bench.take(ahead) == []
    bench.pass_on(2, b"b")
    bench.pass_on(3, b"c")
    assert positions(bench.take(ahead)) == [(1, 3, b"c")]


def test_gap_of_the_home_reaches_live_receivers() -> None:
    bench = EdgeBench()
    receiver = bench.relay(b"a")
    bench.do(events.RelayGap(T, 1, 2, 5))
    bench.pass_on(6, b"f")
    gap, message = bench.take(receiver)
    assert isinstance(gap, wire.Gap)
    assert (gap.epoch, gap.first, gap.last) == (1, 2, 5)
    assert positions([message]) == [(1, 6, b"f")]


def test_planned_move_of_the_home_is_invisible_and_keeps_epochs() -> None:
    bench = EdgeBench()
    receiver = bench.relay(b"a", b"b")
    bench.answer(epoch=5, sequence=2, since=1)
    bench.pass_on(3, b"c", epoch=5)
    assert positions(bench.take(receiver)) == [(5, 3, b"c")]
    late = bench.receiver(after=(1, 0))
    bench.drain()
    assert positions(bench.take(late)) == [(1, 1, b"a"), (1, 2, b"b"), (5, 3, b"c")]


def test_failed_home_ends_receivers_whose_next_answer_names_the_loss() -> None:
    bench = EdgeBench()
    receiver = bench.relay(b"a", b"b")
    bench.answer(epoch=6, sequence=0, since=6)
    bench.pass_on(1, b"new", epoch=6)
    (ended,) = bench.take(receiver)
    assert isinstance(ended, wire.Ended)
    bench.ask(receiver, wire.AttachReceiver(9, T, (1, 2)))
    attached, message = bench.take(receiver)
    assert isinstance(attached, wire.ReceiverAttached)
    assert (attached.epoch, attached.sequence, attached.missed) == (6, 0, (1, 3))
    assert positions([message]) == [(6, 1, b"new")]


def test_older_messages_are_fetched_from_the_home() -> None:
    bench = EdgeBench()
    bench.relay(b"f", sequence=5)
    late = bench.receiver(after=(1, 2))
    (fetch,) = bench.taken(effects.FetchOlder)
    assert (fetch.topic, fetch.after) == (T, (1, 2))
    bench.do(events.OlderReceived(fetch.fetch, wire.ReceiverAttached(2, 7, 1, 2, None, 1)))
    assert bench.taken(effects.ReadOlder) == [effects.ReadOlder(fetch.fetch)]
    bench.do(events.OlderReceived(fetch.fetch, wire.Messages(7, 1, 3, [(9, 3, b"c"), (9, 4, b"d")])))
    bench.drain()
    assert bench.taken(effects.ReadOlder) == [effects.ReadOlder(fetch.fetch)]
    bench.pass_on(7, b"g")
    bench.do(events.OlderReceived(fetch.fetch, wire.Messages(7, 1, 5, [(9, 5, b"e"), (9, 6, b"f"), (9, 7, b"g")])))
    bench.drain()
    assert bench.taken(effects.EndFetch) == [effects.EndFetch(fetch.fetch)]
    bench.pass_on(8, b"h")
    assert [data for _, _, data in positions(bench.take(late))] == [b"c", b"d", b"e", b"f", b"g", b"h"]


def test_late_receivers_share_a_fetch_and_get_the_gap_of_the_home() -> None:
    bench = EdgeBench()
    bench.relay(b"x", sequence=9)
    one, two = bench.receiver(after=(1, 2)), bench.receiver(after=(1, 4))
    (fetch,) = bench.taken(effects.FetchOlder)
    bench.do(events.OlderReceived(fetch.fetch, wire.ReceiverAttached(2, 7, 1, 2, None, 1)))
    bench.do(events.OlderReceived(fetch.fetch, wire.Gap(7, 1, 3, 8)))
    bench.drain()
    bench.do(events.OlderReceived(fetch.fetch, wire.Messages(7, 1, 9, [(9, 9, b"w")])))
    bench.drain()
    for receiver, first in ((one, 3), (two, 5)):
        _, gap, *messages = bench.take(receiver)
        assert isinstance(gap, wire.Gap)
        assert (gap.first, gap.last) == (first, 8)
        assert [data for _, _, data in positions(messages)] == [b"w", b"x"]


def test_failed_fetch_is_tried_again() -> None:
    bench = EdgeBench()
    bench.relay(b"f", sequence=5)
    late = bench.receiver(after=(0, 0))
    (fetch,) = bench.taken(effects.FetchOlder)
    assert fetch.after == (1, 0)
    bench.do(events.OlderFailed(fetch.fetch))
    bench.pass_time(0.1)
    (again,) = bench.taken(effects.FetchOlder)
    bench.do(events.ConnectionLost(late))
    assert bench.taken(effects.EndFetch)[-1] == effects.EndFetch(again.fetch)


def test_blocked_receiver_leaves_a_shared_fetch() -> None:
    bench = EdgeBench()
    bench.relay(b"f", sequence=5)
    slow, fast = bench.receiver(after=(1, 2)), bench.receiver(after=(1, 2))
    (fetch,) = bench.taken(effects.FetchOlder)
    bench.do(events.OlderReceived(fetch.fetch, wire.ReceiverAttached(2, 7, 1, 2, None, 1)))
    bench.taken(effects.ReadOlder)
    bench.do(events.OlderReceived(fetch.fetch, wire.Messages(7, 1, 3, [(9, 3, b"c")])))
    bench.do(events.ConnectionBlocked(slow))
    bench.do(events.ConnectionDrained(fast))
    assert bench.taken(effects.ReadOlder) == [effects.ReadOlder(fetch.fetch)]
    bench.do(events.ConnectionDrained(slow))
    assert bench.taken(effects.FetchOlder) == []
    assert set(bench.core.relaying.topics[T].fetches[fetch.fetch].receivers) == {slow, fast}


def test_edge_that_becomes_the_home_relays_until_it_has_everything() -> None:
    bench = EdgeBench()
    receiver = bench.relay(b"a")
    bench.hear(topic_link.PrepareTopic(T, 2))
    state = topic_link.TopicState(3, 1, [(9, 3)])
    bench.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, 2, state)))
    bench.pass_time(0.1)
    assert bench.take(receiver) == []
    bench.pass_on(2, b"b", b"c")
    bench.pass_time(0.1)
    assert bench.taken(effects.StopRelay) == [effects.StopRelay(T)]
    message, ended = bench.take(receiver)
    assert positions([message]) == [(1, 2, b"b"), (1, 3, b"c")]
    assert isinstance(ended, wire.Ended)
    bench.ask(receiver, wire.AttachReceiver(9, T, (1, 3)))
    sender = bench.sender(run=8)
    bench.publish(sender, 1, b"d")
    assert positions(bench.take(receiver)) == [(2, 4, b"d")]


def test_expected_receiver_is_reported_when_it_has_caught_up() -> None:
    bench = EdgeBench()
    bench.site(site_link.ExpectReceivers(T, ["ann/7", "ann/8"]))
    assert bench.taken(effects.StartRelay) == [effects.StartRelay(T)]
    bench.answer(sequence=4)
    bench.pass_on(5, b"e")
    connection = bench.connect(run=7)
    bench.ask(connection, wire.AttachReceiver(1, T, (1, 4)))
    assert bench.reports[-1] == site_link.ReceiverArrived(T, "ann/7")
    bench.pass_time(29.0)
    assert bench.taken(effects.StopRelay) == []


def test_redirected_receiver_is_reported_when_it_leaves() -> None:
    bench = EdgeBench()
    bench.relay()
    one, two = bench.connect(run=7), bench.connect(run=8)
    for connection in (one, two):
        bench.ask(connection, wire.AttachReceiver(1, T))
    at = bench.core.relaying.topics[T].at
    order = site_link.RedirectReceivers(T, ["ann/7", "ann/8", "ann/9"], BrokerId("e2"), "ws://e2")
    bench.site(order)
    assert bench.reports[-1] == site_link.ReceiverLeft(T, "ann/9", gone=True)
    assert bench.last(one) == wire.Redirect(at, T, BrokerId("e2"), "ws://e2")
    bench.pass_on(1, b"a")
    bench.ask(one, wire.Detach(5, at))
    assert bench.reports[-1] == site_link.ReceiverLeft(T, "ann/7")
    bench.do(events.ConnectionLost(two))
    assert bench.reports[-1] == site_link.ReceiverLeft(T, "ann/8", gone=True)


ORDER = site_link.RedirectReceivers(T, ["ann/7"], BrokerId("e2"), "ws://e2")


def redirects(messages: list[wire.ToClient]) -> list[str]:
    return [message.address for message in messages if isinstance(message, wire.Redirect)]


def test_receiver_whose_attach_waits_for_the_home_is_sent_away_when_attached() -> None:
    bench = EdgeBench()
    receiver = bench.connect(run=7)
    bench.ask(receiver, wire.AttachReceiver(1, T))
    bench.site(ORDER)
    assert redirects(bench.take(receiver)) == []
    bench.answer()
    assert [type(message) for message in bench.take(receiver)] == [wire.ReceiverAttached, wire.Redirect]


def test_receiver_that_reconnects_is_sent_away_again_for_a_while() -> None:
    bench = EdgeBench()
    bench.relay()
    receiver = bench.connect(run=7)
    bench.ask(receiver, wire.AttachReceiver(1, T))
    bench.site(ORDER)
    bench.do(events.ConnectionLost(receiver))
    again = bench.connect(run=7)
    bench.ask(again, wire.AttachReceiver(1, T))
    assert redirects(bench.take(again)) == ["ws://e2"]
    bench.do(events.ConnectionLost(again))
    bench.site(ORDER)
    bench.pass_time(16.0)
    late = bench.connect(run=7)
    bench.ask(late, wire.AttachReceiver(1, T))
    assert redirects(bench.take(late)) == []


def test_expected_receiver_is_not_sent_away_by_an_earlier_order() -> None:
    bench = EdgeBench()
    bench.relay()
    bench.site(ORDER)
    bench.site(site_link.ExpectReceivers(T, ["ann/7"]))
    receiver = bench.connect(run=7)
    bench.ask(receiver, wire.AttachReceiver(1, T))
    assert redirects(bench.take(receiver)) == []


def test_relay_ends_at_once_when_its_receivers_were_sent_away() -> None:
    bench = EdgeBench()
    bench.do(events.ConnectionLost(bench.relay()))
    receiver = bench.connect(run=7)
    bench.ask(receiver, wire.AttachReceiver(1, T))
    bench.pass_time(0.1)
    bench.site(site_link.RedirectReceivers(T, ["ann/7"], BrokerId("e2"), "ws://e2"))
    bench.ask(receiver, wire.Detach(5, bench.core.relaying.topics[T].at))
    bench.pass_time(0.5)
    assert bench.taken(effects.StopRelay) == [effects.StopRelay(T)]
