"""How a JVM ended: by itself, or by a signal from outside."""

from __future__ import annotations

import subprocess
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tocsin.cluster.spark.errors import ended_by_itself, has_died, is_alive


@pytest.mark.parametrize(
    ("end", "by_itself"),
    [
        ("exit 52", True),  # Spark's code for a task without memory
        ("kill -SEGV $$", True),
        ("kill -KILL $$", False),
        ("exit 143", False),  # SIGTERM, after the shutdown hooks
    ],
)
def test_exit_code_tells_crashes_from_kills(end: str, by_itself: bool) -> None:
    assert ended_by_itself(_session(["sh", "-c", end]), 10.0) is by_itself


def test_jvm_that_does_not_end_in_time_counts_as_killed() -> None:
    session = _session(["sleep", "60"])
    try:
        assert not ended_by_itself(session, 0.05)
    finally:
        session.sparkContext._gateway.proc.kill()
        session.sparkContext._gateway.proc.wait()


def test_spark_that_stopped_itself_ended_by_itself() -> None:
    session = _session(["sleep", "60"], stopped=True)
    try:
        assert not is_alive(session) and ended_by_itself(session, 0.0)
    finally:
        session.sparkContext._gateway.proc.kill()
        session.sparkContext._gateway.proc.wait()


@pytest.mark.parametrize(("reason", "dies"), [("OutOfMemoryError: Java heap space", True), ("Division by zero", False)])
def test_jvm_that_still_answers_after_a_fatal_error_has_died(reason: str, dies: bool) -> None:
    ends_s = time.monotonic() + 0.2
    scala = SimpleNamespace(isStopped=lambda: time.monotonic() >= ends_s)
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala)))
    assert has_died(session, f"Job aborted: {reason}") is dies


def _session(command: list[str], stopped: bool | None = None) -> Any:
    """A session whose JVM is another program, and answers only if `stopped` is given."""
    gateway = SimpleNamespace(proc=subprocess.Popen(command))
    scala = SimpleNamespace() if stopped is None else SimpleNamespace(isStopped=lambda: stopped)
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway, _jsc=SimpleNamespace(sc=lambda: scala)))
