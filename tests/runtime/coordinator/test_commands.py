"""`tocsin coordinator`, `status`, `drain` and `plan` with a real process and real output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.runtime.coordinator.harness import ADA, FakeBroker, coordinator, frontend
from tocsin.cli.main import make_app
from tocsin.wire.link import Changed, Prepare, Prepared, Release, Released, Stored


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[str, str, Path]]:
    """(address, token, state folder) of `tocsin coordinator` in a process of its own."""
    state = tmp_path / "state"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from tocsin.cli.main import main; main()",
            "coordinator",
            "--json",
            "--port",
            "0",
            "--state",
            str(state),
            "--log-form",
            "json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TOCSIN_COORDINATOR_LOG_LEVEL": "debug"},
    )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    yield ready["address"], ready["token"], state
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert out == "" and ready["token"] not in err and "eyJ" not in err, "no secret in logs"
    assert "stopping" in err


def run(*arguments: str, state: Path, **environment: str) -> Any:
    """The JSON output of a command, with its exit code. The token comes from the state folder."""
    environment = {"TOCSIN_COORDINATOR_STATE": str(state), "TOCSIN_TOKEN": "", **environment}
    result = CliRunner().invoke(make_app(), [*arguments, "--json"], env=environment)
    return json.loads(result.stdout.splitlines()[-1]) | {"exit": result.exit_code}


def test_commands_read_the_token_from_the_state_folder(started: tuple[str, str, Path]) -> None:
    address, token, state = started
    assert (state / "admin-token").read_text().strip() == token
    status = run("status", "--url", address, state=state)
    assert status["brokers"] == [] and status["exit"] == 0
    assert {"drain", "failover", "ldm", "multistage"} <= set(run("plan", "--url", address, state=state)["policies"])
    missing = run("drain", "b9", "--url", address, state=state)
    assert missing["exit"] == 1 and missing["error"]["code"] == "not_found"
    no_token = run("status", "--url", address, state=state / "elsewhere")
    assert no_token["exit"] == 1 and "give --token" in no_token["error"]["message"]


def test_error_without_a_coordinator_suggests_what_to_do() -> None:
    status = run("status", "--url", "http://127.0.0.1:1", state=Path("/nowhere"), TOCSIN_WAIT_S="0.5")
    assert status["exit"] == 1 and "is `tocsin up` running" in status["error"]["message"]


async def in_thread(*arguments: str) -> str:
    """A command's text output. The command runs in a thread, so that this loop can serve the coordinator."""
    result = await asyncio.to_thread(CliRunner().invoke, make_app(), list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return str(result.output)


def test_status_plan_and_drain_print_readable_text(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            os.environ["TOCSIN_TOKEN"] = running.token
            first = await FakeBroker(running, "broker-1").connect()
            await running.user("ada")
            await running.place("ada")
            await first.send(Changed(1, ADA, added=[frontend()]))
            await first.receive(Stored)
            second = await FakeBroker(running, "broker-2").connect()
            shown = await in_thread("status", "--url", running.url)
            assert (
                "broker-1" in shown and "ws://broker-2" in shown and "1 subscribers, 0 online, 1 subscriptions" in shown
            )
            moves = ("--move", "ada=broker-2", "--move", "bob=broker-2")
            planned = await in_thread("plan", "--dry-run", *moves, "--url", running.url)
            assert "1 of 2 moves (dry run" in planned and "there is no such subscriber" in planned
            assert (await running.user_view("ada"))["broker"] == "broker-1"
            draining = asyncio.create_task(in_thread("drain", "broker-1", "--wait", "--url", running.url))
            await second.send(Prepared((await second.receive(Prepare)).migration))
            release = await first.receive(Release)
            await first.send(Released(release.subscriber, release.migration))
            assert "broker-1 is drained: it can be stopped." in await draining
            assert "gets new subscribers again" in await in_thread("drain", "broker-1", "--off", "--url", running.url)
            for broker in (first, second):
                await broker.stop()

    before = os.environ.get("TOCSIN_TOKEN")
    try:
        asyncio.run(scenario())
    finally:
        os.environ.pop("TOCSIN_TOKEN", None)
        if before is not None:
            os.environ["TOCSIN_TOKEN"] = before
