"""Receivers at edges: where they attach, and how they change their edge without a loss, a repeat or a gap."""

from __future__ import annotations

import random
from collections import deque

import pytest

from tests.client.test_topic_session import SessionBench, T
from tocsin.client import topic_events as events
from tocsin.client.topic_connection import ClientConnection
from tocsin.client.topic_events import TopicGap, TopicMessage
from tocsin.client.topic_redirects import Redirects
from tocsin.model.ids import BrokerId
from tocsin.wire import topic as wire
from tocsin.wire.topic_directory import TopicEntry, WatchAnswer

HOME, ONE, TWO = "ws://home", "ws://one", "ws://two"
AT = {HOME: 1, ONE: 3, TWO: 4}


class EdgeSession(SessionBench):
    """A session that receives T from the edge `ONE`; the edges are the test."""

    def __init__(self) -> None:
        super().__init__()
        self.do(events.SubscribeRequested(1, "a/+"))
        self.name_edge(ONE)

    def name_edge(self, edge: str | None, epoch: int = 1) -> None:
        entry = TopicEntry(T, 1, epoch, BrokerId("h"), HOME, receive_at=edge)
        self.do(events.DirectoryReceived(WatchAnswer("r", 1, [entry], "token"), ("a/+",)))

    def requests(self, kind: type[wire.FromClientMessage]) -> list[tuple[str, wire.FromClient]]:
        """(address, request) of this kind since the last call for it."""
        found = [
            (self.addresses[e.connection], e.message)
            for e in self.effects
            if isinstance(e, events.Send) and isinstance(e.message, kind)
        ]
        self.take(kind)
        return found

    def attached(self, address: str, epoch: int = 1, sequence: int = 0, missed: tuple[int, int] | None = None) -> None:
        """The broker answers the attach that it got."""
        (asked, request), *_ = reversed(self.requests(wire.AttachReceiver))
        assert asked == address
        assert isinstance(request, wire.AttachReceiver)
        self.hear(address, wire.ReceiverAttached(request.id, AT[address], epoch, sequence, missed, 1))

    def get(self, address: str, *sequences: int, epoch: int = 1) -> None:
        for sequence in sequences:
            entry = (5, sequence, b"%d" % sequence)
            self.hear(address, wire.Messages(AT[address], epoch, sequence, [entry]))

    def received(self) -> list[int | tuple[int, int | None]]:
        """The sequence number of every message, and (first, last) of every gap, since the last call."""
        items = [item for deliver in self.take(events.Deliver) for item in deliver.items]
        assert all(isinstance(item, TopicMessage | TopicGap) for item in items)
        return [
            item.position.sequence if isinstance(item, TopicMessage) else (item.first, item.last)
            for item in items
            if isinstance(item, TopicMessage | TopicGap)
        ]

    def redirect(self, source: str = ONE, target: str = TWO) -> None:
        self.hear(source, wire.Redirect(AT[source], T, BrokerId("e"), target))

    def lose(self, address: str) -> None:
        number = max(number for number, known in self.addresses.items() if known == address)
        del self.addresses[number]
        self.do(events.ConnectionLost(number, "reset"))


def attached() -> EdgeSession:
    bench = EdgeSession()
    bench.attached(ONE)
    return bench


def test_receiver_attaches_to_the_edge_and_sender_to_the_home() -> None:
    bench = EdgeSession()
    bench.do(events.PublishRequested(1, T, b"x"))
    assert [address for address, _ in bench.requests(wire.AttachReceiver)] == [ONE]
    assert [address for address, _ in bench.requests(wire.AttachSender)] == [HOME]


def test_login_names_the_run_of_the_program() -> None:
    bench = attached()
    assert [message for _, message in bench.requests(wire.Login)] == [wire.Login(2, "token", 7)]


def test_another_edge_in_the_directory_moves_no_attached_receiver() -> None:
    bench = attached()
    bench.name_edge(TWO, epoch=2)
    bench.pass_time(3.0)
    assert bench.requests(wire.AttachReceiver) == []
    bench.get(ONE, 1)
    assert bench.received() == [1]


def test_receiver_of_a_lost_edge_resumes_at_the_one_in_the_directory() -> None:
    bench = attached()
    bench.get(ONE, 1, 2)
    bench.name_edge(TWO)
    bench.lose(ONE)
    bench.pass_time(0.3)
    ((address, request),) = bench.requests(wire.AttachReceiver)
    assert address == TWO
    assert isinstance(request, wire.AttachReceiver)
    assert request.after == (1, 2)


