"""Watches whether Spark answers. A data cluster without Spark acknowledges records and delivers nothing.

The process calls `check` twice a second, on its event loop. While Spark is silent, the data cluster is not ready. If
its JVM ends, or is silent for longer than the deadline, `on_lost` is called once. The server then ends the process with
`EXIT_SPARK_LOST`, and its supervisor starts it again (docs/decisions/0009).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tocsin.runtime.http.logs import logger

EXIT_SPARK_LOST = 75
"""Exit code of a data cluster that lost Spark: EX_TEMPFAIL of sysexits.h, "try again later"."""
CHECK_S = 0.5
"""Pause between two checks."""
SILENT_S = 3.0
"""Spark counts as silent after this long without an answer; the process is not ready then."""


class SparkLost(Exception):
    """Spark ended, or did not answer before the deadline. Its text is the reason."""


class Heartbeat(Protocol):
    """The signs of life that the watch reads; `cluster.spark.heartbeat` implements it."""

    beats: int

    def end_reason(self) -> str | None: ...

    def kill_jvm(self) -> None: ...


@dataclass(slots=True)
class Silence:
    """How long Spark has not answered, in time in which this process itself ran. Pure.

    A process that was stopped, or got no processor, could not have seen an answer. So a step between two observations
    counts for at most `longest_step_s`.
    """

    longest_step_s: float = 2 * CHECK_S
    silent_s: float = 0.0
    _beats: int = 0
    _observed_s: float | None = None

    def observe(self, now_s: float, beats: int) -> float:
        """Note the number of answers so far, and return the seconds since the last new one."""
        elapsed_s = 0.0 if self._observed_s is None else now_s - self._observed_s
        self._observed_s = now_s
        if beats != self._beats:
            self._beats, self.silent_s = beats, 0.0
        else:
            self.silent_s += min(max(elapsed_s, 0.0), self.longest_step_s)
        return self.silent_s


class SparkWatch:
    def __init__(
        self,
        heartbeat: Heartbeat,
        deadline_s: float,
        on_lost: Callable[[str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._heartbeat = heartbeat
        self._deadline_s = deadline_s
        self._on_lost = on_lost
        self._clock_s = clock_s
        self._silence = Silence()
        self._was_silent = False
        self._lost: str | None = None
        self._log = logger()

    def reasons(self) -> list[str]:
        """Why the process is not ready; empty if Spark answers."""
        if self._lost is not None:
            return [self._lost]
        silent_s = self._silence.silent_s
        return [] if silent_s < SILENT_S else [f"Spark has not answered for {silent_s:.0f} s"]

    def check(self) -> None:
        """Read the heartbeat once. Calls `on_lost` with the reason when Spark is lost."""
        if self._lost is not None:
            return
        silent_s = self._silence.observe(self._clock_s(), self._heartbeat.beats)
        reason = self._heartbeat.end_reason()
        if reason is None and silent_s >= self._deadline_s:
            reason = f"Spark has not answered for {silent_s:.0f} s, and its JVM was killed"
            self._heartbeat.kill_jvm()
        if reason is not None:
            self._lost = reason
            self._on_lost(reason)
        elif self._was_silent != (silent_s >= SILENT_S):
            self._was_silent = not self._was_silent
            message = "Spark does not answer" if self._was_silent else "Spark answers again"
            self._log.warning(message, deadline_s=self._deadline_s)
