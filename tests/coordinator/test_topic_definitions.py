"""Topics that are recorded into datasets, and CREATE OR REPLACE TOPIC, at the coordinator."""

from __future__ import annotations

from tests.coordinator.bench import B1, B2, B3
from tests.coordinator.test_topics import RULES, T, TopicBench, code
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.events import TopicCreated
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.topic_views import topic_entry
from tocsin.model.ids import DatasetName
from tocsin.model.topic import TopicDefinition
from tocsin.model.topic_persistence import Persistence
from tocsin.wire.errors import Code
from tocsin.wire.topic_link import OpenTopic, RecordPlan

READINGS = DatasetName("Readings")


def define(
    bench: TopicBench, definition: TopicDefinition, recording: str = "r1", *, replace: bool = False
) -> TopicRecord:
    record = asked(bench, definition, recording, replace=replace)
    assert isinstance(record, TopicRecord), record
    return record


def asked(bench: TopicBench, definition: TopicDefinition, recording: str = "r", *, replace: bool = True) -> object:
    return bench.ask(lambda ask: TopicCreated(ask, definition, recording=recording, replace=replace))


def test_home_learns_the_dataset_and_the_list_shows_it() -> None:
    bench = TopicBench(B1)
    record = define(bench, TopicDefinition(T, record_into=READINGS))
    (opened,) = bench.sent(B1, OpenTopic)
    assert opened.topic.record == RecordPlan(READINGS, "r1", record.created)
    assert topic_entry(bench.core.registry, record).record_into == READINGS


def test_recording_survives_a_restart_of_the_coordinator() -> None:
    bench = TopicBench(B1)
    define(bench, TopicDefinition(T, record_into=READINGS))
    again = Coordinator(RULES, "e2", memory=bench.store.load(), now_s=bench.now_s)
    assert again.registry.topics.topics[T].record == RecordPlan(READINGS, "r1")


def test_replace_changes_the_topic_in_place_and_tells_the_home() -> None:
    bench = TopicBench(B1)
    first = define(bench, TopicDefinition(T, 0.04, record_into=READINGS))
    created, epoch = first.created, first.epoch
    changed = define(bench, TopicDefinition(T, 0.05, record_into=DatasetName("Others")), "r2", replace=True)
    assert (changed.created, changed.epoch, changed.within_s) == (created, epoch, 0.05)
    assert bench.sent(B1, OpenTopic)[-1].topic.record == RecordPlan(DatasetName("Others"), "r2", created)
    kept = define(bench, TopicDefinition(T, 0.06, record_into=DatasetName("Others")), "r3", replace=True)
    assert kept.record == RecordPlan(DatasetName("Others"), "r2"), "the same dataset goes on with its recording"
    assert define(bench, TopicDefinition(T), replace=True).record is None


def test_delay_and_protected_rate_change_in_place_and_survive_a_restart() -> None:
    bench = TopicBench(B1)
    define(bench, TopicDefinition(T, delay_s=1.0))
    record = define(bench, TopicDefinition(T, delay_s=2.0, protected_per_s=5.0), replace=True)
    entry = topic_entry(bench.core.registry, record)
    assert (entry.delay_s, entry.protected_per_s) == (2.0, 5.0)
    again = Coordinator(RULES, "e2", memory=bench.store.load(), now_s=bench.now_s).registry.topics.topics[T]
    assert (again.delay_s, again.protected_per_s) == (2.0, 5.0)


def test_replace_creates_a_topic_that_does_not_exist() -> None:
    assert define(TopicBench(B1), TopicDefinition(T), replace=True).home == B1


def test_replicas_do_not_change_in_place_but_the_retention_does() -> None:
    bench = TopicBench(B1, B2, B3)
    define(bench, TopicDefinition(T, None, Persistence(2, 2)))
    for definition in (TopicDefinition(T), TopicDefinition(T, None, Persistence(3, 2))):
        assert code(asked(bench, definition)) is Code.BAD_REQUEST
    changed = define(bench, TopicDefinition(T, None, Persistence(2, 2, 5 << 20, 60.0)), replace=True)
    assert changed.log is not None
    assert changed.log.persistence == Persistence(2, 2, 5 << 20, 60.0)
