"""A supervised process is restarted when it dies, not if it cannot start at all, and ends with its supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tocsin.runtime.stack.supervisor import Child, count_failure, free_ports
from tocsin.wire.errors import TocsinError

_SCRIPT = """
import asyncio, sys
from pathlib import Path
from tocsin.runtime.stack.supervisor import Child

async def main():
    child = Child("coordinator", ["coordinator", "--state", sys.argv[1], "--port", "0"], log=Path(sys.argv[1] + ".log"))
    child.start()
    await child.ready(60)
    print(child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def coordinator(folder: Path, *more: str) -> Child:
    arguments = ["coordinator", "--state", str(folder / "state"), *more]
    return Child("coordinator", arguments, log=folder / "log", stop_s=10)


def test_process_that_dies_is_restarted_at_the_same_address(tmp_path: Path) -> None:
    async def scenario() -> None:
        child = coordinator(tmp_path, "--port", str(free_ports(1)[0]))
        child.start()
        try:
            first, pid = await child.ready(60), child.pid
            assert first["token"], "the first start announces the administrator's token"
            assert child.signal(signal.SIGKILL)
            async with asyncio.timeout(60):
                while child.pid in (None, pid):
                    await asyncio.sleep(0.02)
            again = await child.ready(60)
            assert again["address"] == first["address"] and child.starts == 2
        finally:
            await child.stop()
        assert child.pid is None

    asyncio.run(scenario())


def test_process_that_cannot_start_is_not_restarted_and_reports_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        child = coordinator(tmp_path, "--host", "0.0.0.0")
        child.start()
        with pytest.raises(TocsinError, match="tls_cert"):
            await child.ready(60)
        assert child.starts == 1
        await child.stop()

    asyncio.run(scenario())


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel gives sessions no priority")
def test_low_priority_counts_against_other_sessions_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        arguments = ["coordinator", "--state", str(tmp_path / "state"), "--port", "0"]
        child = Child("coordinator", arguments, log=tmp_path / "log", stop_s=10, niceness=3)
        child.start()
        try:
            await child.ready(60)
            lower = min(os.nice(0) + 3, 19)
            assert os.getpriority(os.PRIO_PROCESS, child.pid or 0) == lower
            assert Path(f"/proc/{child.pid}/autogroup").read_text().split()[-1] == str(lower)
        finally:
            await child.stop()

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_no_process_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(tmp_path / "state")], stdout=subprocess.PIPE, text=True
    )
    assert supervisor.stdout is not None
    pid = int(supervisor.stdout.readline())
    os.kill(pid, 0)
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    deadline_s = time.monotonic() + 20
    while _alive(pid):
        assert time.monotonic() < deadline_s, "the process is still running"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    """False for a zombie, which waits only for its new parent to read its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_only_processes_that_end_soon_count_as_failing_again_and_again() -> None:
    assert [count_failure(failures, up_s) for failures, up_s in ((0, 1.0), (3, None), (3, 4.9))] == [1, 4, 4]
    assert count_failure(7, 5.0) == 1
