"""The peers of `bench fanout`: nats-server and mosquitto, each with one publisher connection.

A peer that is not installed is skipped. The receiving side is `shared/sink.py`.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tocsin.benchmarks.shared.processes import child_process
from tocsin.benchmarks.shared.sink import TOPIC

Publish = Callable[[list[bytes]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Peer:
    program: str
    arguments: Callable[[int, Path], list[str]]
    """The program's arguments for a port and a folder for its configuration."""
    connect: bytes
    """The publisher's first message."""
    encode: Callable[[bytes], bytes]
    """Makes the publisher's message from a result."""

    @asynccontextmanager
    async def run(self, folder: Path) -> AsyncIterator[tuple[int, int, Publish] | None]:
        """Start the server; yield process id, port and a function that publishes, or None if it is not installed."""
        path = shutil.which(self.program) or shutil.which(self.program, path="/usr/sbin:/usr/local/sbin")
        if path is None:
            yield None
            return
        port = _free_port()
        quiet = asyncio.subprocess.DEVNULL
        async with child_process(path, *self.arguments(port, folder), stdout=quiet, stderr=quiet) as process:
            writer = await _connect(port)
            writer.write(self.connect)

            async def publish(rows: list[bytes]) -> None:
                for row in rows:
                    writer.write(self.encode(row))
                await writer.drain()

            yield process.pid, port, publish
            writer.close()


async def _connect(port: int) -> asyncio.StreamWriter:
    """Connect within 4 s: the server has just been started."""
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.transport.set_write_buffer_limits(high=1 << 20)
        return writer
    raise RuntimeError(f"no server listens on port {port}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _nats_arguments(port: int, _folder: Path) -> list[str]:
    return ["-a", "127.0.0.1", "-p", str(port)]


def _nats_message(row: bytes) -> bytes:
    return b"PUB %b %d\r\n%b\r\n" % (TOPIC.encode(), len(row), row)


def _mosquitto_arguments(port: int, folder: Path) -> list[str]:
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nlog_type none\n", encoding="utf-8"
    )
    return ["-c", str(configuration)]


def _mosquitto_message(row: bytes) -> bytes:
    body = struct.pack("!H", len(TOPIC)) + TOPIC.encode() + row
    length, size = b"", len(body)
    while True:  # MQTT's variable length: seven bits in each byte, the lowest first
        size, digit = divmod(size, 128)
        length += bytes((digit | (0x80 if size else 0),))
        if not size:
            return b"\x30" + length + body


PEERS = {
    "nats": Peer("nats-server", _nats_arguments, b'CONNECT {"verbose":false}\r\n', _nats_message),
    "mosquitto": Peer(
        "mosquitto", _mosquitto_arguments, b"\x10\x0f\0\x04MQTT\x04\x02\0\0\0\x03pub", _mosquitto_message
    ),
}
