"""Supervised child processes: started, watched, restarted when they die, stopped in order.

Each child is a `tocsin` command whose first line of output is a JSON object with its address. No secret is passed in
its arguments. Each child has a session of its own, so that Ctrl-C reaches only this process, which then stops the
children in order. On Linux the kernel ends a child when this process dies for any reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from tocsin.model.backoff import retry_delay_s
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, TocsinError

_COMMAND = "from tocsin.cli.main import main; main()"
_STEADY_S = 5.0
"""A child that was up for this long was healthy: its death counts as the first failure. A coordinator that is killed
again and again is back within a second or so each time."""
_LONGEST_S = 15.0
"""The longest pause before a child that keeps failing is started again."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def cpu_time_s(process: int) -> float:
    """User and system time of a process; not a number where there is no /proc."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Child:
    """One supervised process. It prints an announcement when it is up, again after each restart."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        *,
        log: Path | None = None,
        stop_s: float = 15.0,
        restart: bool = True,
        niceness: int = 0,
        preload: str | None = None,
    ) -> None:
        """`niceness` lowers the priority of the process and its session when the processor is busy, as nice(1) does.

        `preload` is a module whose `install` runs in the process before the command.
        """
        self.name = name
        self._code = _COMMAND if preload is None else f"from {preload} import install; install(); {_COMMAND}"
        self._niceness = niceness
        self._arguments = arguments
        self._log = log
        self._stop_s = stop_s
        self.restart = restart
        self.starts = 0
        self.announcement: dict[str, Any] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.failed: TocsinError | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while the process does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        self._task = asyncio.create_task(self._supervise(), name=f"supervise {self.name}")

    async def ready(self, limit_s: float) -> dict[str, Any]:
        """Wait until the process is up and return its announcement. Raises if its first start fails or takes longer."""
        assert self._task is not None
        waiting = asyncio.create_task(self._up.wait())
        try:
            await asyncio.wait((waiting, self._task), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._up.is_set():
            return self.announcement
        raise self.failed or TocsinError(Code.NOT_READY, f"{self.name} was not up after {limit_s:g} s")

    def signal(self, number: int) -> bool:
        """Send a signal to the process, but not to its own children. False if the process does not run."""
        pid = self.pid
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    async def stop(self) -> None:
        """Send SIGTERM, wait, and send SIGKILL if the process is still running."""
        self._stopping = True
        if self._task is None:
            return
        for number, limit_s in ((signal.SIGTERM, self._stop_s), (signal.SIGKILL, 10.0)):
            self.signal(signal.SIGCONT)
            self.signal(number)
            if self.pid is None:
                self._task.cancel()
            done, _ = await asyncio.wait((self._task,), timeout=limit_s)
            if done:
                break
            logger().warning("a process does not stop", process=self.name, after_s=limit_s)

    async def _supervise(self) -> None:
        failures = 0
        while True:
            code, up_s = await self._run_once()
            self._up.clear()
            if self._stopping:
                return
            if up_s is None and self.starts == 1:  # wrong settings or a port in use: a restart would not help
                message = self.announcement.get("error", {}).get("message") or f"{self.name} ended with code {code}"
                self.failed = TocsinError(Code.INTERNAL, message)
                return
            if not self.restart:
                return
            failures = count_failure(failures, up_s)
            pause_s = retry_delay_s(failures, longest_s=_LONGEST_S, jitter=random.uniform(0.25, 1.0))
            logger().warning("a process ended", process=self.name, code=code, again_in_s=round(pause_s, 2))
            await asyncio.sleep(pause_s)

    async def _run_once(self) -> tuple[int, float | None]:
        """Run the process until it ends. Returns its exit code, and for how many seconds it was up; None if never."""
        self.starts += 1
        with _opened(self._log) as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", self._code, *self._arguments, "--json"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=_before_command(os.getpid(), self._niceness),
            )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        with contextlib.suppress(ValueError):
            self.announcement = json.loads(line)
        up = "error" not in self.announcement and bool(line)
        if up:
            self._up.set()
        began_s = time.monotonic()
        await self._process.stdout.read()
        return await self._process.wait(), time.monotonic() - began_s if up else None


def count_failure(failures: int, up_s: float | None) -> int:
    """The number of failures in a row, after another end of a process that was up for `up_s` seconds, or never."""
    return 1 if up_s is not None and up_s >= _STEADY_S else failures + 1


_SESSION_PRIORITY = Path("/proc/self/autogroup")


def _before_command(parent: int, niceness: int) -> Callable[[], None] | None:
    """A function that runs in the child before the command: it sets the priority and ties the child to its parent."""
    libc = _LIBC
    if libc is None and not niceness:
        return None

    def before_command() -> None:
        if niceness:
            _lower_priority(niceness)
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # the parent died before the call above
                os._exit(1)

    return before_command


def _lower_priority(niceness: int) -> None:
    """Lower the priority of this process, and of its session where Linux schedules sessions as groups.

    Inside a group alone `nice` counts: without the second step a child that starts a session competes as an equal.
    """
    lower = os.nice(niceness)
    with contextlib.suppress(OSError):  # a kernel without groups
        _SESSION_PRIORITY.write_text(str(lower), encoding="ascii")


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[IO[bytes] | None]:
    """The log file of a child; None if the child writes to our stderr."""
    if path is None:
        yield None
        return
    with path.open("ab") as file:
        yield file


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that are free now. They are chosen before the start, because a restarted process must keep its port."""
    with contextlib.ExitStack() as probes:
        ports = []
        for _ in range(count):  # all sockets stay open until the end, or two ports could be the same
            probe = probes.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, 0))
            ports.append(int(probe.getsockname()[1]))
        return ports
