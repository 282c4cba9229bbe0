"""Application files over REST: a file is applied as a whole or not at all, and problems name their line."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.server.conftest import APPLICATION, RunningServer

pytestmark = pytest.mark.spark


def apply(server: RunningServer, text: str, folder: Path | None = None, *, dry_run: bool = False) -> Any:
    body = {"text": text, "file": "app.sql", "folder": None if folder is None else str(folder)}
    return server.admin.post("/v1/applications", params={"dry_run": dry_run}, json=body)


def problems(server: RunningServer, text: str, folder: Path | None = None) -> list[tuple[int, int, str, str]]:
    answer = apply(server, text, folder)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["code"] == "bad_sql"
    assert all(problem["file"] == "app.sql" for problem in error["problems"])
    return [(item["line"], item["column"], item["code"], item["message"]) for item in error["problems"]]


def names(server: RunningServer, kind: str) -> set[str]:
    return {item["name"] for item in server.admin.get(f"/v1/{kind}").json()[kind]}


def actions(server: RunningServer, text: str, folder: Path | None = None) -> dict[str, str]:
    answer = apply(server, text, folder)
    assert answer.status_code == 200, answer.text
    return {change["name"]: change["action"] for change in answer.json()["changes"]}


def test_applying_a_file_again_changes_nothing(server: RunningServer) -> None:
    assert set(actions(server, APPLICATION).values()) == {"unchanged"}
    relaid = APPLICATION.replace("SELECT r.report_id", "SELECT -- with a comment\n     r.report_id")
    assert set(actions(server, relaid).values()) == {"unchanged"}


def test_file_with_one_problem_changes_nothing(server: RunningServer) -> None:
    text = "CREATE STREAM DATASET Fresh (a INT);\nCREATE CONTINUOUS CHANNEL C AS SELECT nothing FROM NEW Fresh f;"
    [(line, column, code, message)] = problems(server, text)
    assert (line, code) == (2, "spark") and "nothing" in message
    assert text.splitlines()[line - 1][column - 1 :].startswith("nothing")
    assert "Fresh" not in names(server, "datasets")


def test_every_problem_of_a_file_names_its_line(server: RunningServer) -> None:
    text = "CREATE STREAM DATASET A (x INTT);\nCREATE KEYD DATASET B (x INT);\nDROP CHANNEL Unknown;"
    places = [(line, code) for line, _, code, _ in problems(server, text)]
    assert places == [(1, "unknown-type"), (2, "syntax"), (3, "unknown-channel")]


def test_dry_run_reports_problems_and_changes_nothing(server: RunningServer) -> None:
    text = "CREATE STREAM DATASET Dry (a INT);"
    assert apply(server, text, dry_run=True).json() == {"problems": []}
    assert "Dry" not in names(server, "datasets")
    assert apply(server, "CREATE;", dry_run=True).status_code == 400


def test_conflict_with_an_existing_definition_names_the_difference(server: RunningServer) -> None:
    [(_, _, code, message)] = problems(server, "CREATE STREAM DATASET Reports (report_id STRING) KEY (report_id);")
    assert code == "exists" and "columns, retentions differ" in message and "DROP DATASET Reports first" in message


def test_dataset_in_use_is_not_dropped(server: RunningServer) -> None:
    [(line, column, code, message)] = problems(server, "\n  DROP DATASET Reports;")
    assert (line, column, code) == (2, 3, "in-use") and "Counted, ReportsOfKind" in message
    assert server.admin.delete("/v1/datasets/Reports").status_code == 409


def test_continuous_channel_without_new_is_refused(server: RunningServer) -> None:
    [(_, _, code, message)] = problems(
        server, "CREATE CONTINUOUS CHANNEL C (kind STRING) AS SELECT * FROM Reports r WHERE r.kind = :kind;"
    )
    assert code == "no-new" and "runs as records arrive" in message


def test_nondeterministic_query_is_refused_with_the_reason(server: RunningServer) -> None:
    text = "CREATE REPETITIVE CHANNEL R EVERY PT10S AS SELECT r.*, rand() AS luck FROM NEW Reports r;"
    assert any("determin" in message or "rand" in message for _, _, _, message in problems(server, text))


def test_static_dataset_is_loaded_again_only_with_or_replace(server: RunningServer, tmp_path: Path) -> None:
    text = "CREATE STATIC DATASET Shelters FROM 'shelters.csv';"
    [(_, _, code, message)] = problems(server, text, tmp_path)
    assert code == "unreadable" and str(tmp_path / "shelters.csv") in message
    (tmp_path / "shelters.csv").write_text("name,capacity\nHall,100\n", encoding="utf-8")
    assert actions(server, text, tmp_path) == {"Shelters": "created"}
    assert actions(server, text, tmp_path) == {"Shelters": "unchanged"}
    (tmp_path / "shelters.csv").write_text("name,capacity\nHall,100\nSchool,50\n", encoding="utf-8")
    assert actions(server, text.replace("CREATE", "CREATE OR REPLACE"), tmp_path) == {"Shelters": "replaced"}
    described = server.admin.get("/v1/datasets/shelters").json()
    assert described["rows"] == 2
    assert [column["name"] for column in described["columns"]] == ["name", "capacity"]
    assert server.admin.delete("/v1/datasets/Shelters").status_code == 200


def test_changed_source_of_a_static_dataset_gives_a_warning(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "rooms.csv"
    file.write_text("name\nA\n", encoding="utf-8")
    text = "CREATE STATIC DATASET Rooms FROM 'rooms.csv';"
    actions(server, text, tmp_path)
    os.utime(file, (time.time() + 60, time.time() + 60))
    [change] = apply(server, text, tmp_path).json()["changes"]
    assert change["action"] == "unchanged" and "CREATE OR REPLACE" in change["warnings"][0]
    assert actions(server, "DROP DATASET Rooms;") == {"Rooms": "dropped"}


def test_replaced_channel_keeps_its_subscriptions(server: RunningServer) -> None:
    create = (
        "CREATE REPETITIVE CHANNEL Kept (kind STRING) EVERY 1 HOUR AS "
        "SELECT r.* FROM NEW Reports r WHERE r.kind = :kind;"
    )
    assert actions(server, create) == {"Kept": "created"}
    request = {"channel": "Kept", "parameters": {"kind": "flood"}}
    [held] = server.admin.post("/v1/subscriptions", json=request).json()
    changed = create.replace("r.* FROM", "r.report_id FROM").replace("1 HOUR", "2 HOURS")
    [(_, _, code, _)] = problems(server, changed)
    assert code == "exists"
    assert actions(server, changed.replace("CREATE", "CREATE OR REPLACE")) == {"Kept": "replaced"}
    [again] = server.admin.post("/v1/subscriptions", json=request).json()
    assert again["id"] == held["id"] and not again["created"]
    assert again["cursor"] != held["cursor"], "the replaced channel has a new epoch"
    described = server.admin.get("/v1/channels/Kept").json()
    assert described["subscriptions"] == 1 and described["period_s"] == 7200
    pulled = server.admin.get(
        "/v1/results", params={"channel": "Kept", "subscription": held["id"], "after": held["cursor"]}
    )
    assert pulled.headers["Tocsin-Gap"] == "1" and '"gap":true' in pulled.text
    # With other parameters the subscriptions cannot be kept.
    other = (
        "CREATE OR REPLACE REPETITIVE CHANNEL Kept (least INT) EVERY 1 HOUR AS "
        "SELECT r.* FROM NEW Reports r WHERE r.severity > :least;"
    )
    assert actions(server, other) == {"Kept": "replaced"}
    assert server.admin.get("/v1/channels/Kept").json()["subscriptions"] == 0
    assert actions(server, "DROP CHANNEL Kept; DROP CHANNEL IF EXISTS Kept;") == {"Kept": "unchanged"}


def test_feed_that_spark_cannot_start_changes_nothing(server: RunningServer) -> None:
    text = "CREATE STREAM DATASET Fed (value BIGINT);\nCREATE FEED F INTO Fed FROM nosuchformat;"
    [(line, _, _, message)] = problems(server, text)
    assert line == 2 and "nosuchformat" in message
    assert "Fed" not in names(server, "datasets")


def test_feed_fills_its_dataset_and_blocks_dropping_it(server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"a": 1}\n{"a": 2}\n', encoding="utf-8")
    text = f"""
    CREATE STREAM DATASET Files (a INT);
    CREATE FEED FromFiles INTO Files FROM json OPTIONS (path '{tmp_path}/in');
    """
    assert actions(server, text) == {"Files": "created", "FromFiles": "created"}
    assert actions(server, text) == {"Files": "unchanged", "FromFiles": "unchanged"}
    [feed] = server.admin.get("/v1/feeds").json()["feeds"]
    assert feed["options"] == ["path"] and feed["failure"] is None
    server.server.process.cluster.datasets.feeds()[0].query.catch_up()
    assert server.admin.get("/v1/datasets/Files").json()["rows"] == 2
    assert server.admin.delete("/v1/datasets/Files").status_code == 409
    assert actions(server, "DROP FEED FromFiles; DROP DATASET Files;") == {"FromFiles": "dropped", "Files": "dropped"}
