"""Application files: the statements they declare, and the problems reported for wrong ones."""

from __future__ import annotations

import pytest

from tocsin.cluster.sql.declarations import (
    CreateChannel,
    CreateDataset,
    CreateFeed,
    DropChannel,
    DropDataset,
    DropFeed,
    Statement,
    parse_application,
)
from tocsin.model.entities import Channel, ChannelKind, Dataset, DatasetKind, Feed
from tocsin.model.ids import ChannelName, DatasetName, FeedName
from tocsin.model.schema import Schema

ISSUE = """\
CREATE STREAM DATASET EmergencyReports (report_id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE)
  KEY (report_id) RETAIN 7 DAYS;
CREATE KEYED  DATASET UserLocations (user_id STRING, lat DOUBLE, lon DOUBLE, at TIMESTAMP) KEY (user_id);
CREATE STATIC DATASET Shelters FROM 'shelters.csv';
CREATE REPETITIVE CHANNEL EmergenciesOfType (kind STRING) EVERY 10 SECONDS AS
  SELECT r.* FROM NEW EmergencyReports r WHERE r.kind = :kind;
DROP CHANNEL EmergenciesOfType;
"""


def only(text: str) -> Statement:
    application = parse_application(text)
    assert not application.problems, [str(problem) for problem in application.problems]
    (statement,) = application.statements
    return statement


def problems_of(text: str) -> list[str]:
    return [str(problem) for problem in parse_application(text, "f.sql").problems]


def dataset(text: str) -> Dataset:
    statement = only(text)
    assert isinstance(statement, CreateDataset)
    return statement.dataset


def channel(text: str) -> Channel:
    statement = only(text)
    assert isinstance(statement, CreateChannel)
    return statement.channel


def test_application_statements_keep_file_order_and_positions() -> None:
    application = parse_application(ISSUE, "emergency.sql")
    assert application.problems == ()
    reports, users, shelters, of_type, drop = application.statements
    assert isinstance(reports, CreateDataset)
    assert reports.dataset == Dataset(
        DatasetName("EmergencyReports"),
        DatasetKind.STREAM,
        Schema.of(report_id="STRING", kind="STRING", severity="INT", lat="DOUBLE", lon="DOUBLE"),
        key=("report_id",),
        retain_s=604_800.0,
    )
    assert isinstance(users, CreateDataset)
    assert (users.dataset.key, users.dataset.order_by, users.position.line) == (("user_id",), "at", 3)
    assert isinstance(shelters, CreateDataset)
    assert (shelters.dataset.source, shelters.format, shelters.dataset.schema.names) == ("shelters.csv", "csv", ())
    assert isinstance(of_type, CreateChannel)
    assert of_type.channel == Channel(
        ChannelName("EmergenciesOfType"),
        ChannelKind.REPETITIVE,
        Schema.of(kind="STRING"),
        "SELECT r.* FROM NEW EmergencyReports r WHERE r.kind = :kind",
        period_s=10.0,
    )
    assert (of_type.query_position.line, of_type.query_position.column) == (6, 3)
    assert isinstance(drop, DropChannel)
    assert drop.name == "EmergenciesOfType"


def test_keywords_ignore_case_and_comments_are_skipped() -> None:
    created = dataset("create /* a; b */ stream -- ; c\n dataset A (x long) retain 'p1d';;")
    assert (created.name, created.schema, created.retain_s) == ("A", Schema.of(x="BIGINT"), 86_400.0)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10 SECONDS", 10),
        ("1 day", 86_400),
        ("PT10S", 10),
        ("P1D", 86_400),
        ("'PT1M'", 60),
        ("'2 hours'", 7_200),
        ("PT1.5S", 1.5),
        ("90S", None),
        ("1.5 MINUTES", 90),
        ("10SECONDS", 10),
    ],
)
def test_period_accepts_units_and_iso_8601_durations(written: str, seconds: float | None) -> None:
    application = parse_application(f"CREATE REPETITIVE CHANNEL C EVERY {written} AS SELECT 1 FROM A")
    if seconds is None:
        assert [problem.code for problem in application.problems] == ["duration"]
    else:
        (statement,) = application.statements
        assert isinstance(statement, CreateChannel)
        assert statement.channel.period_s == seconds


def test_keyed_dataset_is_ordered_by_order_by_or_its_only_timestamp() -> None:
    assert dataset("CREATE KEYED DATASET A (k INT, t TIMESTAMP, v INT) KEY (k)").order_by == "t"
    assert dataset("CREATE KEYED DATASET A (k INT, t TIMESTAMP, u TIMESTAMP) KEY (k)").order_by is None
    assert dataset("CREATE KEYED DATASET A (k INT, t TIMESTAMP, v INT) KEY (K) ORDER BY V").order_by == "v"
    assert dataset("CREATE KEYED DATASET A (k INT) KEY (k)").order_by is None


