"""Trace rows about topics."""

from __future__ import annotations

from tests.coordinator.bench import B1, B2
from tests.coordinator.test_topics import T, TopicBench
from tocsin.coordinator.effects import RecordTrace
from tocsin.coordinator.events import TopicDeleted
from tocsin.coordinator.topic_watching import changed_topics, topic_picture
from tocsin.model.trace import Kind


def test_watchers_get_rows_about_changed_topics_and_the_reasons_of_moves() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    [row] = changed_topics(bench.core, 5.0)
    assert (row.kind, row.broker, (row.detail or {})["topic"]) == (Kind.TOPIC, record.home, T)
    assert changed_topics(bench.core, 6.0) == []
    assert [row.detail for row in topic_picture(bench.core, 6.0)] == [row.detail]
    target = B2 if record.home == B1 else B1
    bench.order(target)
    [move] = [effect.row for effect in bench.effects if isinstance(effect, RecordTrace)]
    assert (move.kind, move.broker, move.target, move.detail) == (Kind.TOPIC_MOVE, record.home, target, {"topic": T})
    [row] = changed_topics(bench.core, 7.0)
    assert row.detail is not None and row.detail["moving_to"] == target
    bench.ask(lambda ask: TopicDeleted(ask, T))
    assert [row.detail for row in changed_topics(bench.core, 8.0)] == [{"topic": T, "state": "gone"}]