def test_redirect_keeps_the_old_edge_until_the_new_one_answers() -> None:
    bench = attached()
    bench.get(ONE, 1, 2)
    bench.redirect()
    bench.get(ONE, 3, 4)
    assert bench.requests(wire.Detach) == []
    bench.attached(TWO, sequence=2)
    assert bench.requests(wire.Detach) == [(ONE, wire.Detach(bench_id(bench), AT[ONE]))]
    bench.get(ONE, 5)
    bench.get(TWO, 3, 4, 5, 6)
    assert bench.received() == [1, 2, 3, 4, 5, 6]


def bench_id(bench: EdgeSession) -> int:
    """The id of the last request: ids and connections have one counter."""
    return next(bench.session._homes._numbers) - 1


def test_refused_or_lost_target_leaves_the_receiver_where_it_is() -> None:
    bench = attached()
    bench.redirect()
    ((_, request),) = bench.requests(wire.AttachReceiver)
    assert isinstance(request, wire.AttachReceiver)
    bench.hear(TWO, wire.Refused(request.id, "not_ready", "no"))
    bench.get(ONE, 1)
    bench.redirect()
    bench.lose(TWO)
    bench.get(ONE, 2)
    bench.pass_time(1.0)
    assert bench.requests(wire.Detach) == []
    assert bench.received() == [1, 2]


def test_receiver_asks_a_target_again_that_cannot_answer_yet() -> None:
    bench = attached()
    bench.redirect()
    ((_, request),) = bench.requests(wire.AttachReceiver)
    assert isinstance(request, wire.AttachReceiver)
    bench.hear(TWO, wire.Refused(request.id, "not_ready", "the home does not answer", 0.2))
    assert bench.requests(wire.AttachReceiver) == []
    bench.pass_time(0.5)
    bench.attached(TWO)
    assert [address for address, _ in detaches(bench)] == [ONE]


def test_receiver_asks_a_lost_target_again_over_the_next_connection() -> None:
    bench = attached()
    bench.redirect()
    assert bench.requests(wire.AttachReceiver)
    bench.lose(TWO)
    bench.pass_time(2.0)
    bench.attached(TWO)
    assert [address for address, _ in detaches(bench)] == [ONE]


def test_redirect_that_overtakes_the_answer_to_an_attach_holds() -> None:
    bench = EdgeSession()
    bench.redirect()
    bench.attached(ONE)
    bench.get(ONE, 1)
    bench.attached(TWO, sequence=1)
    assert [address for address, _ in detaches(bench)] == [ONE]
    bench.get(TWO, 1, 2)
    assert bench.received() == [1, 2]


def test_lost_source_leaves_the_receiver_at_the_target() -> None:
    bench = attached()
    bench.get(ONE, 1)
    bench.redirect()
    bench.get(ONE, 2)
    bench.lose(ONE)
    bench.attached(TWO, sequence=1)
    bench.get(TWO, 2, 3)
    bench.pass_time(1.0)
    assert bench.requests(wire.AttachReceiver) == []
    assert bench.received() == [1, 2, 3]


def test_target_that_knows_of_a_failed_home_names_the_loss_once() -> None:
    bench = attached()
    bench.get(ONE, 1)
    bench.redirect()
    bench.get(ONE, 2)
    ((_, request),) = bench.requests(wire.AttachReceiver)
    assert isinstance(request, wire.AttachReceiver)
    bench.hear(TWO, wire.ReceiverAttached(request.id, AT[TWO], 9, 0, (1, 2), 9))
    bench.hear(TWO, wire.Messages(AT[TWO], 9, 1, [(5, 7, b"new")]))
    assert bench.received() == [1, 2, (3, None), 1]


def test_late_answer_of_a_forgotten_redirect_is_detached() -> None:
    bench = attached()
    bench.redirect()
    bench.pass_time(31.0)
    bench.attached(TWO)
    assert [(address, message.at) for address, message in detaches(bench)] == [(TWO, AT[TWO])]
    bench.get(ONE, 1)
    assert bench.received() == [1]


@pytest.mark.parametrize(("token", "is_obeyed"), [(None, True), ("of-a-visitor", False)])
def test_visitor_obeys_no_redirect_to_a_third_site(token: str | None, is_obeyed: bool) -> None:
    edge, redirects = ClientConnection(1, ONE, token=token), Redirects()
    edge.attached[T, "receive"] = AT[ONE]
    access = wire.VisitorAccess("c", "ws://c-home", "secret")
    redirects.ordered(edge, wire.Redirect(AT[ONE], T, BrokerId("c/e"), TWO, access), 0.0)
    assert (T in redirects.receivers) is is_obeyed


