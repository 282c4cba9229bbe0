"""Random delays and faults: one home accepts at a time, and every loss is reported to every subscriber."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.sim.network.topic_interleaving import BROKERS, RULES, TOPICS, Interleaving, check_homes
from tocsin.client.topic_events import TopicGap, TopicMessage
from tocsin.coordinator.rules import TopicWorkflow
from tocsin.model.ids import BrokerId
from tocsin.sim.network.coordinator import RECONNECT_S
from tocsin.sim.network.transport import ACCESS_S, LINK_S


@pytest.mark.parametrize(
    ("workflow", "seed"),
    [
        *((TopicWorkflow.TOCSIN, seed) for seed in range(60)),
        *((TopicWorkflow.EPULSAR, seed) for seed in range(10)),
        *((TopicWorkflow.PULSAR, seed) for seed in range(10)),
    ],
)
def test_topics_survive_faults_without_silent_loss(workflow: TopicWorkflow, seed: int) -> None:
    interleaving = Interleaving(seed, workflow=workflow)
    network, rng = interleaving.network, interleaving.rng

    def cut_off() -> None:
        broker = network.brokers[BrokerId(BROKERS[int(rng.integers(len(BROKERS)))])]
        network.replicas.cut_off_for(broker, float(rng.choice((0.1, 2.0, 5.0))))

    for _ in range(80):
        interleaving.step([(2, "cut off from other brokers", cut_off)])
    interleaving.settle()
    try:
        interleaving.check()
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *interleaving.log[-80:]])) from error


FAULTS = [
    "crash source",
    "crash target",
    "restart",
    "crash before storing",
    "crash before sending",
    "cut source",
    "cut target",
    "cut source and target",
    "cut source from target",
    "cut source from all",
    "pause source",
    "pause target",
    "pause source and crash target",
    "crash both",
    "stop source",
    "stop target",
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", range(17))
def test_fault_at_every_step_of_a_move_is_survived(fault: str, step: int) -> None:
    """The messages of a move take 5 ms and 20 ms, and it lasts about 0.2 s; the fault comes at any of its steps."""
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
        "pause target": lambda: network.pause_broker(target, 4.0),
        "stop source": lambda: network.stop_broker(source),
        "stop target": lambda: network.stop_broker(target),
        "cut source from target": lambda: network.replicas.cut_off_for(network.brokers[source], 6.0),
        "crash before storing": lambda: setattr(network.coordinator, "crash_on_message", "before storing"),
        "crash before sending": lambda: setattr(network.coordinator, "crash_on_message", "before sending"),
    }
    pairs = {
        "cut source and target": ("cut source", "cut target"),
        "cut source from all": ("cut source", "cut source from target"),
        "pause source and crash target": ("pause source", "crash target"),
        "crash both": ("crash source", "crash target"),
    }

    def cause() -> None:
        for part in pairs.get(fault, (fault,)):
            faults[part]()

    interleaving.disturb_move(topic, target, 0.013 * step, cause)


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


@pytest.mark.parametrize("far_s", [0.005, 0.2])
def test_pause_of_a_move_is_one_round_trip_at_any_distance(far_s: float) -> None:
    """Messages every 5 ms; the longest time between two deliveries in the move is a client's round trip."""
    interleaving = Interleaving(3)
    network, topic = interleaving.network, TOPICS[0]
    network.transport.delay_s = lambda usual_s: far_s if usual_s == LINK_S else usual_s
    interleaving.run(10.0)
    assert network.coordinator.core is not None
    record = network.coordinator.core.registry.topics.topics[topic]
    source, deliveries_s, seen = record.home, [], 0
    target = next(BrokerId(name) for name in BROKERS if name != source)
    assert network.move(topic, target) is True
    for _ in range(600):
        interleaving.publish(interleaving.publishers[0], topic)
        interleaving.run(0.005)
        got = len([item for item in interleaving.subscribers[0].items.get(topic, []) if isinstance(item, TopicMessage)])
        if got > seen:
            seen = got
            deliveries_s.append(network.kernel.now_s)
    assert (record.home, record.move) == (target, None)
    pause_s = max(later - earlier for earlier, later in pairwise(deliveries_s))
    assert pause_s <= 2 * ACCESS_S + 0.010
    interleaving.settle()
    interleaving.check()
    for subscriber in interleaving.subscribers:
        assert not [item for item in subscriber.items[topic] if isinstance(item, TopicGap)]
