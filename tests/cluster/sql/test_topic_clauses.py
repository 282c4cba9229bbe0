"""CREATE TOPIC and DROP TOPIC in application files: what they mean, and where their problems are."""

from __future__ import annotations

import pytest

from tocsin.cluster.sql.declarations import Application, CreateTopic, DropTopic, parse_application
from tocsin.cluster.sql.planning import Action, Definitions, plan
from tocsin.cluster.sql.problems import Position
from tocsin.model.ids import DatasetName, TopicName
from tocsin.model.topic import TopicDefinition
from tocsin.model.topic_persistence import Persistence

READINGS = "CREATE STREAM DATASET Readings (room STRING, degrees DOUBLE);\n"


def topic(text: str) -> CreateTopic:
    application = parse_application(text)
    assert application.problems == ()
    (statement,) = application.statements
    assert isinstance(statement, CreateTopic)
    return statement


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE TOPIC swarm/3/leader", TopicDefinition(TopicName("swarm/3/leader"))),
        ("create topic swarm/3/leader within 40 ms;", TopicDefinition(TopicName("swarm/3/leader"), 0.04)),
        ("CREATE TOPIC 3/1e5/2L WITHIN PT0.5S;", TopicDefinition(TopicName("3/1e5/2L"), 0.5)),
        ("CREATE TOPIC a.b-c/~24x WITHIN 2 SECONDS -- comment\n;", TopicDefinition(TopicName("a.b-c/~24x"), 2.0)),
        ("CREATE TOPIC 'a--b';", TopicDefinition(TopicName("a--b"))),
        ("CREATE TOPIC `within`;", TopicDefinition(TopicName("within"))),
        (
            "CREATE TOPIC t RECORD INTO Readings",
            TopicDefinition(TopicName("t"), None, None, DatasetName("Readings")),
        ),
        (
            "CREATE TOPIC t WITHIN 1 S PERSISTENT REPLICAS 3 QUORUM 2 RETAIN 10 GB, 7 DAYS RECORD INTO Readings;",
            TopicDefinition(TopicName("t"), 1.0, Persistence(3, 2, 10 << 30, 604_800.0), DatasetName("Readings")),
        ),
        ("CREATE TOPIC t PERSISTENT;", TopicDefinition(TopicName("t"), None, Persistence())),
        ("CREATE TOPIC t DELAY 1 S;", TopicDefinition(TopicName("t"), delay_s=1.0)),
        (
            "CREATE TOPIC t WITHIN 40 MS DELAY 2 SECONDS PROTECTED 30 PER MINUTE PERSISTENT RECORD INTO Readings;",
            TopicDefinition(TopicName("t"), 0.04, Persistence(), DatasetName("Readings"), 2.0, 0.5),
        ),
    ],
)
def test_statement_declares_the_topic(text: str, expected: TopicDefinition) -> None:
    assert topic(text).topic == expected


def test_statement_says_whether_the_topic_may_exist() -> None:
    assert topic("CREATE OR REPLACE TOPIC t;").replace
    assert topic("CREATE TOPIC IF NOT EXISTS t;").if_not_exists
    application = parse_application("DROP TOPIC a/b; DROP TOPIC IF EXISTS c;")
    assert application.statements == (
        DropTopic(TopicName("a/b"), Position(1, 1)),
        DropTopic(TopicName("c"), Position(1, 17), True),
    )


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("CREATE TOPIC a//b;", 14, "a level of a topic"),
        ("CREATE TOPIC a/+;", 14, "a level of a topic"),
        ("CREATE TOPIC a--b;", 14, "in quotes"),
        ("CREATE TOPIC ;", 14, "expected IF or the name of a topic"),
        ("CREATE TOPIC a WITHIN soon;", 23, "WITHIN soon: expected a duration"),
        ("CREATE TOPIC a DELAY soon;", 22, "DELAY soon: expected a duration"),
        ("CREATE TOPIC a PROTECTED always;", 26, "PROTECTED always: expected a rate such as 5 PER SECOND"),
        ("CREATE TOPIC a PERSISTENT QUORUM 2;", 27, "expected PERSISTENT"),
        ("CREATE TOPIC a PERSISTENT REPLICAS 2 QUORUM 3;", 27, "expected 1 to 2"),
        ("CREATE TOPIC a RECORD Readings;", 23, "expected INTO"),
        ("CREATE TOPIC a RECORD INTO;", 27, "the name of a dataset"),
        ("CREATE TOPIC a AS SELECT 1;", 16, "expected WITHIN, DELAY, PROTECTED, PERSISTENT, RECORD or ';'"),
    ],
)
def test_problem_names_its_column(text: str, column: int, message: str) -> None:
    problem = parse_application(text).problems[0]
    assert (problem.line, problem.column) == (1, column)
    assert message in problem.message


def test_topic_is_declared_once_and_its_name_keeps_its_case() -> None:
    assert parse_application("CREATE TOPIC a; CREATE TOPIC A; DROP TOPIC a; CREATE TOPIC a;").problems == ()
    (problem,) = parse_application("CREATE TOPIC a;\nCREATE TOPIC a;").problems
    assert (problem.line, problem.code) == (2, "duplicate-name")


def test_missing_semicolon_before_a_topic_is_named() -> None:
    problems = parse_application("DROP TOPIC a\nCREATE TOPIC b;\nCREATE TOPIC c").problems
    assert [(problem.line, "';'" in problem.message) for problem in problems] == [(2, True)]


def planned(text: str) -> tuple[list[Action], list[str]]:
    application: Application = parse_application(text, "f.sql")
    statements, problems = plan(application, Definitions({}, {}, {}, {}), "f.sql")
    return [statement.action for statement in statements], [str(problem) for problem in problems]


def test_data_cluster_leaves_topics_to_the_coordinator() -> None:
    text = READINGS + "CREATE TOPIC t RECORD INTO readings; DROP TOPIC u;"
    assert planned(text) == ([Action.CREATED, Action.LEFT, Action.LEFT], [])


def test_dataset_of_a_recording_must_exist_and_take_records() -> None:
    _, (unknown,) = planned(READINGS + "CREATE TOPIC t RECORD INTO Reading;")
    assert unknown == "f.sql:2:28: dataset 'Reading' does not exist; did you mean Readings?"
    _, (static,) = planned("CREATE STATIC DATASET S FROM 's.csv';\nCREATE TOPIC t RECORD INTO S;")
    assert static.startswith("f.sql:2:28: 'S' is STATIC")