def test_visit_is_given_up_when_the_home_closes_its_connection_each_time() -> None:
    """A home of an earlier release does not know the request."""
    bench = attached()
    access = wire.VisitorAccess("c", "ws://c-home", "secret")
    bench.hear(ONE, wire.Redirect(AT[ONE], T, BrokerId("c/e"), TWO, access))
    asked = 0
    for _ in range(20):
        for address, _request in bench.requests(wire.FindPosition):
            assert address == HOME
            asked += 1
            bench.lose(HOME)
        bench.pass_time(1.0)
    assert asked == 2
    bench.get(ONE, 1)
    assert bench.received() == [1], "it stays at its edge"


def detaches(bench: EdgeSession) -> list[tuple[str, wire.Detach]]:
    return [(address, message) for address, message in bench.requests(wire.Detach) if isinstance(message, wire.Detach)]


def test_edge_that_never_answers_is_left_for_the_home() -> None:
    bench = attached()
    bench.dead.add(ONE)
    bench.lose(ONE)
    bench.pass_time(10.0)
    assert [address for address, _ in bench.requests(wire.AttachReceiver)] == [HOME]


class Edges:
    """Two edges that send the same sequence, each with its own delay, over connections that keep their order."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bench = EdgeSession()
        self.published = 0
        self.known = {ONE: 0, TWO: 0}
        """How far each edge has got."""
        self.sent: dict[str, int | None] = {ONE: None, TWO: None}
        """The last sequence number that each edge has sent to the session; None while it is not attached there."""
        self.down: dict[str, deque[wire.ToClient]] = {ONE: deque(), TWO: deque()}

    def read_requests(self) -> None:
        for effect in list(self.bench.effects):
            if not isinstance(effect, events.Send):
                continue
            address, message = self.bench.addresses.get(effect.connection), effect.message
            if address not in self.down:
                continue
            if isinstance(message, wire.AttachReceiver):
                start = self.known[address] if message.after is None else message.after[1]
                while self.known[address] < start:  # the edge waits until it has got as far
                    self.forward(address)
                self.sent[address] = start
                self.down[address].append(wire.ReceiverAttached(message.id, AT[address], 1, start, None, 1))
            elif isinstance(message, wire.Detach):
                self.sent[address] = None
        self.bench.effects = [effect for effect in self.bench.effects if isinstance(effect, events.Deliver)]

    def forward(self, address: str) -> None:
        if self.known[address] < self.published:
            self.known[address] += 1

    def send(self, address: str) -> None:
        sent = self.sent[address]
        if sent is not None and sent < self.known[address]:
            last = self.rng.randint(sent + 1, self.known[address])
            entries = [(5, number, b"%d" % number) for number in range(sent + 1, last + 1)]
            self.down[address].append(wire.Messages(AT[address], 1, sent + 1, entries))
            self.sent[address] = last

    def deliver(self, address: str) -> None:
        if self.down[address] and address in self.bench.addresses.values():
            self.bench.hear(address, self.down[address].popleft())

    def redirect(self, source: str) -> None:
        if self.sent[source] is not None:
            target = TWO if source == ONE else ONE
            self.down[source].append(wire.Redirect(AT[source], T, BrokerId("e"), target))

    def lose(self, address: str) -> None:
        if address in self.bench.addresses.values():
            self.down[address].clear()
            self.sent[address] = None
            self.bench.lose(address)

    def step(self) -> None:
        address = self.rng.choice((ONE, TWO))
        action = self.rng.choices(
            (self.publish, self.forward, self.send, self.deliver, self.redirect, self.lose, self.tick),
            (4, 4, 4, 6, 1, 0.3, 1),
        )[0]
        action(address)
        self.read_requests()

    def publish(self, _address: str) -> None:
        self.published += 1

    def tick(self, _address: str) -> None:
        self.bench.now_s += 0.1
        self.bench.do(events.Ticked())

    def settle(self) -> None:
        for _ in range(200):
            for address in (ONE, TWO):
                while self.known[address] < self.published:
                    self.forward(address)
                self.send(address)
                self.deliver(address)
                self.tick(address)
                self.read_requests()


@pytest.mark.parametrize("seed", range(40))
def test_random_redirects_and_losses_keep_order_without_gap_or_repeat(seed: int) -> None:
    edges = Edges(seed)
    edges.read_requests()
    for _ in range(400):
        edges.step()
    edges.publish(ONE)
    edges.settle()
    assert edges.bench.received() == list(range(1, edges.published + 1))
