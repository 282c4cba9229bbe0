"""The plan for the topics of an application file, against the topics that the coordinator lists."""

from __future__ import annotations

from typing import Any

from tocsin.cli.topic_statements import TopicPlan, plan_topics, topic_statements
from tocsin.cluster.sql.declarations import parse_application

VOLATILE: dict[str, Any] = {
    "topic": "a", "within_s": 0.04, "persistent": False, "quorum": None, "replicas": [], "retain_bytes": None,
    "retain_s": None, "record_into": "Readings", "delay_s": None, "protected_per_s": None,
}  # fmt: skip
KEPT: dict[str, Any] = VOLATILE | {
    "topic": "b", "within_s": None, "persistent": True, "quorum": 2, "replicas": ["b1", "b2", "b3"],
    "retain_bytes": 1 << 30, "record_into": None, "delay_s": 1.0,
}  # fmt: skip


def planned(text: str) -> TopicPlan:
    application = parse_application(text, "f.sql")
    assert application.problems == ()
    return plan_topics(topic_statements(application), [VOLATILE, KEPT], "f.sql")


def actions(plan: TopicPlan) -> list[tuple[str, str]]:
    assert plan.problems == []
    return [(topic.name, str(topic.action)) for topic in (*plan.first, *plan.last)]


def test_applying_a_file_again_changes_nothing() -> None:
    plan = planned("CREATE TOPIC a WITHIN 40 MS RECORD INTO readings; CREATE TOPIC b DELAY 1 S PERSISTENT REPLICAS 3;")
    assert actions(plan) == [("a", "unchanged"), ("b", "unchanged")]
    assert [topic.request() for topic in plan.last] == [None, None]


def test_other_definition_is_a_problem_with_its_line_and_the_advice() -> None:
    (problem,) = planned("\nCREATE TOPIC a WITHIN 50 MS;").problems
    assert str(problem) == (
        "f.sql:2:1: topic 'a' exists already with another definition (bounds, datasets differ): "
        "DROP TOPIC a first, or say CREATE OR REPLACE"
    )


def test_replace_changes_bound_and_dataset_in_place() -> None:
    plan = planned("CREATE OR REPLACE TOPIC a WITHIN 50 MS RECORD INTO Others;")
    assert actions(plan) == [("a", "changed")]
    request = plan.last[0].request()
    assert request is not None and request[2] is not None
    assert (request[0], request[2]["replace"], request[2]["record_into"]) == ("POST", True, "Others")


def test_replace_changes_delay_and_protected_rate_in_place() -> None:
    (planned_topic,) = planned(
        "CREATE OR REPLACE TOPIC b DELAY 2 S PROTECTED 5 PER SECOND PERSISTENT REPLICAS 3 RETAIN 1 GB;"
    ).last
    request = planned_topic.request()
    assert request is not None and request[2] is not None
    assert (request[2]["delay_s"], request[2]["protected_per_s"]) == (2.0, 5.0)


def test_replace_does_not_change_the_replicas() -> None:
    (problem,) = planned("CREATE OR REPLACE TOPIC b DELAY 1 S PERSISTENT REPLICAS 2;").problems
    assert problem.message.endswith("(replicas and quorums differ): DROP TOPIC b first")
    assert actions(planned("CREATE TOPIC IF NOT EXISTS b;")) == [("b", "unchanged")]


def test_drops_come_first_and_creations_last() -> None:
    plan = planned("CREATE TOPIC c; DROP TOPIC a; DROP TOPIC b; CREATE TOPIC b; DROP TOPIC c;")
    assert [(topic.name, str(topic.action)) for topic in plan.first] == [("a", "dropped"), ("b", "dropped")]
    assert [(topic.name, str(topic.action)) for topic in plan.last] == [
        ("c", "created"), ("b", "created"), ("c", "dropped"),
    ]  # fmt: skip
    assert plan.first[0].request() == ("DELETE", "/v1/topics/a", None)


def test_drop_of_an_unknown_topic_is_a_problem_unless_it_says_so() -> None:
    (problem,) = planned("DROP TOPIC aa;").problems
    assert problem.message == "topic 'aa' does not exist; did you mean a?"
    assert actions(planned("DROP TOPIC IF EXISTS z;")) == [("z", "unchanged")]
