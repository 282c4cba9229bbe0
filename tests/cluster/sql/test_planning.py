"""What each statement of a file would do to a cluster that holds certain things."""

from __future__ import annotations

import pytest

from tocsin.cluster.sql.declarations import parse_application
from tocsin.cluster.sql.planning import World, plan
from tocsin.cluster.sql.statements import CreateChannel, CreateDataset, CreateFeed

BASE = """
CREATE STREAM DATASET D (a INT, b STRING) KEY (a) RETAIN 1 DAY;
CREATE STATIC DATASET S FROM 's.csv';
CREATE REPETITIVE CHANNEL C (b STRING) EVERY 10 SECONDS AS SELECT d.a FROM NEW D d WHERE d.b = :b;
CREATE FEED F INTO D FROM rate OPTIONS (rowsPerSecond '1');
"""


def world() -> World:
    """As if BASE had been applied."""
    held = World({}, {}, {}, {})
    for statement in parse_application(BASE).statements:
        match statement:
            case CreateDataset(dataset):
                held.datasets[dataset.name.lower()] = dataset
            case CreateChannel(channel, _, query):
                held.channels[channel.name.lower()] = channel
                held.reads[channel.name.lower()] = frozenset(
                    name.lower() for name in query.datasets | query.new_datasets
                )
            case CreateFeed(feed):
                held.feeds[feed.name.lower()] = feed
    return held


def actions(text: str, held: World | None = None) -> list[str]:
    steps, problems = plan(parse_application(text), held or world(), "f")
    assert not problems, problems
    return [str(step.action) for step in steps]


def problem_codes(text: str) -> list[tuple[str, int, int]]:
    return [(problem.code, problem.line, problem.column) for problem in plan(parse_application(text), world(), "f")[1]]


def test_a_file_on_an_empty_cluster_creates_everything_and_again_nothing() -> None:
    assert actions(BASE, World({}, {}, {}, {})) == ["created"] * 4
    assert actions(BASE) == ["unchanged"] * 4


@pytest.mark.parametrize(
    "text",
    [
        "CREATE STREAM DATASET D (a INT) KEY (a) RETAIN 1 DAY;",
        "CREATE STREAM DATASET D (a INT, b STRING) KEY (b) RETAIN 1 DAY;",
        "CREATE STREAM DATASET d (a INT, b STRING) KEY (a) RETAIN 2 DAYS;",
        "CREATE OR REPLACE STREAM DATASET D (a INT) KEY (a);",
        "CREATE KEYED DATASET D (a INT, b STRING) KEY (a);",
        "CREATE STATIC DATASET S FROM 'other.csv';",
        "CREATE REPETITIVE CHANNEL C (b STRING) EVERY 20 SECONDS AS SELECT d.a FROM NEW D d WHERE d.b = :b;",
        "CREATE REPETITIVE CHANNEL C (b STRING) EVERY 10 SECONDS AS SELECT d.b FROM NEW D d WHERE d.b = :b;",
        "CREATE FEED F INTO D FROM rate OPTIONS (rowsPerSecond '2');",
    ],
)
def test_another_definition_of_what_exists_is_a_problem_at_its_place(text: str) -> None:
    assert problem_codes("\n " + text) == [("exists", 2, 2)]


def test_the_problem_names_what_differs_and_what_to_do() -> None:
    _, [problem] = plan(parse_application("CREATE STREAM DATASET D (a INT) KEY (a);"), world(), "f")
    assert "columns, retentions differ" in problem.message and "DROP DATASET D first" in problem.message


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("CREATE STREAM DATASET IF NOT EXISTS D (x INT);", "unchanged"),
        ("CREATE OR REPLACE STATIC DATASET S FROM 's.csv';", "replaced"),
        ("CREATE OR REPLACE STATIC DATASET S (x INT) FROM 'other.csv';", "replaced"),
        ("CREATE OR REPLACE FEED F INTO D FROM rate;", "replaced"),
        ("CREATE OR REPLACE CONTINUOUS CHANNEL C AS SELECT d.a FROM NEW D d;", "replaced"),
        ("CREATE OR REPLACE CONTINUOUS CHANNEL Fresh AS SELECT d.a FROM NEW D d;", "created"),
        ("DROP CHANNEL c;", "dropped"),
        ("DROP CHANNEL IF EXISTS Nobody;", "unchanged"),
    ],
)
def test_a_statement_has_its_action(text: str, action: str) -> None:
    assert actions(text) == [action]


def test_a_query_laid_out_differently_is_the_same_query() -> None:
    text = "CREATE REPETITIVE CHANNEL C (b STRING) EVERY PT10S AS\n SELECT d.a -- why\n FROM NEW D d\n WHERE d.b = :b;"
    assert actions(text) == ["unchanged"]


def test_what_is_in_use_is_not_dropped_until_its_users_are() -> None:
    assert problem_codes("DROP DATASET D;") == [("in-use", 1, 1)]
    assert actions("DROP CHANNEL C; DROP FEED F; DROP DATASET D; CREATE STREAM DATASET D (x INT);") == [
        "dropped", "dropped", "dropped", "created",
    ]  # fmt: skip


def test_a_file_may_not_use_what_it_dropped() -> None:
    text = "DROP CHANNEL C; DROP FEED F; DROP DATASET D; CREATE CONTINUOUS CHANNEL X AS SELECT d.a FROM NEW D d;"
    assert [code for code, _, _ in problem_codes(text)] == ["unknown-dataset"]
