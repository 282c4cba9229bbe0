"""The conformance list against a broker of ours and against mosquitto, in one run."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.end_to_end.mqtt_conformance.all_cases import run_all
from tests.end_to_end.mqtt_network import mqtt_network
from tocsin.runtime.stack.supervisor import free_ports

KEEP_ALIVE_S = "60"
"""Both servers get the longest keep-alive that Paho's suite expects."""


@asynccontextmanager
async def mosquitto(folder: Path) -> AsyncIterator[int]:
    """The port of a mosquitto with the limits of our broker, or a skip if it is not installed."""
    path = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if path is None:
        pytest.skip("mosquitto is not installed: the Debian package mosquitto has it")
    (port,) = free_ports(1)
    settings = folder / "mosquitto.conf"
    settings.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_keepalive {KEEP_ALIVE_S}\n"
        "max_packet_size 65536\nmax_topic_alias 100\npersistence false\nuser root\n",
        encoding="utf-8",
    )
    process = await asyncio.create_subprocess_exec(
        path, "-c", str(settings), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(10):
            while not _listens(port):
                await asyncio.sleep(0.05)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _passed(outcomes: dict[str, str]) -> Counter[str]:
    """Passed cases by kind: Paho's, statements of the specification, and recommendations."""
    kinds = Counter(_kind(name) for name, outcome in outcomes.items() if outcome == "ok")
    return kinds + Counter()


def _kind(name: str) -> str:
    source = name.partition("; ")[2]
    return "paho" if source.startswith("paho") else "should" if source.startswith("should") else "must"


def test_broker_passes_more_conformance_cases_than_mosquitto(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> tuple[dict[str, str], dict[str, str]]:
        async with (
            mosquitto(tmp_path) as port,
            mqtt_network(tmp_path, 1, **{"mqtt-keep-alive-s": KEEP_ALIVE_S}) as network,
            asyncio.TaskGroup() as both,  # the cases mostly wait
        ):
            ours = both.create_task(run_all("127.0.0.1", network.port(), "ann", network.token))
            theirs = both.create_task(run_all("127.0.0.1", port, "ann", "any"))
        return ours.result(), theirs.result()

    ours, theirs = asyncio.run(scenario())
    counts = {"cases": Counter(map(_kind, ours)), "tocsin": _passed(ours), "mosquitto": _passed(theirs)}
    with capsys.disabled():
        sys.stdout.write(f"\nconformance: { ({name: dict(kinds) for name, kinds in counts.items()}) }\n")
    failed = {name: outcome for name, outcome in ours.items() if outcome != "ok"}
    assert not failed, f"{failed}\n{counts}"
    for kind in ("paho", "must", "should"):
        assert counts["tocsin"][kind] > counts["mosquitto"][kind], counts
