"""`tocsin coordinator`, `status`, `drain` and `plan`, as a person uses them: a real process, real output."""

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
        [sys.executable, "-c", "from tocsin.cli.main import main; main()", "coordinator", "--json", "--port", "0",
         "--state", str(state), "--log-form", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TOCSIN_COORDINATOR_LOG_LEVEL": "debug"},
    )  # fmt: skip
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    yield said["address"], said["token"], state
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert out == "" and said["token"] not in err and "eyJ" not in err, "no secret in logs"
    assert "stopping" in err


def run(*arguments: str, state: Path, **environment: str) -> Any:
    """What a command prints with --json; the token comes from the state folder, never from the command line."""
    environment = {"TOCSIN_COORDINATOR_STATE": str(state), "TOCSIN_TOKEN": "", **environment}
    result = CliRunner().invoke(make_app(), [*arguments, "--json"], env=environment)
    return json.loads(result.stdout.splitlines()[-1]) | {"exit": result.exit_code}


def test_commands_find_the_coordinator_and_its_token_by_themselves(started: tuple[str, str, Path]) -> None:
    address, token, state = started
    assert (state / "admin-token").read_text().strip() == token
    found = run("status", "--url", address, state=state)
    assert found["brokers"] == [] and found["exit"] == 0
    assert {"drain", "failover", "ldm", "multistage"} <= set(run("plan", "--url", address, state=state)["policies"])
    missing = run("drain", "b9", "--url", address, state=state)
    assert missing["exit"] == 1 and missing["error"]["code"] == "not_found"
    nobody = run("status", "--url", address, state=state / "elsewhere")
    assert nobody["exit"] == 1 and "give --token" in nobody["error"]["message"]


def test_nobody_there_is_said_with_what_to_do() -> None:
    found = run("status", "--url", "http://127.0.0.1:1", state=Path("/nowhere"))
    assert found["exit"] == 1 and "is `tocsin up` running" in found["error"]["message"]


async def in_thread(*arguments: str) -> str:
    """A command's output for people, while this loop goes on serving."""
    result = await asyncio.to_thread(CliRunner().invoke, make_app(), list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return str(result.output)


def test_status_plan_and_drain_tell_a_person_what_they_need(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            os.environ["TOCSIN_TOKEN"] = running.token
            first = await FakeBroker(running, "broker-1").connect()
            await running.user("ada")
            await running.place("ada")
            await first.say(Changed(1, ADA, added=[frontend()]))
            await first.hears(Stored)
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
            await second.say(Prepared((await second.hears(Prepare)).migration))
            release = await first.hears(Release)
            await first.say(Released(release.subscriber, release.migration))
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