def test_keyed_dataset_may_be_owned_by_its_key() -> None:
    created = dataset(
        "CREATE KEYED DATASET UserLocations (user_id STRING, lat DOUBLE, at TIMESTAMP) "
        "KEY (user_id) owned by USER_ID ORDER BY at;"
    )
    assert (created.owned_by, created.key, created.order_by) == ("user_id", ("user_id",), "at")
    assert dataset("CREATE KEYED DATASET A (k STRING, t TIMESTAMP) KEY (k) OWNED BY k").order_by == "t"
    assert dataset("CREATE KEYED DATASET A (k STRING) KEY (k)").owned_by is None
    assert dataset("CREATE KEYED DATASET A (owned STRING, `by` INT) KEY (owned)").schema.names == ("owned", "by")


def test_continuous_channel_takes_retain_and_needs_no_parameters() -> None:
    created = channel("CREATE CONTINUOUS CHANNEL C () RETAIN 2 HOURS AS SELECT * FROM NEW A")
    assert (created.period_s, created.retain_s, created.parameters) == (None, 7_200.0, Schema(()))


def test_feed_options_accept_both_spellings() -> None:
    statement = only(
        "CREATE FEED F INTO A FROM kafka OPTIONS (subscribe 't', kafka.bootstrap.servers = 'h:1', 'x.y' 3)"
    )
    assert isinstance(statement, CreateFeed)
    options = {"subscribe": "t", "kafka.bootstrap.servers": "h:1", "x.y": "3"}
    assert statement.feed == Feed(FeedName("F"), DatasetName("A"), "kafka", options)


