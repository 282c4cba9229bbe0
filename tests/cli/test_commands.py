"""Commands: exit codes, the last line of `--json`, and the source of the token."""

from __future__ import annotations

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tocsin.cli.connection import connect, coordinator_token
from tocsin.cli.main import make_app
from tocsin.cluster.catalog import Catalog
from tocsin.cluster.store.storage import lock_root
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.stack.stack import Stack
from tocsin.runtime.stack.supervisor import free_ports
from tocsin.wire.errors import Code, TocsinError

NO_SERVER = "http://127.0.0.1:9"


def run(*arguments: str, **environment: str) -> Result:
    """Run a command that does not wait for a server."""
    return CliRunner().invoke(make_app(), list(arguments), env={"TOCSIN_WAIT_S": "0"} | environment)


def last_line(result: Result) -> Any:
    return json.loads(result.stdout.splitlines()[-1])


def test_file_without_problems_passes(tmp_path: Path) -> None:
    file = tmp_path / "app.sql"
    file.write_text("CREATE STREAM DATASET D (a INT);", encoding="utf-8")
    result = run("check", "--quick", str(file), "--json")
    assert result.exit_code == 0 and last_line(result) == {"problems": [], "quick": True}


def test_problem_is_shown_with_its_line_and_a_caret(tmp_path: Path) -> None:
    file = tmp_path / "app.sql"
    file.write_text("CREATE STREAM DATASET D (a INT);\nCREATE STREAM DATASTE E (a INT);\n", encoding="utf-8")
    result = run("check", "--quick", str(file))
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0].startswith(f"{file}:2:15: ") and "DATASET" in lines[0]
    assert lines[1] == "  CREATE STREAM DATASTE E (a INT);"
    assert lines[2] == "  " + " " * 14 + "^"


def test_problems_are_printed_as_json(tmp_path: Path) -> None:
    file = tmp_path / "app.sql"
    file.write_text("CREATE CONTINUOUS CHANNEL C AS SELECT * FROM NEW Nothing n;", encoding="utf-8")
    result = run("check", "--quick", str(file), "--json")
    assert result.exit_code == 1
    [problem] = last_line(result)["error"]["problems"]
    assert (problem["line"], problem["column"], problem["code"]) == (1, 46, "unknown-dataset")


def test_misused_command_exits_with_two(tmp_path: Path) -> None:
    assert run("check").exit_code == 2
    assert run("check", str(tmp_path / "missing.sql")).exit_code == 2
    assert run("token", "create", "--name", "x").exit_code == 2


@pytest.mark.parametrize("command", [("channels",), ("datasets",), ("token", "list"), ("token", "revoke", "x")])
def test_missing_server_is_reported_without_a_traceback(command: tuple[str, ...]) -> None:
    result = run(*command, "--url", NO_SERVER, "--token", "x", "--json")
    assert result.exit_code == 1
    assert "is `tocsin up` running" in result.stderr and "Traceback" not in result.output
    assert last_line(result)["error"]["code"] == "not_ready"


def test_subscriber_without_a_coordinator_times_out_with_the_reason() -> None:
    result = run("subscribe", "C", "kind=fire", "--url", NO_SERVER, "--token", "x", "--give-up-s", "0.3", "--json")
    assert result.exit_code == 1 and last_line(result)["error"]["code"] == "not_ready"
    assert "no coordinator at http://127.0.0.1:9" in result.stderr


def test_parameter_values_are_json_if_possible_and_text_otherwise() -> None:
    from tocsin.cli.commands.subscribe import parse_parameters

    parameters = parse_parameters(["kind=fire", "radius_m=500", 'name="5"', "near=true", "note=a=b"])
    assert parameters == {"kind": "fire", "radius_m": 500, "name": "5", "near": True, "note": "a=b"}
    assert run("subscribe", "C", "kind", "--url", NO_SERVER).exit_code == 1


def test_update_without_a_coordinator_fails_with_the_reason() -> None:
    result = run("update", "Places", "lat=60.1", "--user", "ann", "--url", NO_SERVER, "--token", "x", "--json")
    assert result.exit_code == 1 and last_line(result)["error"]["code"] == "not_ready"
    assert "no coordinator at http://127.0.0.1:9" in result.stderr
    assert run("update", "Places", "lat", "--url", NO_SERVER).exit_code == 1


def test_invalid_settings_are_refused_before_the_server_starts() -> None:
    result = run("cluster", "--host", "0.0.0.0", "--json")
    assert result.exit_code == 1 and "tls_cert" in last_line(result)["error"]["message"]


def test_token_file_is_used_for_this_machine_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path))
    (tmp_path / "admin-token").write_text("tocsin_local\n", encoding="utf-8")
    for url, expected in (
        ("http://127.0.0.1:1", "Bearer tocsin_local"),
        ("http://[::1]:1", "Bearer tocsin_local"),
        ("http://192.0.2.1:1", None),
        ("http://127.0.0.1.example.invalid:1", None),
    ):
        with connect(url, None) as client:
            assert client.headers.get("Authorization") == expected
    with connect("http://192.0.2.1:1", "mine") as client:
        assert client.headers["Authorization"] == "Bearer mine"


