"""Head offloading at the coordinator: an overloaded head hands topics over to another head of its site."""

from __future__ import annotations

import pytest

from tests.coordinator.bench import Bench
from tocsin.coordinator.effects import Effect, RecordTrace, SendToBroker
from tocsin.coordinator.events import Event, Ticked, TopicCreated
from tocsin.coordinator.rules import CoordinatorRules, TopicWorkflow
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import TopicDefinition
from tocsin.model.trace import TraceRow
from tocsin.wire import link
from tocsin.wire.site_link import Capacity, RedirectReceivers, Role, SiteLoad, TopicLoad
from tocsin.wire.topic_link import (
    OpenTopic,
    PrepareTopic,
    RenewLease,
    StopTopic,
    TopicOpened,
    TopicPrepared,
    TopicRefused,
    TopicState,
    TopicStopped,
)

H1, H2, EDGE = BrokerId("h1"), BrokerId("h2"), BrokerId("edge")
RULES = CoordinatorRules(topic_workflow=TopicWorkflow.EPULSAR, topic_balancing=False)
CAPACITY = Capacity(None, 100_000.0, None)


class Heads(Bench):
    """Two heads and an edge. Heads carry out moves at once, unless they refuse to prepare."""

    def __init__(self, rules: CoordinatorRules = RULES) -> None:
        super().__init__(rules)
        self.rates: dict[TopicName, float] = {}
        self.rows: list[TraceRow] = []
        self.redirects = 0
        self.refuses = False
        self._renewals = 0
        for broker, role in ((H1, Role.HEAD), (EDGE, Role.EDGE)):
            self.join(broker, role)

    def join(self, broker: BrokerId, role: Role) -> None:
        self.register(broker, topics=True, role=role)
        self.core.site_loads.set_role(broker, role)
        self.core.site_loads.set_capacity(broker, CAPACITY)
        self._renew(broker)

    def _renew(self, broker: BrokerId) -> None:
        self._renewals += 1
        self.send(broker, link.Heartbeat(0, 0, 0))
        self.send(broker, RenewLease(self._renewals))

    def add(self, name: str, out_bytes_per_s: float, delay_s: float | None = None) -> TopicRecord:
        topic = TopicName(name)
        record = self.ask(lambda ask: TopicCreated(ask, TopicDefinition(topic, delay_s=delay_s)))
        assert isinstance(record, TopicRecord)
        self.rates[topic] = out_bytes_per_s
        return record

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        for effect in effects:
            match effect:
                case RecordTrace(row):
                    self.rows.append(row)
                case SendToBroker(broker, _, message):
                    self._answer(broker, message)
        self.effects = effects  # answers of brokers came between
        return effects

    def _answer(self, broker: BrokerId, message: link.FromCoordinator) -> None:
        match message:
            case PrepareTopic(topic=topic, epoch=epoch) if self.refuses:
                self.send(broker, TopicRefused(topic, epoch, "full"))
            case PrepareTopic(topic=topic, epoch=epoch):
                self.send(broker, TopicPrepared(topic, epoch))
            case StopTopic(topic=topic, epoch=epoch):
                self.send(broker, TopicStopped(topic, epoch, TopicState(0, epoch, [])))
            case OpenTopic(topic=owned):
                self.send(broker, TopicOpened(owned.topic, owned.epoch))
            case RedirectReceivers():
                self.redirects += 1

    def run(self, seconds: int) -> None:
        """Each second every head reports the rates of the topics whose home it is."""
        for _ in range(seconds):
            for _ in range(4):
                self.now_s += 0.25
                self.handle(Ticked())
            for broker in list(self.registry.brokers):
                self._renew(broker)
                loads = [
                    TopicLoad(topic, rate / 4, rate, 1.0, 1, 1)
                    for topic, rate in self.rates.items()
                    if self.registry.topics.topics[topic].home == broker
                ]
                self.send(broker, SiteLoad(loads))

    def homes(self) -> dict[str, BrokerId | None]:
        return {name: record.home for name, record in self.registry.topics.topics.items()}


def crowded() -> Heads:
    """h1 is the home of four topics of 20 kB/s each; h2 joins afterwards."""
    made = Heads()
    for name, delay_s in (("alarm", 0.2), ("a", 1.0), ("b", 10.0), ("c", None)):
        made.add(name, 20_000.0, delay_s)
    made.join(H2, Role.HEAD)
    made.run(3)
    assert set(made.homes().values()) == {H1}
    return made


def test_overloaded_head_hands_the_most_tolerant_topic_to_another_head() -> None:
    made = crowded()
    for topic in made.rates:
        made.rates[topic] = 26_000.0
    made.run(6)
    assert made.homes() == {"alarm": H1, "a": H1, "b": H1, "c": H2}
    kinds = [row.kind for row in made.rows if row.kind.startswith("offload")]
    assert kinds == ["offload", "offloaded"]
    assert made.core.site_control.busy == frozenset()
    assert made.core.site_control.limited == () and made.redirects == 0


def test_head_offloading_comes_to_rest() -> None:
    made = crowded()
    for topic in made.rates:
        made.rates[topic] = 40_000.0
    made.run(10)
    homes = made.homes()
    assert sorted(homes.values(), key=str) == [H1, H1, H2, H2]
    assert homes["alarm"] == H1
    made.run(60)
    assert made.homes() == homes


def test_head_without_another_head_is_limited() -> None:
    made = Heads()
    made.add("a", 60_000.0)
    made.add("b", 60_000.0)
    made.run(5)
    assert made.core.site_control.limited == (H1,)
    assert set(made.homes().values()) == {H1}


def test_refused_move_leaves_the_topic_and_ends_busy() -> None:
    made = crowded()
    made.refuses = True
    for topic in made.rates:
        made.rates[topic] = 26_000.0
    made.run(4)
    assert set(made.homes().values()) == {H1}
    made.refuses = False
    made.run(20)
    assert made.homes()["c"] == H2, "a later round moves it"
    assert made.core.site_control.busy == frozenset()


@pytest.mark.parametrize("receive_at", [None, (EDGE, "ws://edge")])
def test_receivers_of_a_topic_stay_at_their_edge_when_its_home_moves(receive_at: tuple[BrokerId, str] | None) -> None:
    made = crowded()
    record = made.registry.topics.topics[TopicName("c")]
    record.receive_at = receive_at
    for topic in made.rates:
        made.rates[topic] = 26_000.0
    made.run(6)
    assert record.home == H2
    assert record.receive_at in (None, (EDGE, "ws://edge"))
