"""Planning: the action of each statement on a cluster with given definitions, and the problems it has."""

from __future__ import annotations

import pytest

from tocsin.cluster.sql.declarations import CreateChannel, CreateDataset, CreateFeed, parse_application
from tocsin.cluster.sql.planning import Definitions, plan

BASE = """
CREATE STREAM DATASET D (a INT, b STRING) KEY (a) RETAIN 1 DAY;
CREATE STATIC DATASET S FROM 's.csv';
CREATE REPETITIVE CHANNEL C (b STRING) EVERY 10 SECONDS AS SELECT d.a FROM NEW D d WHERE d.b = :b;
CREATE FEED F INTO D FROM rate OPTIONS (rowsPerSecond '1');
"""


def definitions(text: str = BASE) -> Definitions:
    """The definitions of a cluster to which `text` was applied."""
    existing = Definitions({}, {}, {}, {})
    for statement in parse_application(text).statements:
        match statement:
            case CreateDataset(dataset):
                existing.datasets[dataset.name.lower()] = dataset
            case CreateChannel(channel, _, query):
                existing.channels[channel.name.lower()] = channel
                existing.reads[channel.name.lower()] = frozenset(
                    name.lower() for name in query.datasets | query.new_datasets
                )
            case CreateFeed(feed):
                existing.feeds[feed.name.lower()] = feed
    return existing


def actions(text: str, existing: Definitions | None = None) -> list[str]:
    planned, problems = plan(parse_application(text), existing or definitions(), "f")
    assert not problems, problems
    return [str(statement.action) for statement in planned]


def problem_codes(text: str) -> list[tuple[str, int, int]]:
    return [
        (problem.code, problem.line, problem.column) for problem in plan(parse_application(text), definitions(), "f")[1]
    ]


def test_file_creates_everything_once_and_nothing_the_second_time() -> None:
    assert actions(BASE, Definitions({}, {}, {}, {})) == ["created"] * 4
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
def test_different_definition_of_an_existing_name_is_a_problem(text: str) -> None:
    assert problem_codes("\n " + text) == [("exists", 2, 2)]


OWNED = "CREATE KEYED DATASET K (user STRING, n INT) KEY (user) OWNED BY user;"
UNOWNED = OWNED.replace(" OWNED BY user", "")


@pytest.mark.parametrize(
    ("before", "after", "action"),
    [
        (UNOWNED, OWNED, "changed"),
        (OWNED, UNOWNED, "changed"),
        (OWNED, OWNED, "unchanged"),
        (UNOWNED, OWNED.replace("DATASET", "DATASET IF NOT EXISTS"), "unchanged"),
    ],
)
def test_owner_of_a_dataset_changes_in_place(before: str, after: str, action: str) -> None:
    assert actions(after, definitions(before)) == [action]


def test_owner_and_columns_cannot_change_together() -> None:
    _, problems = plan(parse_application(OWNED.replace("n INT", "n STRING")), definitions(UNOWNED), "f")
    assert [problem.code for problem in problems] == ["exists"]


def test_problem_names_the_differences_and_a_remedy() -> None:
    _, [problem] = plan(parse_application("CREATE STREAM DATASET D (a INT) KEY (a);"), definitions(), "f")
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
        ("DROP CHANNEL IF EXISTS Unknown;", "unchanged"),
    ],
)
def test_statement_is_planned_with_its_action(text: str, action: str) -> None:
    assert actions(text) == [action]


def test_query_with_other_blanks_and_comments_is_unchanged() -> None:
    text = "CREATE REPETITIVE CHANNEL C (b STRING) EVERY PT10S AS\n SELECT d.a -- why\n FROM NEW D d\n WHERE d.b = :b;"
    assert actions(text) == ["unchanged"]


def test_dataset_in_use_is_not_dropped_before_its_users() -> None:
    assert problem_codes("DROP DATASET D;") == [("in-use", 1, 1)]
    assert actions("DROP CHANNEL C; DROP FEED F; DROP DATASET D; CREATE STREAM DATASET D (x INT);") == [
        "dropped",
        "dropped",
        "dropped",
        "created",
    ]


def test_file_may_not_use_a_dataset_it_dropped() -> None:
    text = "DROP CHANNEL C; DROP FEED F; DROP DATASET D; CREATE CONTINUOUS CHANNEL X AS SELECT d.a FROM NEW D d;"
    assert [code for code, _, _ in problem_codes(text)] == ["unknown-dataset"]


NAMED = """
CREATE STREAM DATASET Reports (x INT);
CREATE STATIC DATASET Shelters FROM 'shelters.csv';
CREATE CONTINUOUS CHANNEL C AS SELECT * FROM NEW Shelters;
CREATE FEED F INTO Shelters FROM kafka;
"""
"""No channel or feed here uses Reports, so that a file may drop it."""


def named_problems(text: str) -> list[str]:
    application = parse_application(text, "f.sql")
    assert application.problems == ()
    return [str(problem) for problem in plan(application, definitions(NAMED), "f.sql")[1]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "CREATE CONTINUOUS CHANNEL D AS\n SELECT * FROM NEW reports r, Shelter s",
            "2:31: dataset 'Shelter' does not exist; did you mean Shelters?",
        ),
        (
            "CREATE CONTINUOUS CHANNEL D AS SELECT * FROM NEW Reports, NEW Shelters",
            "1:59: 'Shelters' is STATIC and never has new records: expected it without NEW",
        ),
        ("CREATE FEED G INTO Shelters FROM rate", "1:20: 'Shelters' is STATIC: expected a STREAM or KEYED dataset"),
        (
            "CREATE FEED f INTO Reports FROM rate",
            "1:1: feed 'F' exists already with another definition (datasets, formats differ): "
            "DROP FEED F first, or say CREATE OR REPLACE",
        ),
        ("DROP CHANNEL D", "1:1: channel 'D' does not exist"),
        ("DROP FEED F; DROP FEED f", "1:14: feed 'f' does not exist"),
        (
            "CREATE STREAM DATASET reports (y INT)",
            "1:1: dataset 'Reports' exists already with another definition (columns differ): "
            "DROP DATASET Reports first",
        ),
        (
            "DROP DATASET Reports; CREATE CONTINUOUS CHANNEL D AS SELECT * FROM NEW Reports",
            "1:68: dataset 'Reports' does not exist",
        ),
    ],
)
def test_unknown_or_existing_name_is_reported_at_its_position(text: str, problem: str) -> None:
    assert named_problems(text) == [f"f.sql:{problem}"]


@pytest.mark.parametrize(
    "text",
    [
        "CREATE STREAM DATASET A (x INT); CREATE CONTINUOUS CHANNEL D AS SELECT * FROM NEW a, Reports",
        "DROP CHANNEL IF EXISTS D; DROP CHANNEL c; CREATE CONTINUOUS CHANNEL C AS SELECT * FROM NEW Reports",
        "CREATE OR REPLACE CONTINUOUS CHANNEL C AS SELECT * FROM NEW Reports JOIN Shelters",
        "CREATE STREAM DATASET IF NOT EXISTS Reports (x INT)",
    ],
)
def test_name_declared_in_the_file_or_tolerated_is_no_problem(text: str) -> None:
    assert named_problems(text) == []
