"""The whole way at the command line: a server as a process of its own, an application, records, a clean stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tocsin.cluster.spark.session import require_java
from tocsin.wire.errors import TocsinError

EXAMPLE = Path(__file__).parents[2] / "examples" / "emergency" / "emergency.sql"
TOCSIN = [sys.executable, "-c", "from tocsin.cli.main import main; main()"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Up:
    def __init__(self, root: Path) -> None:
        self.environment = os.environ | {
            "TOCSIN_ROOT": str(root), "TOCSIN_MASTER": "local[2]", "TOCSIN_SPARK": "spark.driver.memory=1g",
            "TOCSIN_LOG_FORM": "json",
        }  # fmt: skip
        self.log = root.parent / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*TOCSIN, "up", "--brokers", "1", "--port", "0", "--json"],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text(encoding="utf-8")
        self.said = json.loads(line)

    def run(self, *arguments: str, stdin: str = "", at: str = "address") -> tuple[int, Any, str]:
        done = subprocess.run(
            [*TOCSIN, *arguments, "--url", self.said[at], "--json"],
            env=self.environment, input=stdin, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    try:
        require_java()
    except TocsinError as error:
        pytest.skip(error.message)
    running = Up(tmp_path_factory.mktemp("up") / "data")
    yield running
    running.stop()


def test_the_emergency_city_is_applied_published_to_and_looked_at(up: Up) -> None:
    assert up.said["token"].count(".") == 2, "signed by the coordinator"
    assert list(up.said["brokers"]) == ["broker-1"]
    code, said, _ = up.run("apply", str(EXAMPLE))
    assert code == 0 and {change["action"] for change in said["changes"]} == {"created"}
    code, said, _ = up.run("apply", str(EXAMPLE))
    assert code == 0 and {change["action"] for change in said["changes"]} == {"unchanged"}
    good = [json.dumps({"report_id": f"r{index}", "kind": "flood", "severity": 4}) for index in range(2_500)]
    code, said, errors = up.run("publish", "EmergencyReports", stdin="\n".join([*good, '{"report_id": 5}', good[0]]))
    assert code == 1 and said == {"accepted": 2_500, "duplicates": 1, "refused": 1, "retries": 0}
    assert "line 2501: report_id:" in errors
    code, said, _ = up.run("datasets")
    assert code == 0 and {one["name"] for one in said["datasets"]} >= {"EmergencyReports", "Shelters"}
    code, said, _ = up.run("channels")
    assert code == 0 and len(said["channels"]) == 8


def test_a_token_that_is_made_works_and_shows_up_in_no_log(up: Up) -> None:
    code, made, _ = up.run("token", "create", "--scope", "read", "--name", "looker", "--days", "1")
    assert code == 0
    code, _, errors = up.run("token", "list", "--token", made["token"])
    assert code == 1 and "scope admin" in errors
    code, said, _ = up.run("token", "list")
    assert "looker" in {one["name"] for one in said["tokens"]}
    assert up.run("token", "revoke", made["id"])[0] == 0
    logged = up.log.read_text(encoding="utf-8")
    assert made["token"] not in logged and up.said["token"] not in logged


def test_the_token_it_prints_is_good_at_all_of_them(up: Up) -> None:
    code, said, errors = up.run("channels", "--token", up.said["token"])
    assert code == 0, errors
    code, said, errors = up.run("status", at="coordinator")
    assert code == 0, errors
    assert [(one["broker"], one["state"]) for one in said["brokers"]] == [("broker-1", "alive")]


def test_a_problem_is_shown_where_it_is(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "wrong.sql"
    file.write_text(
        "CREATE CONTINUOUS CHANNEL C AS\n  SELECT r.nothing FROM NEW EmergencyReports r;\n", encoding="utf-8"
    )
    code, said, errors = up.run("apply", str(file))
    assert code == 1 and said["error"]["code"] == "bad_sql"
    assert errors.startswith(f"{file}:2:10: ")
    assert "\n           ^\n" in errors


def test_a_signal_stops_it_cleanly_and_what_was_logged_is_json(up: Up) -> None:
    assert up.stop() == 0
    lines = [line for line in up.log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    events = [said["event"] for line in lines if "event" in (said := json.loads(line))]
    assert "data cluster ready" in events and events[-1] == "data cluster closed"
