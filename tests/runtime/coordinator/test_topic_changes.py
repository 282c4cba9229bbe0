"""Revisions of the topic directory."""

from __future__ import annotations

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.runtime.coordinator.topic_changes import TopicChanges


def make_core() -> Coordinator:
    return Coordinator(CoordinatorRules(), "e", now_s=100.0)


def test_revision_stays_the_same_until_a_topic_changes() -> None:
    changes, core = TopicChanges(), make_core()
    changes.handled(core)
    first = changes.revision
    changes.handled(core)
    assert changes.revision == first
    core.registry.topics.revision += 1
    changes.handled(core)
    assert changes.revision != first


def test_no_revision_is_the_same_after_a_restart() -> None:
    """A client that asks the new process with the old revision would otherwise wait for a change that has happened."""
    before, after, core = TopicChanges(), TopicChanges(), make_core()
    before.handled(core)
    after.handled(make_core())
    assert before.revision != after.revision
    former = before.revision
    before.handled(make_core())
    assert before.revision != former
