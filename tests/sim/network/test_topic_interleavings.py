"""Random delays and faults: one home accepts at a time, and every loss is reported to every subscriber."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tocsin.broker.topics.limits import TopicLimits
from tocsin.client.topic_events import PublishRequested, SubscribeRequested, TopicGap, TopicMessage
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import Position
from tocsin.sim.kernel import Kernel
from tocsin.sim.network.coordinator import RECONNECT_S
from tocsin.sim.network.topic_broker import Accepted
from tocsin.sim.network.topic_client import SimulatedTopicClient
from tocsin.sim.network.topic_network import SimulatedTopicNetwork

TOPICS = [TopicName("swarm/1"), TopicName("swarm/2")]
BROKERS = ["b0", "b1", "b2"]
RULES = CoordinatorRules(
    grace_s=10.0, probation_s=1.0, topic_lease_s=2.0, topic_move_s=3.0, topic_prefixes="swarm/", forgive_s=5.0
)


class Interleaving:
    """Three brokers, two publishers and two subscribers; every message takes a random time."""

    def __init__(self, seed: int) -> None:
        kernel = Kernel(seed)
        self.rng = kernel.stream("faults")
        self._delays = kernel.stream("delays")
        limits = TopicLimits(topic_recent_bytes=int(self.rng.choice((40, 100_000))))
        self.network = SimulatedTopicNetwork(kernel, BROKERS, RULES, limits)
        self.publishers = [self.network.add_client(f"p{number}") for number in range(2)]
        self.subscribers = [self.network.add_client(f"s{number}") for number in range(2)]
        self.tickets: dict[int, tuple[SimulatedTopicClient, bytes]] = {}
        self.log: list[str] = []
        self.run(8.0)
        self.network.create(TOPICS[0])
        self.subscribers[0].handle(SubscribeRequested(1, "swarm/#"))
        self.subscribers[1].handle(SubscribeRequested(1, "swarm/1"))
        self.run(3.0)
        assert all(subscriber.ready == {1} for subscriber in self.subscribers)
        self.network.transport.delay_s = self._draw_delay_s

    def _draw_delay_s(self, usual_s: float) -> float:
        mean_s = 1.5 if usual_s >= RECONNECT_S else float(self._delays.choice((0.02, 0.2)))
        return float(self._delays.exponential(mean_s))

    def run(self, seconds: float) -> None:
        self.network.kernel.run(self.network.kernel.now_s + seconds)

    def publish(self, client: SimulatedTopicClient, topic: TopicName) -> int:
        ticket = len(self.tickets) + 1
        data = b"%d" % ticket
        self.tickets[ticket] = (client, data)
        client.handle(PublishRequested(ticket, topic, data))
        return ticket

    def step(self) -> None:
        rng, network = self.rng, self.network
        broker = BrokerId(BROKERS[int(rng.integers(3))])
        publisher = self.publishers[int(rng.integers(2))]
        topic = TOPICS[int(rng.integers(2))]
        clients = list(network.clients.values())
        connections = [connection for client in clients for connection in client.connections.values()]
        connection = connections[int(rng.integers(len(connections)))] if connections else None

        def publish() -> None:
            for _ in range(int(rng.integers(1, 6))):
                self.publish(publisher, topic)

        def block() -> None:
            if connection is not None:
                connection.block(float(rng.exponential(1.0)))

        def break_connection() -> None:
            if connection is not None:
                connection.break_off()

        def crash_on_message(moment: str) -> Callable[[], None]:
            return lambda: setattr(network.coordinator, "crash_on_message", moment)

        actions: list[tuple[int, str, Callable[[], object]]] = [
            (12, "publish", publish),
            (4, "move", lambda: network.move(topic, broker)),
            (2, "block", block),
            (2, "break connection", break_connection),
            (1, "cut link", lambda: network.coordinator.cut_link(network.brokers[broker])),
            (1, "crash broker", lambda: network.crash_broker(broker)),
            (1, "stop broker", lambda: network.stop_broker(broker)),
            (1, "pause broker", lambda: network.pause_broker(broker, float(rng.choice((0.5, 2.5, 6.0))))),
            (1, "restart coordinator", network.coordinator.restart),
            (1, "crash before storing", crash_on_message("before storing")),
            (1, "crash before sending", crash_on_message("before sending")),
            (1, "freeze", lambda: network.transport.freeze(float(rng.choice((0.5, 3.0))))),
            (3, "let everything arrive", lambda: self.run(1.5)),
        ]
        weights = np.array([weight for weight, _, _ in actions], float)
        _, name, action = actions[int(rng.choice(len(actions), p=weights / weights.sum()))]
        self.log.append(f"{network.kernel.now_s:.2f} s {name} {broker} {publisher.user} {topic}")
        action()
        self.run(float(rng.exponential(0.15)))

    def settle(self) -> None:
        """No more faults. A last message to every topic must reach every subscriber."""
        self.network.transport.delay_s = lambda usual_s: usual_s
        self.network.coordinator.crash_on_message = None
        self.run(20.0)
        self.last = {topic: self.publish(self.publishers[0], topic) for topic in TOPICS}
        self.run(10.0)

    # -- checks --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for topic in TOPICS:
            accepted = [entry for entry in self.network.accepted if entry.topic == topic]
            check_homes(accepted)
            for subscriber in self.subscribers:
                if topic in subscriber.starts:
                    check_received(subscriber, topic, accepted)
        self._check_publishers()
        for subscriber, topics in zip(self.subscribers, (TOPICS, TOPICS[:1]), strict=True):
            for topic in topics:
                data = [item.data for item in subscriber.items[topic] if isinstance(item, TopicMessage)]
                assert data[-1] == b"%d" % self.last[topic]

    def _check_publishers(self) -> None:
        """Every message was acknowledged in the end, and each acknowledged one was accepted by some home."""
        accepted = {entry.data for entry in self.network.accepted}
        for ticket, (client, data) in self.tickets.items():
            assert client.settled[ticket] is None
            assert data in accepted


def check_homes(accepted: list[Accepted]) -> None:
    """Epochs never go back in real time, one run of one broker accepts in each, and sequences have no holes."""
    holders: dict[int, object] = {}
    epoch = 0
    sequences: dict[int, int] = {}
    for entry in accepted:
        assert entry.epoch >= epoch, f"{entry} after a message of epoch {epoch}"
        epoch = entry.epoch
        assert holders.setdefault(epoch, entry.holder) == entry.holder
        assert entry.sequence == sequences.get(epoch, entry.sequence - 1) + 1
        sequences[epoch] = entry.sequence


def check_received(subscriber: SimulatedTopicClient, topic: TopicName, accepted: list[Accepted]) -> None:
    items = subscriber.items.get(topic, [])
    messages = [item for item in items if isinstance(item, TopicMessage)]
    ids = [(message.publisher, message.number) for message in messages]
    assert len(set(ids)) == len(ids), "a message was delivered twice"
    for publisher in {publisher for publisher, _ in ids}:
        numbers = [number for other, number in ids if other == publisher]
        assert numbers == sorted(numbers), "a publisher's messages are out of order"
    missing = {
        Position(entry.epoch, entry.sequence): entry
        for entry in accepted
        if Position(entry.epoch, entry.sequence) > subscriber.starts[topic]
        and (entry.publisher, entry.number) not in set(ids)
    }
    for index, item in enumerate(items):
        if isinstance(item, TopicGap):
            later = [other.position for other in items[index + 1 :] if isinstance(other, TopicMessage)]
            missing = {position: entry for position, entry in missing.items() if not covers(item, position, later)}
    assert not missing, f"lost without a gap: {list(missing.values())[:3]}"


def covers(gap: TopicGap, position: Position, later: list[Position]) -> bool:
    """A gap with a last sequence covers it in every epoch of the sequence, one without all up to the next message."""
    if gap.last is not None:
        return position.epoch <= gap.epoch and gap.first <= position.sequence <= gap.last
    return Position(gap.epoch, gap.first) <= position and (not later or position < later[0])


@pytest.mark.parametrize("seed", range(60))
def test_topics_survive_faults_without_silent_loss(seed: int) -> None:
    interleaving = Interleaving(seed)
    for _ in range(80):
        interleaving.step()
    interleaving.settle()
    try:
        interleaving.check()
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *interleaving.log[-80:]])) from error


@pytest.mark.parametrize(
    "fault", ["crash source", "crash target", "restart", "cut source", "cut target", "pause source"]
)
@pytest.mark.parametrize("step", range(12))
def test_fault_at_every_step_of_a_move_is_survived(fault: str, step: int) -> None:
    """The steps of a move are 5 ms and 20 ms apart; the fault comes at any of them."""
    interleaving = Interleaving(1)
    network, topic = interleaving.network, TOPICS[0]
    network.transport.delay_s = lambda usual_s: usual_s
    interleaving.run(10.0)
    assert network.coordinator.core is not None
    source = network.coordinator.core.registry.topics.topics[topic].home
    assert source is not None
    target = next(BrokerId(name) for name in BROKERS if name != source)
    faults: dict[str, Callable[[], object]] = {
        "crash source": lambda: network.crash_broker(source),
        "crash target": lambda: network.crash_broker(target),
        "restart": network.coordinator.restart,
        "cut source": lambda: network.coordinator.cut_link(network.brokers[source]),
        "cut target": lambda: network.coordinator.cut_link(network.brokers[target]),
        "pause source": lambda: network.pause_broker(source, 4.0),
    }
    for _ in range(3):
        interleaving.publish(interleaving.publishers[0], topic)
        interleaving.run(0.011)
    assert network.move(topic, target) is True
    interleaving.run(0.004 * step)
    interleaving.publish(interleaving.publishers[1], topic)
    faults[fault]()
    for _ in range(3):
        interleaving.publish(interleaving.publishers[0], topic)
        interleaving.run(0.011)
    interleaving.settle()
    interleaving.check()


@pytest.mark.parametrize("seed", range(20))
def test_partitioned_home_stops_before_the_next_home_begins(seed: int) -> None:
    """One publisher knows only the old home; others look the home up, one after the other."""
    interleaving = Interleaving(seed)
    network, topic = interleaving.network, TOPICS[0]
    network.transport.delay_s = lambda usual_s: usual_s
    interleaving.run(10.0)
    assert network.coordinator.core is not None
    record = network.coordinator.core.registry.topics.topics[topic]
    source = record.home
    assert source is not None
    stubborn = interleaving.publishers[0]
    interleaving.publish(stubborn, topic)
    interleaving.run(float(interleaving.rng.uniform(0.5, 1.0)))
    stubborn.blind = True
    network.transport.delay_s = lambda usual_s: 60.0 if usual_s >= RECONNECT_S else usual_s
    network.coordinator.cut_link(network.brokers[source])
    for number in range(50):
        interleaving.publish(network.add_client(f"n{number}"), topic)
        for _ in range(5):
            interleaving.publish(stubborn, topic)
            interleaving.run(0.02)
    assert record.home not in (None, source)
    accepted = [entry for entry in network.accepted if entry.topic == topic]
    check_homes(accepted)
    last_old_s = max(entry.at_s for entry in accepted if entry.holder[0] == source)
    first_new_s = min(entry.at_s for entry in accepted if entry.holder[0] == record.home)
    assert 0.0 < first_new_s - last_old_s < 0.5 * RULES.topic_lease_s


def test_move_without_faults_has_no_gap() -> None:
    interleaving = Interleaving(2)
    network, topic = interleaving.network, TOPICS[0]
    network.transport.delay_s = lambda usual_s: usual_s
    interleaving.run(10.0)
    for number in range(60):
        if number % 10 == 5:
            network.move(topic, BrokerId(BROKERS[number // 10 % 3]))
        interleaving.publish(interleaving.publishers[number % 2], topic)
        interleaving.run(0.03)
    interleaving.settle()
    interleaving.check()
    assert len({entry.epoch for entry in network.accepted if entry.topic == topic}) > 3
    for subscriber in interleaving.subscribers:
        assert not [item for item in subscriber.items[topic] if isinstance(item, TopicGap)]
