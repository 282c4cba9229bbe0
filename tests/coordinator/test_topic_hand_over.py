"""Direct hand-overs at the coordinator: it decides only from what source and target confirm [decision 18]."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.coordinator.bench import B1, B2, B3
from tests.coordinator.test_topics import RULES, STATE, T, TopicBench, code
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import Effect, SendToBroker
from tocsin.coordinator.events import Event, TopicDeleted, TopicMoveOrdered
from tocsin.coordinator.rules import TopicWorkflow
from tocsin.coordinator.topic_records import TopicMove, TopicMoveStep, TopicRecord
from tocsin.coordinator.topic_views import topic_entry
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import link
from tocsin.wire.errors import Code
from tocsin.wire.topic_link import (
    KeepTopic,
    OpenTopic,
    OwnedTopic,
    OwnTopics,
    PrepareTopic,
    ReleaseTopic,
    StopTopic,
    TopicKept,
    TopicOpened,
    TopicPrepared,
    TopicStopped,
)

DIRECT = replace(RULES, topic_workflow=TopicWorkflow.TOCSIN)


class HandOverBench(TopicBench):
    """A topic at B1 whose hand-over to B2 is ordered and stored."""

    def __init__(self, *others: BrokerId) -> None:
        self.messages: list[tuple[BrokerId, object]] = []
        super().__init__(B1, B2, *others, rules=DIRECT)
        self.record = self.made()
        self.first = self.record.epoch
        self.order(B2)
        assert self.record.move is not None
        self.hand_over: TopicMove = self.record.move
        self.messages.clear()
        self.send(B2, TopicPrepared(T, self.hand_over.epoch))

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        self.messages += [(effect.broker, effect.message) for effect in effects if isinstance(effect, SendToBroker)]
        return effects

    def told(self, broker: BrokerId, kind: type) -> list[object]:
        """Every message of this kind that the broker was sent."""
        return [message for receiver, message in self.messages if receiver == broker and isinstance(message, kind)]

    def stopped(self, *, handed_over: bool = True) -> None:
        self.send(B1, TopicStopped(T, self.first, STATE, handed_over))

    def register_again(self, broker: BrokerId, incarnation: str) -> None:
        self._links[broker] = self._links.get(broker, 0) + 100
        self.send(broker, link.Register(broker, incarnation, f"ws://{broker}", topics=True))

    def restart(self) -> TopicRecord:
        self.core = Coordinator(DIRECT, "e2", memory=self.store.load(), now_s=self.now_s)
        self.registry = self.core.registry
        return self.registry.topics.topics[T]

    def is_moved(self) -> bool:
        """True if the target is the home in the epoch of the move, and the move has ended."""
        record = self.record
        return (record.home, record.epoch, record.move) == (B2, self.hand_over.epoch, None)


def test_hand_over_is_stored_before_the_source_is_ordered() -> None:
    bench = HandOverBench()
    stored = bench.store.load().topic_moves
    assert [(move.target, move.epoch) for move in stored] == [(B2, bench.hand_over.epoch)]
    (order,) = bench.told(B1, StopTopic)
    assert isinstance(order, StopTopic)
    assert (order.target_epoch, order.wait_s) == (bench.hand_over.epoch, 3.0)


@pytest.mark.parametrize("first", ["source", "target"])
def test_reports_of_source_and_target_end_the_move_in_any_order(first: str) -> None:
    bench = HandOverBench()
    if first == "source":
        bench.stopped()
        assert bench.record.home == B2
        assert bench.told(B2, OpenTopic) == [OpenTopic(OwnedTopic(T, bench.hand_over.epoch, STATE))]
    bench.send(B2, TopicOpened(T, bench.hand_over.epoch))
    bench.stopped()
    assert bench.is_moved()
    assert bench.told(B1, ReleaseTopic) == [ReleaseTopic(T, bench.first)]
    assert bench.store.load().topic_moves == ()
    assert [topic.home for topic in bench.store.load().topics] == [B2]


def test_move_that_is_given_up_waits_for_the_source_to_confirm() -> None:
    bench = HandOverBench()
    bench.pass_time(DIRECT.topic_move_s + 1.0)
    assert bench.told(B1, KeepTopic) == [KeepTopic(T, bench.first, bench.hand_over.epoch)]
    assert bench.hand_over.step is TopicMoveStep.CANCELLING
    assert bench.told(B1, OpenTopic) == bench.told(B2, ReleaseTopic) == []
    bench.send(B1, TopicOpened(T, bench.first))
    assert bench.record.move is bench.hand_over, "the report does not answer `KeepTopic`"
    bench.send(B1, TopicKept(T, bench.first, bench.hand_over.epoch))
    assert (bench.record.home, bench.record.epoch) == (B1, bench.first)
    assert not bench.registry.topics.moving
    assert bench.told(B2, ReleaseTopic) == [ReleaseTopic(T, bench.hand_over.epoch)]
    assert bench.store.load().topic_moves == ()


def test_source_that_handed_over_before_the_cancellation_wins() -> None:
    bench = HandOverBench()
    bench.pass_time(DIRECT.topic_move_s + 1.0)
    bench.stopped()
    assert bench.record.home == B2
    bench.send(B2, TopicOpened(T, bench.hand_over.epoch))
    assert bench.is_moved()


def test_target_that_reports_first_wins_over_the_cancellation() -> None:
    bench = HandOverBench()
    bench.pass_time(DIRECT.topic_move_s + 1.0)
    bench.send(B2, TopicOpened(T, bench.hand_over.epoch))
    assert bench.is_moved()


def test_source_without_a_connection_to_the_target_moves_by_the_coordinator() -> None:
    bench = HandOverBench()
    bench.stopped(handed_over=False)
    assert bench.told(B2, OpenTopic) == [OpenTopic(OwnedTopic(T, bench.hand_over.epoch, STATE))]
    bench.send(B2, TopicOpened(T, bench.hand_over.epoch))
    assert bench.is_moved()


def test_dead_source_leaves_the_topic_to_the_target_of_the_move() -> None:
    """A target that has opened the topic keeps its messages: it gets the same epoch without a state."""
    bench = HandOverBench(B3)
    bench.live = [B2, B3]
    bench.cut(B1)
    bench.pass_time(7.0)
    assert bench.is_moved()
    assert bench.told(B2, OpenTopic) == [OpenTopic(OwnedTopic(T, bench.hand_over.epoch))]


def test_third_broker_waits_for_the_leases_of_source_and_target() -> None:
    bench = HandOverBench(B3)
    bench.live = [B3, B2]
    bench.cut(B1)
    bench.pass_time(4.0)
    bench.live = [B3]
    bench.cut(B2)
    bench.pass_time(2.5)
    assert bench.record.home == B2, "the source's lease has ended, the target's has not"
    bench.pass_time(5.0)
    assert bench.record.home == B3
    assert bench.record.epoch > bench.hand_over.epoch


def test_restarted_target_gets_the_topic_only_in_a_new_epoch() -> None:
    """The former run of the target may have opened the topic in the epoch of the move."""
    bench = HandOverBench(B3)
    bench.register_again(B2, "i2")
    assert bench.told(B2, PrepareTopic) == bench.told(B2, OpenTopic) == []
    assert bench.told(B1, KeepTopic) == [KeepTopic(T, bench.first, bench.hand_over.epoch)]
    bench.stopped()
    assert bench.record.holder == (B2, "i1")
    assert bench.told(B2, OpenTopic) == []
    bench.pass_time(8.0)
    assert bench.record.epoch > bench.hand_over.epoch


def test_returning_target_keeps_what_it_may_have_opened() -> None:
    bench = HandOverBench()
    bench.cut(B2)
    bench.register(B2, topics=True)
    (owned,) = bench.told(B2, OwnTopics)
    assert isinstance(owned, OwnTopics)
    assert owned.arriving == [(T, bench.hand_over.epoch)]
    assert bench.told(B2, PrepareTopic) == [PrepareTopic(T, bench.hand_over.epoch)]


def test_restarted_coordinator_continues_a_hand_over() -> None:
    bench = HandOverBench()
    record = bench.restart()
    bench.record = record
    assert [move.may_have_opened for move in bench.registry.topics.moving.values()] == [True]
    bench.register(B2, topics=True)
    bench.send(B2, TopicOpened(T, bench.hand_over.epoch))
    assert bench.is_moved()
    assert bench.store.load().topic_moves == ()


def test_old_report_of_a_preparation_does_not_release_the_home() -> None:
    bench = HandOverBench()
    bench.send(B2, TopicOpened(T, bench.hand_over.epoch))
    bench.send(B2, TopicPrepared(T, bench.hand_over.epoch))
    assert bench.told(B2, ReleaseTopic) == []


def test_recreated_topic_waits_for_source_and_target_of_a_hand_over() -> None:
    bench = HandOverBench()
    bench.live = [B1]
    bench.cut(B2)
    bench.ask(lambda ask: TopicDeleted(ask, T))
    again = bench.made()
    assert again.home is None
    bench.pass_time(7.0)
    assert again.home == B1


@pytest.mark.parametrize(("workflow", "at_once"), [(TopicWorkflow.PULSAR, 1), (TopicWorkflow.EPULSAR, 2)])
def test_further_moves_wait_for_an_executor(workflow: TopicWorkflow, at_once: int) -> None:
    bench = TopicBench(B1, B2, rules=replace(RULES, topic_workflow=workflow, topic_moves=2))
    names = [TopicName(f"t/{number}") for number in range(6)]
    records = [bench.made(name) for name in names]
    ours = [record for record in records if record.home == B1]

    def order(name: TopicName) -> object:
        return bench.ask(lambda ask: TopicMoveOrdered(ask, name, B2))

    assert [order(record.name) for record in ours] == [True, True, True]
    assert [record.move is not None for record in ours] == [index < at_once for index in range(3)]
    assert code(order(ours[2].name)) is Code.IN_USE
    epoch = ours[0].epoch
    assert ours[0].move is not None
    moved = ours[0].move.epoch
    if workflow is not TopicWorkflow.PULSAR:
        bench.send(B2, TopicPrepared(ours[0].name, moved))
    bench.send(B1, TopicStopped(ours[0].name, epoch, STATE))
    bench.send(B2, TopicOpened(ours[0].name, moved))
    assert [record.move is not None for record in ours] == [0 < index <= at_once for index in range(3)]


def test_pulsar_closes_the_topic_without_a_preparation_or_an_address() -> None:
    bench = TopicBench(B1, B2, rules=replace(RULES, topic_workflow=TopicWorkflow.PULSAR))
    record = bench.made()
    bench.order(B2)
    assert bench.sent(B1, StopTopic) == [StopTopic(T, record.epoch, B2, "")]
    assert bench.sent(B2, PrepareTopic) == []


def test_look_up_finds_the_home_when_it_has_opened_the_topic() -> None:
    bench = TopicBench(B1, B2, rules=replace(RULES, topic_workflow=TopicWorkflow.PULSAR))
    record = bench.made()
    bench.order(B2)
    bench.send(B1, TopicStopped(T, record.epoch, STATE))
    assert record.home == B2
    assert topic_entry(bench.core.registry, record).address is None
    bench.core.registry.topics.unannounced.clear()
    bench.send(B2, TopicOpened(T, record.epoch))
    assert topic_entry(bench.core.registry, record).address is not None
    assert T in bench.core.registry.topics.unannounced
