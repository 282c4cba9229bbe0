"""Names of an application file against what a catalog holds."""

from __future__ import annotations

import pytest

from tocsin.cluster.sql.declarations import parse_application
from tocsin.cluster.sql.references import check_references
from tocsin.model.entities import DatasetKind

DATASETS = {"Reports": DatasetKind.STREAM, "Shelters": DatasetKind.STATIC}


def problems_of(text: str) -> list[str]:
    application = parse_application(text, "f.sql")
    assert application.problems == ()
    return [str(problem) for problem in check_references(application, DATASETS, ["C"], ["F"], "f.sql")]


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
        ("CREATE FEED f INTO Reports FROM rate", "1:1: feed 'f' exists already"),
        ("DROP CHANNEL D", "1:1: channel 'D' does not exist"),
        ("DROP FEED F; DROP FEED f", "1:14: feed 'f' does not exist"),
        ("CREATE STREAM DATASET reports (x INT)", "1:1: dataset 'reports' exists already"),
        (
            "DROP DATASET Reports; CREATE CONTINUOUS CHANNEL D AS SELECT * FROM NEW Reports",
            "1:68: dataset 'Reports' does not exist",
        ),
    ],
)
def test_what_does_not_exist_or_exists_already_is_named_with_its_place(text: str, problem: str) -> None:
    assert problems_of(text) == [f"f.sql:{problem}"]


@pytest.mark.parametrize(
    "text",
    [
        "CREATE STREAM DATASET A (x INT); CREATE CONTINUOUS CHANNEL D AS SELECT * FROM NEW a, Reports",
        "DROP CHANNEL IF EXISTS D; DROP CHANNEL c; CREATE CONTINUOUS CHANNEL C AS SELECT * FROM NEW Reports",
        "CREATE OR REPLACE CONTINUOUS CHANNEL C AS SELECT * FROM NEW Reports JOIN Shelters",
        "CREATE STREAM DATASET IF NOT EXISTS Reports (x INT)",
    ],
)
def test_what_the_file_itself_declares_or_tolerates_is_no_problem(text: str) -> None:
    assert problems_of(text) == []
