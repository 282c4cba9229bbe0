"""Persistent topics under random delays and faults: no acknowledged message is lost, and no subscriber gets a gap."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.network.interleaving import Action
from tests.sim.network.topic_interleaving import TOPICS, Interleaving, check_homes
from tocsin.client.topic_events import SubscribeRequested, TopicGap, TopicMessage
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import BEGINNING
from tocsin.model.topic_persistence import Persistence
from tocsin.wire.topic_log import common_point

FOUR = ["b0", "b1", "b2", "b3"]
KEPT = [Persistence(1, 1), Persistence(2, 2), Persistence(3, 2), Persistence(3, 3)]


class PersistentInterleaving(Interleaving):
    def __init__(self, seed: int, persistence: Persistence, retain: int = 1_000_000) -> None:
        super().__init__(seed, persistence, FOUR, retain)
        self.persistence = persistence

    def faults(self) -> list[Action]:
        network, rng = self.network, self.rng
        broker = BrokerId(self.brokers[int(rng.integers(len(self.brokers)))])
        process = network.brokers[broker]

        def fill_disk() -> None:
            network.disks[broker].fails = True
            network.kernel.call_after(float(rng.choice((0.5, 3.0))), setattr, network.disks[broker], "fails", False)

        return [
            (2, "crash a broker", lambda: network.crash_broker(broker)),
            (2, "break replica connections", lambda: network.replicas.break_off(process)),
            (1, "cut a broker off", lambda: network.replicas.cut_off_for(process, float(rng.choice((0.5, 4.0))))),
            (1, "fill a disk", fill_disk),
        ]

    def settle(self) -> None:
        for disk in self.network.disks.values():
            disk.fails = False
        self.steps.settle()
        self.run(20.0)
        unsettled = [ticket for ticket, (client, _) in self.tickets.items() if ticket not in client.settled]
        assert not unsettled, "messages wait for an acknowledgement, though all brokers work"
        super().settle()

    def check(self, *, gaps: bool = False) -> None:
        for topic in TOPICS:
            accepted = [entry for entry in self.network.accepted if entry.topic == topic]
            check_homes(accepted)
            self._check_logs(topic)
        placed: dict[tuple[TopicName, int], bytes] = {}
        for subscriber, topics in zip(self.subscribers, (TOPICS, TOPICS[:1]), strict=True):
            for topic in topics:
                items = subscriber.items[topic]
                assert gaps or not [item for item in items if isinstance(item, TopicGap)]
                messages = [item for item in items if isinstance(item, TopicMessage)]
                for message in messages:
                    key = (topic, message.position.sequence)
                    assert placed.setdefault(key, message.data) == message.data, "two messages at one place"
                self._check_received(topic, messages, complete=not gaps)

    def _check_received(self, topic: TopicName, messages: list[TopicMessage], *, complete: bool) -> None:
        data = [message.data for message in messages]
        assert len(set(data)) == len(data), "a message was delivered twice"
        sequences = [message.position.sequence for message in messages]
        assert sequences == sorted(sequences)
        expected = [
            data
            for ticket, (client, data) in self.tickets.items()
            if self.topic_of[ticket] == topic and client.settled.get(ticket, "") is None
        ]
        assert all(client.settled[ticket] is None for ticket, (client, _) in self.tickets.items()), "not acknowledged"
        if complete:
            assert set(data) == set(expected), f"acknowledged and lost: {set(expected) - set(data)}"
        for publisher in self.publishers:
            mine = [data for client, data in self.tickets.values() if client is publisher]
            received = [item for item in data if item in mine]
            assert received == sorted(received, key=mine.index), "a publisher's messages are out of order"

    def _check_logs(self, topic: TopicName) -> None:
        """The replicas' logs are equal, and no other broker keeps one."""
        assert self.network.coordinator.core is not None
        record = self.network.coordinator.core.registry.topics.topics[topic]
        assert record.log is not None and record.log.opened and record.home in record.log.replicas
        assert len(record.log.replicas) == self.persistence.replicas
        key = (topic, record.created)
        home = self.network.disks[record.home].logs[key]
        for broker, disk in self.network.disks.items():
            if broker in record.log.replicas:
                log = disk.logs[key]
                assert common_point(log.epochs, log.end, home.epochs, home.end) == (record.epoch, home.end), broker
                assert log.end == home.end
                common = max(log.start, home.start)
                assert log.entries[common - log.start :] == home.entries[common - home.start :]
            else:
                assert key not in disk.logs, f"{broker} keeps a log that it should have dropped"

    def publish(self, client: object, topic: TopicName) -> int:
        ticket = super().publish(client, topic)  # type: ignore[arg-type]
        self.__dict__.setdefault("topic_of", {})[ticket] = topic
        return ticket

    topic_of: dict[int, TopicName]


