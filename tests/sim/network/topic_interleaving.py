"""Random delays and faults in a network with topics: the network, the steps, and the checks of what arrived."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.sim.network.interleaving import Action, RandomSteps
from tocsin.broker.topics.limits import TopicLimits
from tocsin.client.topic_events import PublishRequested, SubscribeRequested, TopicGap, TopicMessage
from tocsin.coordinator.rules import CoordinatorRules, TopicWorkflow
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import Position
from tocsin.model.topic_persistence import Persistence
from tocsin.sim.kernel import Kernel
from tocsin.sim.network.topic_broker import Accepted
from tocsin.sim.network.topic_client import SimulatedTopicClient
from tocsin.sim.network.topic_network import SimulatedTopicNetwork
from tocsin.wire.site_link import Role

TOPICS = [TopicName("swarm/1"), TopicName("swarm/2")]
BROKERS = ["b0", "b1", "b2"]
RULES = CoordinatorRules(
    grace_s=10.0, probation_s=1.0, topic_lease_s=2.0, topic_move_s=3.0, topic_prefixes="swarm/", forgive_s=5.0
)


class Interleaving:
    """Some brokers, two publishers and two subscribers; every message takes a random time."""

    def __init__(
        self,
        seed: int,
        persistence: Persistence | None = None,
        brokers: list[str] = BROKERS,
        retain: int = 1_000_000,
        workflow: TopicWorkflow = TopicWorkflow.TOCSIN,
        roles: Mapping[str, Role] = {},
        recent_bytes: int | None = None,
    ) -> None:
        kernel = Kernel(seed)
        self.rng = kernel.stream("faults")
        self.brokers = brokers
        limits = TopicLimits(topic_recent_bytes=recent_bytes or int(self.rng.choice((40, 100_000))))
        rules = replace(RULES, topic_workflow=workflow)
        self.network = SimulatedTopicNetwork(kernel, brokers, rules, limits, retain, roles)
        self.steps = RandomSteps(kernel, self.network, 1.5, (0.02, 0.2))
        self.publishers = [self.network.add_client(f"p{number}") for number in range(2)]
        self.subscribers = [self.network.add_client(f"s{number}") for number in range(2)]
        self.tickets: dict[int, tuple[SimulatedTopicClient, bytes]] = {}
        self.run(8.0)
        for topic in TOPICS if persistence is not None else TOPICS[:1]:
            self.network.create(topic, persistence)
        self.subscribers[0].handle(SubscribeRequested(1, "swarm/#"))
        self.subscribers[1].handle(SubscribeRequested(1, "swarm/1"))
        self.run(3.0)
        assert all(subscriber.ready == {1} for subscriber in self.subscribers)
        self.network.transport.delay_s = self.steps.draw_delay_s

    @property
    def log(self) -> list[str]:
        return self.steps.log

    def run(self, seconds: float) -> None:
        self.steps.run(seconds)

    def publish(self, client: SimulatedTopicClient, topic: TopicName) -> int:
        ticket = len(self.tickets) + 1
        data = b"%d" % ticket
        self.tickets[ticket] = (client, data)
        client.handle(PublishRequested(ticket, topic, data))
        return ticket

    def step(self, further: list[Action] | None = None) -> None:
        """Do something at random; `further` actions are possible too."""
        rng, network = self.rng, self.network
        broker = BrokerId(self.brokers[int(rng.integers(len(self.brokers)))])
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

        actions: list[Action] = [
            (12, "publish", publish),
            (4, "move", lambda: network.move(topic, broker)),
            (2, "block", block),
            (2, "break connection", break_connection),
            (1, "cut link", lambda: network.coordinator.cut_link(network.brokers[broker])),
            (1, "crash broker", lambda: network.crash_broker(broker)),
            (1, "stop broker", lambda: network.stop_broker(broker)),
            (1, "pause broker", lambda: network.pause_broker(broker, float(rng.choice((0.5, 2.5, 6.0))))),
            *self.steps.coordinator_faults(),
            (1, "freeze", lambda: network.transport.freeze(float(rng.choice((0.5, 3.0))))),
            (3, "let everything arrive", lambda: self.run(1.5)),
            *(further or ()),
        ]
        self.steps.take(actions, f"{broker} {publisher.user} {topic}")
        self.run(float(rng.exponential(0.15)))

    def disturb_move(self, topic: TopicName, target: BrokerId, after_s: float, fault: Callable[[], object]) -> None:
        """Move a topic under traffic, cause the fault `after_s` after the order, then check what clients received."""
        for _ in range(3):
            self.publish(self.publishers[0], topic)
            self.run(0.011)
        assert self.network.move(topic, target) is True
        self.run(after_s)
        self.publish(self.publishers[1], topic)
        fault()
        for _ in range(3):
            self.publish(self.publishers[0], topic)
            self.run(0.011)
        self.settle()
        self.check()

    def settle(self) -> None:
        """No more faults. A last message to every topic must reach every subscriber."""
        self.steps.settle()
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
