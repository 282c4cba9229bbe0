"""Random delays and faults: one home accepts at a time, and every loss is reported to every subscriber."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.network.topic_interleaving import BROKERS, RULES, TOPICS, Interleaving, check_homes
from tocsin.client.topic_events import TopicGap
from tocsin.model.ids import BrokerId
from tocsin.sim.network.coordinator import RECONNECT_S


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
    interleaving.disturb_move(topic, target, 0.004 * step, faults[fault])


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