def test_if_exists_if_not_exists_and_or_replace_are_parsed() -> None:
    text = """DROP DATASET IF EXISTS A; DROP FEED F;
        CREATE STREAM DATASET IF NOT EXISTS A (x INT); CREATE OR REPLACE FEED F INTO A FROM rate"""
    drop_dataset, drop_feed, create, replace = parse_application(text).statements
    assert isinstance(drop_dataset, DropDataset) and drop_dataset.if_exists
    assert isinstance(drop_feed, DropFeed) and not drop_feed.if_exists
    assert isinstance(create, CreateDataset) and create.if_not_exists and not create.replace
    assert isinstance(replace, CreateFeed) and replace.replace


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "CREATE STREAM DATASET A (x INT)\n  KEYS (x);",
            "2:3: expected KEY, RETAIN or ';' but found 'KEYS'; did you mean KEY?",
        ),
        ("CRATE STREAM DATASET A (x INT)", "1:1: expected CREATE or DROP but found 'CRATE'; did you mean CREATE?"),
        ("CREATE STREAM DATASET A (x STRNG)", "1:28: 'STRNG' is not a type; did you mean STRING?"),
        ("CREATE STREAM DATASET A (x INT, X INT)", "1:33: column 'X' is declared twice"),
        ("CREATE STREAM DATASET A (x INT) KEY (y)", "1:38: KEY names 'y', which is not a column of this dataset"),
        ("CREATE STREAM DATASET A (x INT) KEY (x, x)", "1:41: KEY names 'x' twice"),
        ("CREATE KEYED DATASET A (x INT)", "1:31: expected KEY but found the end of the file"),
        (
            "CREATE KEYED DATASET A (kind INT) KEY (kind) ORDER BY kid",
            "1:55: ORDER BY names 'kid', which is not a column of this dataset; did you mean kind?",
        ),
        (
            "CREATE KEYED DATASET A (k INT, tags ARRAY<INT>) KEY (k) ORDER BY Tags",
            "1:66: ORDER BY names 'tags', an array, which has no earlier and later: expected a column of a plain type",
        ),
        (
            "CREATE KEYED DATASET A (k INT) KEY (k)\n OWNED BY k",
            "2:11: OWNED BY names 'k', a INT: expected a STRING column with the name of a user",
        ),
        (
            "CREATE KEYED DATASET A (k STRING, n STRING) KEY (k) OWNED BY n",
            "1:62: OWNED BY names 'n', but KEY is (k): expected KEY (n)",
        ),
        (
            "CREATE KEYED DATASET A (k STRING, n STRING) KEY (k, n) OWNED BY k",
            "1:65: OWNED BY names 'k', but KEY is (k, n): expected KEY (k)",
        ),
        (
            "CREATE KEYED DATASET A (user STRING) KEY (user) OWNED BY use",
            "1:58: OWNED BY names 'use', which is not a column of this dataset; did you mean user?",
        ),
        ("CREATE KEYED DATASET A (k STRING) KEY (k) OWNED k", "1:49: expected BY but found 'k'"),
        (
            "CREATE STREAM DATASET A (k STRING) KEY (k) OWNED BY k RETAIN 1 DAY",
            "1:44: OWNED BY is for KEYED datasets, and this dataset is STREAM: expected ';'",
        ),
        (
            "CREATE STATIC DATASET A FROM 'a.csv' OWNED BY k",
            "1:38: OWNED BY is for KEYED datasets, and this dataset is STATIC: expected ';'",
        ),
        (
            "CREATE STREAM DATASET NEW_A (x INT)",
            "1:23: 'NEW_A' cannot name a dataset: NEW has a meaning in channel queries",
        ),
        (
            "CREATE STREAM DATASET `a b` (x INT)",
            "1:23: 'a b' cannot name a dataset: expected a letter, then letters, digits or '_', at most 128",
        ),
        (
            "CREATE STREAM DATASET A (x INT) RETAIN 2 FORTNIGHTS",
            "1:40: '2 FORTNIGHTS' is not a duration: expected one such as 10 SECONDS, 7 DAYS, PT10S or P1D",
        ),
        (
            "CREATE STATIC DATASET A FROM 'a.xls'",
            "1:30: the name 'a.xls' does not show its format: expected FORMAT csv, json or parquet",
        ),
        (
            "CREATE STATIC DATASET A FROM 'a' FORMAT cvs",
            "1:41: expected csv, json or parquet but found 'cvs'; did you mean csv?",
        ),
        ("CREATE REPETITIVE CHANNEL C AS SELECT 1", "1:29: expected '(' or EVERY but found 'AS'"),
        (
            "CREATE REPETITIVE CHANNEL C EVERY 500 MILLISECONDS AS SELECT 1",
            "1:35: EVERY must be at least 1 second, but found 500 MILLISECONDS",
        ),
        (
            "CREATE REPETITIVE CHANNEL C (a INT) EVERY 1 DAY AS SELECT 1 FROM A",
            "1:30: parameter 'a' is not used: expected :a somewhere in the query",
        ),
        (
            "CREATE REPETITIVE CHANNEL C (a INT) EVERY 1 DAY AS\n\tSELECT :a, :b FROM A",
            "2:13: :b is not a parameter of this channel",
        ),
        (
            "CREATE CONTINUOUS CHANNEL C AS SELECT 1 FROM A",
            "1:32: a continuous channel runs as records arrive: expected NEW before at least one dataset",
        ),
        ("CREATE CONTINUOUS CHANNEL C AS", "1:31: expected a query but found the end of the file"),
        ("CREATE FEED F INTO A FROM rate OPTIONS (a 'x', A 'y')", "1:48: option 'A' is given twice"),
        ("DROP CHANNEL IF EXIST C", "1:17: expected EXISTS but found 'EXIST'; did you mean EXISTS?"),
        (
            "CREATE STREAM DATASET A (x INT);\nCREATE STREAM DATASET a (x INT)",
            "2:23: dataset 'a' is declared twice in this file",
        ),
        ("DROP FEED F; /* never\n closed", "1:14: a comment is opened here and never closed"),
        (
            "CREATE OR REPLACE FEED IF NOT EXISTS F INTO A FROM rate",
            "1:24: OR REPLACE and IF NOT EXISTS contradict each other: expected one of them",
        ),
    ],
)
def test_mistake_is_reported_with_position_and_expectation(text: str, problem: str) -> None:
    assert problems_of(text) == [f"f.sql:{problem}"]


def test_all_mistakes_are_reported_and_good_statements_are_kept() -> None:
    text = """\
CREATE STREAM DATASET A (x STRNG, y INTT) KEYS (x);
CREATE STREAM DATASET Good (x INT);
CREATE REPETITIVE CHANNEL C (a INT) EVERY 1 SECOND AS SELECT rand() FROM A WHERE x = :b
DROP DATASET Good
DROP CHANEL C;
"""
    application = parse_application(text)
    places = [(problem.line, problem.column) for problem in application.problems]
    assert places == [(1, 28), (1, 37), (1, 43), (3, 62), (3, 86), (5, 1)]
    assert [type(statement) for statement in application.statements] == [CreateDataset]


def test_dropped_name_may_be_declared_again() -> None:
    text = "CREATE STREAM DATASET A (x INT); DROP DATASET a; CREATE STREAM DATASET A (x INT)"
    assert parse_application(text).problems == ()


def test_problem_shows_its_source_line_with_a_caret() -> None:
    text = "DROP FEED F;\n\tDROP FED G"
    (problem,) = parse_application(text, "f.sql").problems
    assert problem.with_source(text) == (
        "f.sql:2:7: expected DATASET, CHANNEL, FEED or TOPIC but found 'FED'; did you mean FEED?\n"
        "  \tDROP FED G\n  \t     ^"
    )
    assert problem.expected == "DATASET, CHANNEL, FEED or TOPIC"
