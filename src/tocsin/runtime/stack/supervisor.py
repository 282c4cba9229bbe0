"""Child processes that are kept alive: started, watched, started again when they die, stopped in order.

Each child is a `tocsin` command that says on its first line of output, as JSON, where it listens. It gets no secret by
its arguments. It is in a session of its own, so that Ctrl-C reaches this process alone, which stops the others in
order; on Linux the kernel ends it when this process is gone, however that happened.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from tocsin.model.backoff import retry_delay_s
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, TocsinError

_COMMAND = [sys.executable, "-c", "from tocsin.cli.main import main; main()"]
_STEADY_S = 60.0
"""A life this long was a good one: the next death counts as the first."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Child:
    """One supervised process. `ready` is what it said when it was up; a new life says it again."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        *,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stop_s: float = 15.0,
        restart: bool = True,
        niceness: int = 0,
    ) -> None:
        """`niceness`: how far it stands back when the processor is short, as of nice(1)."""
        self.name = name
        self._niceness = niceness
        self._arguments = arguments
        self._log = log
        self._environment = {} if environment is None else dict(environment)
        self._stop_s = stop_s
        self.restart = restart
        self.starts = 0
        self.said: dict[str, Any] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.failed: TocsinError | None = None

    @property
    def pid(self) -> int | None:
        """None between two lives."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=f"supervise {self.name}")

    async def ready(self, limit_s: float) -> dict[str, Any]:
        """What it said when it was up; raises if it is not in time, or gave up before it ever was."""
        assert self._task is not None
        waiting = asyncio.create_task(self._up.wait())
        try:
            await asyncio.wait((waiting, self._task), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._up.is_set():
            return self.said
        raise self.failed or TocsinError(Code.NOT_READY, f"{self.name} was not up after {limit_s:g} s")

    def signal(self, number: int) -> bool:
        """To the process, and not to what it started; False if there is none right now."""
        pid = self.pid
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    async def stop(self) -> None:
        """Ask, wait, and end it if it does not listen."""
        self._stopping = True
        if self._task is None:
            return
        for number, patience_s in ((signal.SIGTERM, self._stop_s), (signal.SIGKILL, 10.0)):
            self.signal(signal.SIGCONT)
            self.signal(number)
            if self.pid is None:
                self._task.cancel()
            done, _ = await asyncio.wait((self._task,), timeout=patience_s)
            if done:
                break
            logger().warning("a process does not stop", process=self.name, after_s=patience_s)

    async def _live(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            code, was_up = await self._once()
            self._up.clear()
            if self._stopping:
                return
            if not was_up and self.starts == 1:  # wrong settings, a taken port: starting again would not help
                self.failed = TocsinError(
                    Code.INTERNAL, self.said.get("error", {}).get("message") or f"{self.name} ended with code {code}"
                )
                return
            if not self.restart:
                return
            failures = 1 if loop.time() - began_s > _STEADY_S else failures + 1
            pause_s = retry_delay_s(failures, jitter=random.uniform(0.25, 1.0))
            logger().warning("a process ended", process=self.name, code=code, again_in_s=round(pause_s, 2))
            await asyncio.sleep(pause_s)

    async def _once(self) -> tuple[int, bool]:
        """One life: its exit code, and whether it was ever up."""
        self.starts += 1
        with _log(self._log) as log:
            self._process = await asyncio.create_subprocess_exec(
                *_COMMAND, *self._arguments, "--json", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                env=os.environ | self._environment, start_new_session=True,
                preexec_fn=_before_command(os.getpid(), self._niceness),
            )  # fmt: skip
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        with contextlib.suppress(ValueError):
            self.said = json.loads(line)
        up = "error" not in self.said and bool(line)
        if up:
            self._up.set()
        await self._process.stdout.read()
        return await self._process.wait(), up


def _before_command(parent: int, niceness: int) -> Callable[[], None] | None:
    """Runs in the child before it becomes the command: it ends with its parent, and stands back if it is to."""
    libc = _LIBC
    if libc is None and not niceness:
        return None

    def before_command() -> None:
        if niceness:
            os.nice(niceness)
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it was gone before we could say so
                os._exit(1)

    return before_command


@contextlib.contextmanager
def _log(path: Path | None) -> Any:
    """Where a child's log goes: with ours, or to a file of its own."""
    if path is None:
        yield None
        return
    opened: IO[bytes] = path.open("ab")
    with opened:
        yield opened


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ones that nobody has right now. Processes that are started again keep theirs, so they must be known before."""
    with contextlib.ExitStack() as probes:
        found = []
        for _ in range(count):  # all open until the last is found, or two of them could be the same
            probe = probes.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, 0))
            found.append(int(probe.getsockname()[1]))
        return found
