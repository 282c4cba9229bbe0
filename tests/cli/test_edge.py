"""The commands of the edge tier, as a user types them: real processes on loopback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from tocsin.cli.main import make_app
from tocsin.runtime.stack.supervisor import free_ports

TOCSIN = [sys.executable, "-c", "from tocsin.cli.main import main; main()"]
STATEMENTS = """
CREATE EDGE STREAM Readings (meter STRING, ts TIMESTAMP, kwh DOUBLE) TIME ts;
CREATE EDGE QUERY Use AS SELECT window.start AS since, SUM(kwh) AS total
FROM Readings GROUP BY WINDOW(ts, '1 minute') ORDER BY since;
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(make_app(), [*arguments, "--json"], env={"TOCSIN_WAIT_S": "0"})


def reply_of(result: Result) -> Any:
    return json.loads(result.stdout.splitlines()[-1])


def test_tree_is_started_queried_and_changed_by_commands(tmp_path: Path) -> None:
    root_port, leaf_port = free_ports(2)
    (tmp_path / "secret").write_text("our-secret\n")
    (tmp_path / "app.sql").write_text(STATEMENTS)
    common = 'token_file = "secret"\n'
    root, leaf = tmp_path / "root.toml", tmp_path / "leaf.toml"
    root.write_text(f'[node]\nname = "root"\nport = {root_port}\ndata = "root"\napplication = "app.sql"\n{common}')
    url = f"http://127.0.0.1:{root_port}"
    leaf.write_text(
        f'[node]\nname = "leaf"\nparent = "root"\nroot = "{url}"\nport = {leaf_port}\ndata = "leaf"\n'
        f'streams = ["Readings"]\n{common}'
    )
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*TOCSIN, "edge", str(root), str(leaf), "--json"], stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert process.stdout is not None
        announced = json.loads(process.stdout.readline())
        assert announced == {"nodes": {"root": url, "leaf": f"http://127.0.0.1:{leaf_port}"}}
        at = ("--root", url, "--token", "our-secret")
        deadline_s = time.monotonic() + 20
        both = {"root": "alive", "leaf": "alive"}
        while True:  # the root runs operators before the leaf has joined
            status = reply_of(run("edge-status", *at))
            has_operators = any(node.get("operators") for node in status["nodes"])
            if has_operators and {node["name"]: node["state"] for node in status["nodes"]} == both:
                break
            assert time.monotonic() < deadline_s, status
            time.sleep(0.1)
        assert [query["name"] for query in status["queries"]] == ["Use"]
        text = CliRunner().invoke(make_app(), ["edge-status", *at]).stdout
        assert "leaf" in text and "generation" in text

        holders = [node["name"] for node in status["nodes"] if "Use/sort" in node["operators"]]
        moved = run("edge-move", "Use/sort", "--to", "leaf" if holders == ["root"] else "root", *at)
        assert moved.exit_code == 0 and "Use/sort" in reply_of(moved)["operators"]
        wrong = run("edge-move", "Use/nothing", "--to", "root", *at)
        assert wrong.exit_code == 1 and reply_of(wrong)["error"]["code"] == "not_found"

        again = run("edge-apply", str(tmp_path / "app.sql"), *at)
        assert again.exit_code == 1 and reply_of(again)["error"]["code"] == "exists"
        (tmp_path / "drop.sql").write_text("DROP EDGE QUERY Use;")
        assert reply_of(run("edge-apply", str(tmp_path / "drop.sql"), *at)) == {"statements": 1}
        assert reply_of(run("edge-status", *at))["queries"] == []
        refused = run("edge-status", "--root", url, "--token", "wrong")
        assert refused.exit_code == 1 and reply_of(refused)["error"]["code"] == "unauthenticated"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout is not None
        process.stdout.close()


def test_mistake_in_a_node_file_ends_the_command_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[node]\nname = "a"\nparent = "b"\n')
    result = run("edge", str(file))
    assert result.exit_code == 1 and "parent and root go together" in reply_of(result)["error"]["message"]


def test_two_files_of_one_node_are_refused(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text('[node]\nname = "root"\n')
    result = run("edge", str(tmp_path / "a.toml"), str(tmp_path / "b.toml"))
    assert result.exit_code == 1 and "two files describe the node root" in reply_of(result)["error"]["message"]
