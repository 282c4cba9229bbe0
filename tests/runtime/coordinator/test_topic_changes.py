"""Watches of the topic directory: which changes wake them, and the names of their answers."""

from __future__ import annotations

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, TopicName
from tocsin.runtime.coordinator.topic_changes import TopicChanges, revision_of
from tocsin.wire.topic_directory import TopicEntry

ANN, BOB = TopicName("users/ann"), TopicName("users/bob")


def make_core() -> Coordinator:
    return Coordinator(CoordinatorRules(), "e", now_s=100.0)


def entry(epoch: int, moving_to: str | None = None) -> TopicEntry:
    target = None if moving_to is None else BrokerId(moving_to)
    return TopicEntry(ANN, 1, epoch, BrokerId("b1"), "ws://b1", moving_to=target)


def test_change_wakes_the_watches_of_its_topic_alone() -> None:
    changes, core = TopicChanges(), make_core()
    changes.handled(core)
    with (
        changes.watch([ANN], []) as sender,
        changes.watch([], [ANN]) as receiver,
        changes.watch([], ["users/+"]) as pattern,
        changes.watch([BOB], ["cars/#"]) as other,
    ):
        core.registry.topics.note_change(ANN)
        assert changes.is_storing(core, sender)
        assert not changes.is_storing(core, other)
        changes.handled(core)
        assert [watch.changed.is_set() for watch in (sender, receiver, pattern, other)] == [True, True, True, False]
        assert not changes.is_storing(core, sender)


def test_another_core_wakes_every_watch() -> None:
    """Changes that the former core had made and not stored are undone."""
    changes = TopicChanges()
    changes.handled(make_core())
    with changes.watch([ANN], []) as by_name, changes.watch([], ["#"]) as by_pattern:
        changes.handled(make_core())
        assert by_name.changed.is_set()
        assert by_pattern.changed.is_set()


def test_ended_watch_is_forgotten() -> None:
    changes, core = TopicChanges(), make_core()
    changes.handled(core)
    with changes.watch([ANN], ["users/+"]) as ended:
        pass
    core.registry.topics.note_change(ANN)
    changes.handled(core)
    assert not ended.changed.is_set()


def test_revision_names_the_content_that_clients_act_on() -> None:
    assert revision_of([entry(1)]) == revision_of([entry(1)])
    assert revision_of([entry(1)]) != revision_of([entry(2)])
    assert revision_of([entry(1)]) != revision_of([])
    assert revision_of([entry(1)]) == revision_of([entry(1, moving_to="b2")])