def run_checked(interleaving: PersistentInterleaving, steps: int, *, gaps: bool = False) -> None:
    try:
        for _ in range(steps):
            interleaving.step(interleaving.faults())
        interleaving.settle()
        interleaving.check(gaps=gaps)
    except AssertionError as error:
        error.add_note("\n".join(interleaving.log[-80:]))
        raise


@pytest.mark.parametrize("persistence", KEPT, ids=lambda kept: f"{kept.replicas}-{kept.quorum}")
@pytest.mark.parametrize("seed", range(30))
def test_no_acknowledged_message_is_lost_by_faults(seed: int, persistence: Persistence) -> None:
    run_checked(PersistentInterleaving(seed, persistence), 80)


@pytest.mark.parametrize("seed", range(15))
def test_retention_removes_old_messages_and_reports_gaps(seed: int) -> None:
    """Followers that were away get a snapshot, because the home does not keep what they miss."""
    run_checked(PersistentInterleaving(seed, Persistence(3, 2), retain=4), 80, gaps=True)


FAULTS = [
    *("crash source", "crash target", "crash follower", "restart", "cut source", "cut target", "pause source"),
    *("pause target", "pause follower", "cut replicas of source", "cut replicas of target"),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("new_replica", [False, True])
def test_fault_at_every_step_of_a_move_loses_nothing(fault: str, step: int, new_replica: bool) -> None:
    interleaving = PersistentInterleaving(1, Persistence(2, 2))
    network, topic = interleaving.network, TOPICS[0]
    network.transport.delay_s = lambda usual_s: usual_s
    interleaving.run(10.0)
    assert network.coordinator.core is not None
    record = network.coordinator.core.registry.topics.topics[topic]
    assert record.log is not None and record.home is not None
    source, replicas = record.home, record.log.replicas
    follower = next(name for name in replicas if name != source)
    target = next(BrokerId(name) for name in FOUR if name not in replicas) if new_replica else follower
    faults: dict[str, Callable[[], object]] = {
        "crash source": lambda: network.crash_broker(source),
        "crash target": lambda: network.crash_broker(target),
        "crash follower": lambda: network.crash_broker(follower),
        "restart": network.coordinator.restart,
        "cut source": lambda: network.coordinator.cut_link(network.brokers[source]),
        "cut target": lambda: network.coordinator.cut_link(network.brokers[target]),
        "pause source": lambda: network.pause_broker(source, 4.0),
        "pause target": lambda: network.pause_broker(target, 4.0),
        "pause follower": lambda: network.pause_broker(follower, 4.0),
        "cut replicas of source": lambda: network.replicas.cut_off_for(network.brokers[source], 4.0),
        "cut replicas of target": lambda: network.replicas.cut_off_for(network.brokers[target], 4.0),
    }
    interleaving.disturb_move(topic, target, 0.008 * step, faults[fault])


def test_moves_without_faults_have_no_gap_and_change_the_replicas() -> None:
    interleaving = PersistentInterleaving(2, Persistence(2, 2))
    network, topic = interleaving.network, TOPICS[0]
    network.transport.delay_s = lambda usual_s: usual_s
    interleaving.run(10.0)
    for number in range(60):
        if number % 10 == 5:
            network.move(topic, BrokerId(FOUR[number // 10 % 4]))
        interleaving.publish(interleaving.publishers[number % 2], topic)
        interleaving.run(0.03)
    interleaving.settle()
    interleaving.check()
    assert len({entry.epoch for entry in network.accepted if entry.topic == topic}) > 3


def test_consumer_reads_the_log_from_its_beginning_after_failovers() -> None:
    interleaving = PersistentInterleaving(3, Persistence(2, 2))
    network, topic = interleaving.network, TOPICS[0]
    network.transport.delay_s = lambda usual_s: usual_s
    for number in range(12):
        interleaving.publish(interleaving.publishers[0], topic)
        interleaving.run(1.0)
        if number % 4 == 3:
            assert network.coordinator.core is not None
            home = network.coordinator.core.registry.topics.topics[topic].home
            assert home is not None
            network.crash_broker(home)
            interleaving.run(8.0)
    late = network.add_client("late")
    late.handle(SubscribeRequested(1, topic, BEGINNING))
    interleaving.settle()
    data = [item.data for item in late.items[topic] if isinstance(item, TopicMessage)]
    assert (
        data
        == [data for client, data in interleaving.tickets.values() if interleaving.publishers[0] is client][: len(data)]
    )
    assert len(data) >= 12
    interleaving.check()
