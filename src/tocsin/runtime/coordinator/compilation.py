"""Compiles the policies for the coordinator: in a process of its own the first time on a machine.

Compiling takes most of a minute of processor time. In a thread of the coordinator it would delay the event loop for
seconds at a time, so that leases end and links break, and it could not be cancelled. The other process stores the
compiled code where numba finds it; loading it here takes two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from pathlib import Path

import numba

from tocsin import policies
from tocsin.coordinator.planning import compile_policies

_COMMAND = "from tocsin.coordinator.planning import compile_policies; compile_policies()"
_NICENESS = 10


async def compile_beside(mark: Path | None = None, command: str = _COMMAND) -> None:
    """Compile the policies, unless the file `mark` says that it was done, and load them. Can be cancelled."""
    mark = _mark(Path(policies.__file__).parent) if mark is None else mark
    if not mark.exists() and await _run(command):
        with contextlib.suppress(OSError):  # an installation that is read-only: the next start compiles again
            mark.parent.mkdir(exist_ok=True)
            mark.touch()
    await asyncio.to_thread(compile_policies)


async def _run(command: str) -> bool:
    """Run the command in a process with low priority. True if it succeeded."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", command, stdin=asyncio.subprocess.DEVNULL, preexec_fn=_lower_priority
    )
    try:
        return await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _lower_priority() -> None:
    os.nice(_NICENESS)


def _mark(folder: Path) -> Path:
    """A file beside numba's own. Its name changes with the sources and with everything that they are compiled by."""
    sources = [(str(path.relative_to(folder)), path.stat()) for path in sorted(folder.rglob("*.py"))]
    state = [sys.version, numba.__version__, os.environ.get("NUMBA_CACHE_DIR", "")]
    state += [f"{name} {stat.st_mtime_ns} {stat.st_size}" for name, stat in sources]
    return folder / "__pycache__" / f"compiled-{hashlib.sha256('|'.join(state).encode()).hexdigest()[:16]}"
