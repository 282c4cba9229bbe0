"""Signs of life of Spark's JVM: a small request about once a second, from a thread and a connection of its own.

The request reads one flag of the JVM. It takes no lock of Spark and starts no job, so a JVM that is busy with
executions still answers it. `cluster.server.spark_watch` decides what a missing answer means.
"""

from __future__ import annotations

import subprocess
import threading

from pyspark.sql import SparkSession

PERIOD_S = 1.0
"""Pause between two requests."""


class SparkHeartbeat:
    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext._jsc.sc()
        gateway = session.sparkContext._gateway
        self._jvm: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
        self.beats = 0
        """Answers so far."""
        self.stopped = False
        """True if Spark has stopped itself, for example after a fatal error of a task."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def jvm_pid(self) -> int | None:
        """The process id of the JVM; None if another process started it."""
        return None if self._jvm is None else self._jvm.pid

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present request. Does not wait for it: a frozen JVM never answers."""
        self._stopping.set()

    def end_reason(self) -> str | None:
        """Why Spark cannot be used any more; None while it may still answer. Does not block."""
        code = None if self._jvm is None else self._jvm.poll()
        if code is not None:
            return f"Spark's JVM ended with code {code}"
        return "Spark stopped after a fatal error" if self.stopped else None

    def kill_jvm(self) -> None:
        """Kill the JVM, if this process started it. Also ends a frozen JVM."""
        if self._jvm is not None and self._jvm.poll() is None:
            self._jvm.kill()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.stopped = bool(self._context.isStopped())
                self.beats += 1
            except Exception:  # no answer: the watch counts how long there is none
                pass
            self._stopping.wait(PERIOD_S)
