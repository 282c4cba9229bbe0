"""A whole network at the command line: start it, apply an application, publish records, stop it."""

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
            "TOCSIN_ROOT": str(root),
            "TOCSIN_MASTER": "local[2]",
            "TOCSIN_SPARK": "spark.driver.memory=1g",
            "TOCSIN_LOG_FORM": "json",
        }
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
        self.announcement = json.loads(line)

    def run(self, *arguments: str, stdin: str = "", at: str = "address") -> tuple[int, Any, str]:
        done = subprocess.run(
            [*TOCSIN, *arguments, "--url", self.announcement[at], "--json"],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
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


def test_emergency_city_is_applied_filled_and_listed(up: Up) -> None:
    assert up.announcement["token"].count(".") == 2, "signed by the coordinator"
    assert list(up.announcement["brokers"]) == ["broker-1"]
    code, reply, _ = up.run("apply", str(EXAMPLE))
    assert code == 0 and {change["action"] for change in reply["changes"]} == {"created"}
    code, reply, _ = up.run("apply", str(EXAMPLE))
    assert code == 0 and {change["action"] for change in reply["changes"]} == {"unchanged"}
    good = [json.dumps({"report_id": f"r{index}", "kind": "flood", "severity": 4}) for index in range(2_500)]
    code, reply, errors = up.run("publish", "EmergencyReports", stdin="\n".join([*good, '{"report_id": 5}', good[0]]))
    assert code == 1 and reply == {"accepted": 2_500, "duplicates": 1, "refused": 1, "retries": 0}
    assert "line 2501: report_id:" in errors
    code, reply, _ = up.run("datasets")
    assert code == 0 and {dataset["name"] for dataset in reply["datasets"]} >= {"EmergencyReports", "Shelters"}
    code, reply, _ = up.run("channels")
    assert code == 0 and len(reply["channels"]) == 8


def test_created_token_works_and_appears_in_no_log(up: Up) -> None:
    code, created, _ = up.run("token", "create", "--scope", "read", "--name", "looker", "--days", "1")
    assert code == 0
    code, _, errors = up.run("token", "list", "--token", created["token"])
    assert code == 1 and "scope admin" in errors
    code, reply, _ = up.run("token", "list")
    assert "looker" in {token["name"] for token in reply["tokens"]}
    assert up.run("token", "revoke", created["id"])[0] == 0
    logged = up.log.read_text(encoding="utf-8")
    assert created["token"] not in logged and up.announcement["token"] not in logged


def test_announced_token_is_accepted_by_every_process(up: Up) -> None:
    code, reply, errors = up.run("channels", "--token", up.announcement["token"])
    assert code == 0, errors
    code, reply, errors = up.run("status", at="coordinator")
    assert code == 0, errors
    assert [(broker["broker"], broker["state"]) for broker in reply["brokers"]] == [("broker-1", "alive")]


def test_problem_is_shown_with_its_position(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "wrong.sql"
    file.write_text(
        "CREATE CONTINUOUS CHANNEL C AS\n  SELECT r.nothing FROM NEW EmergencyReports r;\n", encoding="utf-8"
    )
    code, reply, errors = up.run("apply", str(file))
    assert code == 1 and reply["error"]["code"] == "bad_sql"
    assert errors.startswith(f"{file}:2:10: ")
    assert "\n           ^\n" in errors


def test_signal_stops_the_network_and_the_log_is_json(up: Up) -> None:
    assert up.stop() == 0
    lines = [line for line in up.log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    events = [entry["event"] for line in lines if "event" in (entry := json.loads(line))]
    assert "data cluster ready" in events and events[-1] == "data cluster closed"
