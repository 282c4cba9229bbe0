"""Names, patterns and statements of topics, and the scopes that name them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.model.ids import TopicName
from tocsin.model.permission import RECEIVE, SEND, permits_topic, topic_scopes
from tocsin.model.topic import (
    TopicDefinition,
    matches,
    parse_bound_s,
    parse_create_topic,
    pattern_problem,
    publisher_id,
    topic_problem,
)
from tocsin.model.topic_persistence import Persistence

LEVEL = st.text("ab1._-", min_size=1, max_size=3)
NAME = st.lists(LEVEL, min_size=1, max_size=5).map("/".join)


@pytest.mark.parametrize("name", ["a", "swarm/3/leader", "A.b-c_d~e", "/".join("x" * 16), "a" * 200])
def test_valid_names_are_accepted(name: str) -> None:
    assert topic_problem(name) is None
    assert pattern_problem(name) is None


@pytest.mark.parametrize(
    "name", ["", "/", "a//b", "/a", "a/", "a/+", "#", "a b", "é", "$sys", "a/\n", "/".join("x" * 17), "a" * 201]
)
def test_invalid_names_are_refused_with_a_reason(name: str) -> None:
    assert topic_problem(name)


@pytest.mark.parametrize("pattern", ["#/a", "a/#/b", "a+", "a/b#", "", "+a/b"])
def test_misplaced_wildcards_are_refused(pattern: str) -> None:
    assert pattern_problem(pattern)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("a/+", "a", False),
        ("+/b", "a/b", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab/c", False),
        ("#", "a/b", True),
        ("+/+/#", "a", False),
        ("a/b", "a/b", True),
        ("a/b", "A/b", False),
    ],
)
def test_pattern_matches_whole_levels(pattern: str, name: str, expected: bool) -> None:
    assert pattern_problem(pattern) is None
    assert matches(pattern, name) is expected


@given(NAME, st.data())
def test_name_with_some_levels_replaced_by_plus_still_matches(name: str, data: st.DataObject) -> None:
    levels = ["+" if data.draw(st.booleans()) else level for level in name.split("/")]
    assert matches("/".join(levels), name)
    assert matches("/".join([*levels, "#"]), name)
    assert not matches("/".join([*levels, "+"]), name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE TOPIC swarm/3/leader WITHIN 40 MS;", TopicDefinition(TopicName("swarm/3/leader"), 0.04)),
        (" create topic a\n within 2 seconds ", TopicDefinition(TopicName("a"), 2.0)),
        ("CREATE TOPIC a;", TopicDefinition(TopicName("a"))),
        ("CREATE TOPIC a WITHIN 1.5S", TopicDefinition(TopicName("a"), 1.5)),
        ("CREATE TOPIC a PERSISTENT;", TopicDefinition(TopicName("a"), None, Persistence())),
        ("CREATE TOPIC a WITHIN 1 S PERSISTENT", TopicDefinition(TopicName("a"), 1.0, Persistence())),
        ("CREATE TOPIC a DELAY 1 S", TopicDefinition(TopicName("a"), delay_s=1.0)),
        ("CREATE TOPIC a PROTECTED 5 PER SECOND", TopicDefinition(TopicName("a"), protected_per_s=5.0)),
        (
            "CREATE TOPIC a WITHIN 40 MS DELAY 1 S PROTECTED 30 PER MINUTE PERSISTENT;",
            TopicDefinition(TopicName("a"), 0.04, Persistence(), delay_s=1.0, protected_per_s=0.5),
        ),
        (
            "create topic a persistent replicas 5 retain 2 gb;",
            TopicDefinition(TopicName("a"), None, Persistence(5, 3, 2 << 30)),
        ),
        (
            "CREATE TOPIC a PERSISTENT REPLICAS 2 QUORUM 1 RETAIN 5 MB, 7 DAYS;",
            TopicDefinition(TopicName("a"), None, Persistence(2, 1, 5 << 20, 7 * 86_400.0)),
        ),
    ],
)
def test_statement_declares_a_topic(text: str, expected: TopicDefinition) -> None:
    assert parse_create_topic(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("CREATE TOPIC", "CREATE TOPIC a/+", "CREATE TOPIC a WITHIN soon;", "DROP a", "CREATE TOPIC a PERSISTENTLY;"),
        *("CREATE TOPIC a DELAY soon;", "CREATE TOPIC a PROTECTED 5;", "CREATE TOPIC a PROTECTED 0 PER SECOND;"),
        *("CREATE TOPIC a PERSISTENT REPLICAS 0", "CREATE TOPIC a PERSISTENT REPLICAS 2 QUORUM 3"),
        *("CREATE TOPIC a PERSISTENT REPLICAS 9", "CREATE TOPIC a PERSISTENT RETAIN 7", "CREATE TOPIC a PERSISTENT 3"),
        "CREATE TOPIC a PERSISTENT RETAIN 10 KB",
    ],
)
def test_other_statements_are_refused_with_a_reason(text: str) -> None:
    assert isinstance(parse_create_topic(text), str)


def test_bound_of_zero_or_over_an_hour_is_refused() -> None:
    assert (parse_bound_s("0 MS"), parse_bound_s("61 MINUTES"), parse_bound_s("60 MINUTES")) == (None, None, 3600.0)


def test_scope_permits_topics_of_its_action_only() -> None:
    scopes = ["send:swarm/3/#", "receive:swarm/+/leader", "publish:swarm", "subscribe", "send:"]
    assert permits_topic(scopes, SEND, "swarm/3/leader")
    assert not permits_topic(scopes, SEND, "swarm/4/leader")
    assert permits_topic(scopes, RECEIVE, "swarm/4/leader")
    assert not permits_topic(scopes, RECEIVE, "swarm/4/wing")
    assert not permits_topic(["publish:*", "subscribe", "admin"], SEND, "a")
    assert topic_scopes(scopes) == {"send:swarm/3/#", "receive:swarm/+/leader"}


def test_publisher_id_depends_on_user_and_run_and_is_exact_in_json() -> None:
    ids = {publisher_id(user, run) for user in ("ann", "bob") for run in range(100)}
    assert len(ids) == 200
    assert all(0 <= number < 2**53 for number in ids)
