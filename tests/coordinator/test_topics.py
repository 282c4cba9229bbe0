"""Topics at the coordinator: creation, leases, failover, moves, deletion and restarts."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from tests.coordinator.bench import B1, B2, B3, Bench
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import CheckStore, Effect, RequestRejection
from tocsin.coordinator.events import Event, TopicCreated, TopicDeleted, TopicMoveOrdered, TopicsUsed
from tocsin.coordinator.rules import CoordinatorRules, TopicWorkflow
from tocsin.coordinator.storage import InMemoryStore
from tocsin.coordinator.topic_homes import LEASE_MARGIN
from tocsin.coordinator.topic_records import TopicMoveStep, TopicRecord
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.snapshot import Place
from tocsin.model.topic import TopicDefinition
from tocsin.wire import link
from tocsin.wire.errors import Code
from tocsin.wire.topic_link import (
    LeaseRenewed,
    OpenTopic,
    OwnedTopic,
    OwnTopics,
    PrepareTopic,
    ReleaseTopic,
    RenewLease,
    ReturnLease,
    StopTopic,
    TopicOpened,
    TopicPrepared,
    TopicRefused,
    TopicState,
    TopicStopped,
)

T = TopicName("swarm/3/leader")
RULES = CoordinatorRules(topic_prefixes="swarm/,game/", topic_workflow=TopicWorkflow.EPULSAR)
STATE = TopicState(9, 1, [(5, 3)])


class TopicBench(Bench):
    """`live` brokers renew their leases whenever time passes."""

    def __init__(self, *brokers: BrokerId, rules: CoordinatorRules = RULES) -> None:
        super().__init__(rules)
        self.store = InMemoryStore()
        self.live = list(brokers)
        self._renewals = count(1)
        for broker in brokers:
            self.register(broker, topics=True)
            self.renew(broker)

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        self.store.commit(effects)
        return effects

    def renew(self, broker: BrokerId) -> None:
        self.send(broker, RenewLease(next(self._renewals)))

    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            for broker in self.live:
                self.renew(broker)
            self.wait(0.5, *self.live)

    def create(self, name: TopicName = T, place: Place | None = None) -> object:
        return self.ask(lambda ask: TopicCreated(ask, TopicDefinition(name, 0.04), place))

    def made(self, name: TopicName = T) -> TopicRecord:
        record = self.create(name)
        assert isinstance(record, TopicRecord), record
        return record

    def order(self, target: BrokerId) -> object:
        return self.ask(lambda ask: TopicMoveOrdered(ask, T, target))


def code(answer: object) -> Code:
    assert isinstance(answer, RequestRejection), answer
    return answer.code


def test_created_topic_opens_at_the_least_loaded_broker() -> None:
    bench = TopicBench(B1, B2)
    homes = [bench.made(TopicName(f"t/{number}")).home for number in range(4)]
    assert homes == [B1, B2, B1, B2]
    record = bench.registry.topics.topics[TopicName("t/3")]
    assert bench.sent(B2, OpenTopic) == [OpenTopic(OwnedTopic(record.name, record.created))]


def test_created_topic_opens_near_the_place_of_its_creator() -> None:
    bench = TopicBench()
    for broker, lat in ((B1, 10.0), (B2, 50.0)):
        bench.register(broker, topics=True, lat=lat, lon=0.0)
        bench.renew(broker)
    record = bench.create(place=Place(48.0, 1.0))
    assert isinstance(record, TopicRecord)
    assert record.home == B2


def test_bad_names_repeats_and_too_many_topics_are_refused() -> None:
    bench = TopicBench(B1, rules=replace(RULES, topics=1))
    assert code(bench.create(TopicName("a/+"))) is Code.BAD_REQUEST
    bench.made()
    assert code(bench.create()) is Code.EXISTS
    assert code(bench.create(TopicName("b"))) is Code.TOO_MANY


def test_first_use_creates_topics_under_a_prefix_only() -> None:
    bench = TopicBench(B1)
    names = (TopicName("game/7"), TopicName("other"), TopicName("game/#"))
    refused = bench.ask(lambda ask: TopicsUsed(ask, names))
    assert isinstance(refused, dict)
    assert {name: rejection.code for name, rejection in refused.items()} == {
        "other": Code.UNKNOWN_TOPIC,
        "game/#": Code.BAD_REQUEST,
    }
    assert list(bench.registry.topics.topics) == ["game/7"]


def test_broker_without_topics_or_lease_gets_no_topic() -> None:
    bench = TopicBench()
    bench.register(B1)
    bench.register(B2, topics=True)
    assert bench.sent(B2, OwnTopics) == [OwnTopics([])]
    assert bench.made().home is None
    bench.renew(B2)
    bench.live.append(B2)
    bench.pass_time(3.0)
    assert bench.registry.topics.topics[T].home == B2


def test_renewal_is_granted_behind_a_check_of_the_store() -> None:
    bench = TopicBench(B1)
    bench.made()
    effects = bench.send(B1, RenewLease(77))
    kinds = [type(effect) for effect in effects]
    assert kinds.index(CheckStore) < len(kinds) - 1
    assert bench.sent(B1, LeaseRenewed) == [LeaseRenewed(77, RULES.topic_lease_s)]


def test_failover_waits_for_the_end_of_the_lease() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    first = record.epoch
    bench.renew(B1)
    ends_s = bench.now_s + LEASE_MARGIN * RULES.topic_lease_s
    bench.live = [B2]
    bench.cut(B1)
    while record.home == B1:
        bench.pass_time(0.5)
    assert ends_s <= bench.now_s < ends_s + 1.0
    assert (record.home, record.state) == (B2, None)
    assert record.epoch > first


def test_stopping_home_is_replaced_at_once() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    bench.send(B1, ReturnLease())
    assert record.home == B2
    assert len(bench.sent(B2, OpenTopic)) == 1


def test_frozen_home_with_an_open_link_is_replaced_too() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    bench.live = [B2]
    bench.pass_time(6.5)
    assert record.home == B2
    assert bench.broker(B1).linked


def test_restarted_home_gets_its_topic_back_only_in_a_new_epoch() -> None:
    bench = TopicBench(B1)
    record = bench.made()
    first = record.epoch
    bench._links[B1] = 99
    bench.send(B1, link.Register(B1, "i2", "ws://b1", topics=True))
    assert bench.sent(B1, OwnTopics) == [OwnTopics([])]
    bench.pass_time(4.0)
    assert record.epoch == first
    bench.pass_time(3.0)
    assert record.holder == (B1, "i2")
    assert record.epoch > first


def test_coordinator_that_was_away_itself_waits_for_renewals() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    bench.pass_time(1.0)
    bench.now_s += 20.0
    bench.wait(0.5)
    assert record.home == B1
    bench.pass_time(5.0)
    assert record.home == B1


def test_registering_broker_gets_the_complete_list_of_its_topics() -> None:
    bench = TopicBench(B1)
    record = bench.made()
    bench.cut(B1)
    bench.register(B1, topics=True)
    assert bench.sent(B1, OwnTopics) == [OwnTopics([OwnedTopic(T, record.epoch)])]


def test_move_prepares_stops_opens_and_releases_in_this_order() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    first = record.epoch
    assert bench.order(B2) is True
    move = record.move
    assert move is not None
    assert bench.sent(B2, PrepareTopic) == [PrepareTopic(T, move.epoch)]
    bench.send(B2, TopicPrepared(T, move.epoch))
    assert bench.sent(B1, StopTopic) == [StopTopic(T, first, B2, "ws://b2")]
    assert record.home == B1
    bench.send(B1, TopicStopped(T, first, STATE))
    assert record.home == B2
    assert bench.sent(B2, OpenTopic) == [OpenTopic(OwnedTopic(T, move.epoch, STATE))]
    bench.send(B2, TopicOpened(T, move.epoch))
    assert bench.sent(B1, ReleaseTopic) == [ReleaseTopic(T, first)]
    assert (record.move, record.state, record.epoch) == (None, None, move.epoch)


def test_impossible_moves_are_refused() -> None:
    bench = TopicBench(B1, B2)
    assert code(bench.order(B2)) is Code.UNKNOWN_TOPIC
    bench.made()
    assert bench.order(B1) is False
    assert code(bench.order(B3)) is Code.NOT_FOUND
    bench.order(B2)
    assert code(bench.order(B2)) is Code.IN_USE


def test_source_opens_again_when_the_target_dies_after_the_stop() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    bench.order(B2)
    assert record.move is not None
    bench.send(B2, TopicPrepared(T, record.move.epoch))
    bench.cut(B2)
    bench.send(B1, TopicStopped(T, record.epoch, STATE))
    record = bench.registry.topics.topics[T]
    assert (record.home, record.move) == (B1, None)
    assert bench.sent(B1, OpenTopic) == [OpenTopic(OwnedTopic(T, record.epoch))]


def test_move_that_takes_too_long_leaves_the_topic_at_the_source() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    bench.order(B2)
    bench.pass_time(RULES.topic_move_s + 1.0)
    assert (record.home, record.move) == (B1, None)


def test_target_takes_over_when_the_source_dies_before_it_stopped() -> None:
    bench = TopicBench(B1, B2, B3)
    record = bench.made()
    bench.order(B3)
    assert record.move is not None
    bench.send(B3, TopicPrepared(T, record.move.epoch))
    bench.live = [B2, B3]
    bench.cut(B1)
    bench.pass_time(7.0)
    record = bench.registry.topics.topics[T]
    assert (record.home, record.state, record.move) == (B3, None, None)


def test_lost_messages_of_a_move_are_repeated_when_a_broker_registers() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    first = record.epoch
    bench.order(B2)
    move = record.move
    assert move is not None
    bench.register(B2, topics=True)
    assert bench.sent(B2, PrepareTopic) == [PrepareTopic(T, move.epoch)]
    bench.send(B2, TopicPrepared(T, move.epoch))
    bench.register(B1, topics=True)
    assert bench.sent(B1, StopTopic) == [StopTopic(T, first, B2, "ws://b2")]
    bench.send(B1, TopicStopped(T, first, STATE))
    assert move.step is TopicMoveStep.OPENING
    bench.register(B2, topics=True)
    assert bench.sent(B2, OwnTopics) == [OwnTopics([OwnedTopic(T, move.epoch, STATE)])]


def test_draining_broker_loses_its_topics_by_moves() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    bench.drain(B1)
    bench.pass_time(3.0)
    assert record.move is not None
    assert record.move.target == B2


def test_broker_that_refuses_a_topic_is_avoided() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    bench.send(B1, TopicRefused(T, record.epoch, "full"))
    assert record.home == B2
    bench.send(B2, TopicRefused(T, record.epoch, "full"))
    assert record.home == B1


def test_deleted_topic_is_released_and_forgotten() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    assert bench.ask(lambda ask: TopicDeleted(ask, T)) is True
    assert bench.sent(B1, ReleaseTopic) == [ReleaseTopic(T, record.epoch, deleted=True)]
    assert code(bench.ask(lambda ask: TopicDeleted(ask, T))) is Code.UNKNOWN_TOPIC


def test_recreated_topic_waits_for_a_former_home_that_is_away() -> None:
    bench = TopicBench(B1, B2)
    bench.made()
    bench.live = [B2]
    bench.cut(B1)
    bench.ask(lambda ask: TopicDeleted(ask, T))
    again = bench.made()
    assert again.home is None
    bench.pass_time(4.0)
    assert again.home is None
    bench.pass_time(2.0)
    assert again.home == B2


def test_recreated_topic_opens_at_once_at_its_linked_former_home() -> None:
    bench = TopicBench(B1, B2)
    first = bench.made().epoch
    bench.made(TopicName("filler"))
    bench.ask(lambda ask: TopicDeleted(ask, T))
    again = bench.made()
    assert again.home == B1
    assert again.epoch > first


def test_restart_with_a_shorter_lease_waits_for_the_longer_ones() -> None:
    bench = TopicBench(B1, B2, rules=replace(RULES, topic_lease_s=20.0))
    bench.made()
    bench.renew(B1)
    bench.core = Coordinator(RULES, "e2", memory=bench.store.load(), now_s=bench.now_s)
    bench.registry = bench.core.registry
    restored = bench.registry.topics.topics[T]
    bench.register(B2, topics=True)
    bench.live = [B2]
    bench.pass_time(20.0)
    assert restored.home == B1
    bench.pass_time(3.0)
    assert restored.home == B2
    assert bench.registry.topics.stored_lease_s == RULES.topic_lease_s


def test_restarted_coordinator_waits_for_every_lease_and_reuses_no_epoch() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    bench.core = Coordinator(RULES, "e2", memory=bench.store.load(), now_s=bench.now_s)
    bench.registry = bench.core.registry
    restored = bench.registry.topics.topics[T]
    assert (restored.holder, restored.epoch, restored.within_s) == (record.holder, record.epoch, 0.04)
    bench.register(B2, topics=True)
    bench.renew(B2)
    bench.live = [B2]
    bench.pass_time(5.0)
    assert restored.home == B1
    bench.pass_time(2.0)
    assert restored.home == B2
    assert restored.epoch > record.epoch