def test_token_can_be_created_when_all_tokens_are_lost(tmp_path: Path) -> None:
    result = run("token", "create", "--state", str(tmp_path), "--scope", "admin", "--name", "rescue", "--json")
    assert result.exit_code == 0, result.output
    created = last_line(result)
    assert created["token"].startswith("tocsin_")
    catalog = Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}")
    assert [(name, scopes) for _, name, scopes, _ in catalog.tokens()] == [("rescue", ("admin",))]
    catalog.close()
    assert run("token", "create", "--state", str(tmp_path), "--scope", "root", "--name", "x").exit_code == 1


def test_coordinator_token_is_read_from_the_default_state_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("TOCSIN_COORDINATOR_STATE", "TOCSIN_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    token_file = Path(CoordinatorSettings().state, "admin-token")
    token_file.parent.mkdir(parents=True)
    token_file.write_text("secret\n", encoding="utf-8")
    assert coordinator_token("http://127.0.0.1:8570", None) == "secret"
    assert coordinator_token("http://192.0.2.1:8570", None) is None, "a local secret is not sent to another machine"


def test_restored_needs_a_data_root_without_a_running_cluster(tmp_path: Path) -> None:
    result = run("restored", "--root", str(tmp_path / "none"), "--json")
    assert result.exit_code == 1 and "expected the state folder" in last_line(result)["error"]["message"]
    state = tmp_path / "state"
    state.mkdir()
    result = run("restored", "--root", str(tmp_path), "--json")
    assert result.exit_code == 0 and last_line(result) == {"channels": []}
    descriptor = lock_root(state)
    result = run("restored", "--root", str(tmp_path), "--json")
    os.close(descriptor)
    assert result.exit_code == 1 and "another process" in last_line(result)["error"]["message"]


def test_status_names_late_channels_and_the_reason_of_the_data_cluster() -> None:
    from tocsin.cli.commands.network import cluster_lines

    assert cluster_lines(None) == []
    assert cluster_lines({"ready": True, "reasons": [], "late": []}) == ["data cluster ready"]
    late = {"channel": "NearMe", "since_s": 0.0, "late_s": 25.4}
    lines = cluster_lines({"ready": False, "reasons": ["Spark has not answered for 4 s"], "late": [late]})
    assert lines[0] == "data cluster NOT READY: Spark has not answered for 4 s"
    assert lines[1].startswith("channel NearMe is late since 19") and lines[1].endswith("(25 s)")


class StartingServer:
    """A server that listens only after a while, answers 503 at first, and then creates its token file and answers."""

    def __init__(self, state: Path) -> None:
        self.requests: list[str | None] = []
        starting = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                starting.requests.append(self.headers.get("Authorization"))
                if len(starting.requests) == 2:
                    (state / "admin-token").write_text("first", encoding="utf-8")
                is_up = len(starting.requests) > 2
                error = {"error": {"code": "not_ready", "message": "the data cluster is still starting"}}
                body = json.dumps({"channels": []} if is_up else error).encode()
                self.send_response(200 if is_up else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self._handler = Handler
        self.port = free_ports(1)[0]
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        time.sleep(0.5)  # the command is refused at least once
        with HTTPServer(("127.0.0.1", self.port), self._handler) as server:
            for _ in range(3):
                server.handle_request()

    def __enter__(self) -> StartingServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join(30)


def test_command_waits_for_a_server_that_is_starting(tmp_path: Path) -> None:
    with StartingServer(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        result = run("channels", "--url", url, "--json", TOCSIN_WAIT_S="30", TOCSIN_STATE=str(tmp_path))
    assert result.exit_code == 0, result.output
    assert result.stderr.count("waiting up to 30 s") == 1
    assert server.requests == [None, None, "Bearer first"], "the token file did not exist at first"


def test_wait_for_a_server_that_never_starts_ends_with_the_reason() -> None:
    result = run("status", "--url", NO_SERVER, "--token", "x", "--json", TOCSIN_WAIT_S="0.5")
    assert result.exit_code == 1 and last_line(result)["error"]["code"] == "not_ready"
    assert "no server listens there yet" in result.stderr


@pytest.mark.parametrize(("flags", "roles"), [(("--site",), ["head", "edge", "edge"]), ((), [])])
def test_up_gives_brokers_the_roles_of_a_site(
    flags: tuple[str, ...], roles: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Stack] = []

    async def start(stack: Stack) -> None:
        started.append(stack)
        raise TocsinError(Code.NOT_READY, "far enough")

    monkeypatch.setattr(Stack, "start", start)
    run("up", "--port", "0", "--root", str(tmp_path), *flags)
    [stack] = started
    arguments = [broker._arguments for broker in stack.brokers.values()]
    assert [given[given.index("--role") + 1] for given in arguments if "--role" in given] == roles
