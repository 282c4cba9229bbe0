"""The watch over Spark: a silent JVM makes the process unready, a lost JVM ends it, a busy JVM does neither."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.server.conftest import until
from tocsin.cluster.server.spark_watch import SILENT_S, Silence, SparkWatch
from tocsin.cluster.spark.heartbeat import SparkHeartbeat
from tocsin.cluster.spark.session import Session

CHECK_S = 0.5


class HandDriven:
    """A heartbeat whose answers a test decides."""

    def __init__(self) -> None:
        self.beats = 0
        self.reason: str | None = None
        self.killed = False

    def end_reason(self) -> str | None:
        return self.reason

    def kill_jvm(self) -> None:
        self.killed = True


class Watched:
    def __init__(self, deadline_s: float = 20.0) -> None:
        self.now_s = 1000.0
        self.heartbeat = HandDriven()
        self.lost: list[str] = []
        self.watch = SparkWatch(self.heartbeat, deadline_s, self.lost.append, lambda: self.now_s)
        self.pass_s(CHECK_S, answering=True)

    def pass_s(self, duration_s: float, *, answering: bool) -> None:
        for _ in range(int(duration_s / CHECK_S)):
            self.now_s += CHECK_S
            self.heartbeat.beats += answering
            self.watch.check()


def test_silent_spark_is_reported_within_five_seconds() -> None:
    watched = Watched()
    assert watched.watch.reasons() == []
    watched.pass_s(4.5, answering=False)
    assert watched.watch.reasons() == ["Spark has not answered for 4 s"]
    watched.pass_s(0.5, answering=True)
    assert watched.watch.reasons() == [] and not watched.lost


def test_spark_silent_past_the_deadline_is_killed_once() -> None:
    watched = Watched(deadline_s=20)
    watched.pass_s(19.5, answering=False)
    assert not watched.lost
    watched.pass_s(10, answering=False)
    assert watched.heartbeat.killed
    assert watched.lost == ["Spark has not answered for 20 s, and its JVM was killed"]


def test_ended_jvm_is_lost_at_the_next_check() -> None:
    watched = Watched()
    watched.heartbeat.reason = "Spark's JVM ended with code -9"
    watched.pass_s(CHECK_S, answering=True)
    assert watched.lost == ["Spark's JVM ended with code -9"] == watched.watch.reasons()
    assert not watched.heartbeat.killed


def test_pause_of_this_process_does_not_count_as_silence_of_spark() -> None:
    """SIGSTOP of the data cluster for minutes: its thread could send no heartbeat, and Spark is not at fault."""
    silence = Silence()
    silence.observe(0.0, 1)
    assert silence.observe(600.0, 1) < SILENT_S
    assert silence.observe(600.5, 2) == 0.0


@contextmanager
def busy_processor(processes: int) -> Iterator[None]:
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


@pytest.mark.spark
def test_busy_spark_on_a_busy_machine_is_not_silent(spark: Session) -> None:
    heartbeat = SparkHeartbeat(spark)
    heartbeat.start()
    lost: list[str] = []
    watch = SparkWatch(heartbeat, 20.0, lost.append)
    enough = threading.Event()
    jobs = 0

    def execute() -> None:
        nonlocal jobs
        while not enough.is_set():
            spark.range(0, 400_000, numPartitions=8).selectExpr("sum(hash(sha2(cast(id AS STRING), 256)))").collect()
            jobs += 1

    executing = threading.Thread(target=execute)
    silent: list[list[str]] = []
    try:
        until(lambda: heartbeat.beats)
        with busy_processor(2 * (os.cpu_count() or 2)):
            executing.start()
            began_s = time.monotonic()
            while time.monotonic() - began_s < 2 * SILENT_S:  # silence takes real time
                watch.check()
                silent += [watch.reasons()] if watch.reasons() else []
                executing.join(CHECK_S)
    finally:
        enough.set()
        executing.join(120)
        heartbeat.stop()
    assert jobs and not silent and not lost


@pytest.mark.spark
def test_frozen_jvm_is_silent_and_continues_when_resumed(spark: Session) -> None:
    heartbeat = SparkHeartbeat(spark)
    heartbeat.start()
    watch = SparkWatch(heartbeat, 60.0, lambda reason: None)

    def has_reason() -> bool:
        watch.check()
        return bool(watch.reasons())

    pid = heartbeat.jvm_pid
    assert pid is not None
    try:
        until(lambda: heartbeat.beats)
        os.kill(pid, signal.SIGSTOP)
        until(has_reason, 30)
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not has_reason(), 30)
    heartbeat.stop()
    assert heartbeat.end_reason() is None
    assert spark.range(3).count() == 3
