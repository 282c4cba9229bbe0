"""Processes of a benchmark: their CPU time and memory, and children: a broker, the sink, a peer."""

from __future__ import annotations

import asyncio
import json
import mmap
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tocsin.benchmarks.shared.sink import COUNTER


def cpu_time_s(process: Any) -> float:
    """User and system time of a `psutil.Process`, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def run_load(module: str, task: dict[str, Any], folder: Path, limit_s: float) -> dict[str, Any] | None:
    """Run a load of `benchmarks.shared` in a process of its own; returns its figures, or None if it failed.

    Raises TimeoutError if it takes longer than `limit_s`.
    """
    path = folder / "load.json"
    path.write_text(json.dumps(task), encoding="utf-8")
    command = (sys.executable, "-m", f"tocsin.benchmarks.shared.{module}", str(path))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    figures: dict[str, Any] | None = None if process.returncode else json.loads(output)
    return figures


class MemoryWatch:
    """The highest resident memory of this process and all its children, sampled four times a second."""

    def __init__(self) -> None:
        self.peak_mib = 0
        self._stop = threading.Event()

    def __enter__(self) -> MemoryWatch:
        self._stop.clear()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        import psutil

        this = psutil.Process()
        while not self._stop.wait(0.25):
            total = 0
            for process in [this, *this.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue  # the process ended after it was listed
            self.peak_mib = max(self.peak_mib, total >> 20)


@asynccontextmanager
async def child_process(*command: str, **streams: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A running child process, terminated at the end of the block."""
    process = await asyncio.create_subprocess_exec(*command, **streams)
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def broker_process(
    folder: Path, subscribers: int, cluster_url: str, **settings: Any
) -> AsyncIterator[tuple[int, int]]:
    """`tocsin broker`, with a token for each subscriber in the file `tokens`; yields process id and port."""
    _write_tokens(folder, subscribers)
    settings = {"cluster": cluster_url, "keys": folder / "keys.json", "state": folder} | settings
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-c", "from tocsin.cli.main import main; main()", "broker", "--port", "0", "--json"]
    command += ["--log-level", "warning", *flags]
    async with child_process(*command, stdout=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        started = json.loads(await process.stdout.readline())
        yield process.pid, int(started["address"].rpartition(":")[2])


def _write_tokens(folder: Path, count: int) -> None:
    """Write a token for each subscriber, and the key that checks them."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from tocsin.runtime.http.credentials import Signer

    signer = Signer(Ed25519PrivateKey.generate())
    (folder / "keys.json").write_text(json.dumps(signer.jwks()), encoding="utf-8")
    now_s = time.time()
    tokens = (
        signer.sign(f"s{number}", ["subscribe"], now_s=now_s, identity=str(number), lifetime_s=7200)
        for number in range(count)
    )
    (folder / "tokens").write_text("\n".join(tokens), encoding="utf-8")


class SinkCounts:
    """What a sink has counted so far, and what it must have at the end."""

    def __init__(self, counter: mmap.mmap) -> None:
        self._counter = counter
        self._expected: dict[str, int] | None = None

    def delivered(self) -> int:
        return self._read()[0]

    def reads(self) -> int:
        """Reads from all sockets that had data."""
        return self._read()[1]

    def _read(self) -> tuple[int, int]:
        delivered, reads = COUNTER.unpack(self._counter[: COUNTER.size])
        return delivered, reads

    def expect(self, each: int, last: int) -> None:
        """Demand that at the end every socket has `each` results, the last of them with the mark `last`."""
        self._expected = {"each": each, "last": last}

    def last_words(self) -> bytes:
        return b"" if self._expected is None else json.dumps(self._expected).encode() + b"\n"


@asynccontextmanager
async def sink_process(folder: Path, **task: Any) -> AsyncIterator[SinkCounts]:
    """A sink whose sockets are connected. Raises at the end if the sink found a missing or misplaced result."""
    file = folder / "counter"
    file.write_bytes(bytes(COUNTER.size))
    with file.open("r+b") as opened:
        counts = SinkCounts(mmap.mmap(opened.fileno(), COUNTER.size))
    path = folder / "sink.json"
    path.write_text(json.dumps(task | {"counter": str(file), "tokens": str(folder / "tokens")}), encoding="utf-8")
    command = (sys.executable, "-m", "tocsin.benchmarks.shared.sink", str(path))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None and process.stdin is not None
    if (await process.stdout.readline()).strip() != b"ready":
        raise RuntimeError("the sink could not connect")
    try:
        yield counts
        if process.returncode is None:
            process.stdin.write(counts.last_words())
    finally:
        process.stdin.close()
        await process.wait()
    if process.returncode:
        raise RuntimeError("the sink found a missing or misplaced result, or lost a connection")
