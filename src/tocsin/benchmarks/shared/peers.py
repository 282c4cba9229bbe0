"""The peers of `bench fanout`: nats-server and mosquitto, each with one publisher connection.

The publisher sends a burst in one write. A peer that is not installed is skipped. The receiving side is
`shared/sink.py`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, repeat
from pathlib import Path

from tocsin.benchmarks.shared.machine import find_program
from tocsin.benchmarks.shared.processes import child_process
from tocsin.benchmarks.shared.sink_connections import TOPIC

Publish = Callable[[list[bytes]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Peer:
    program: str
    arguments: Callable[[int, Path], list[str]]
    """The program's arguments for a port and a folder for its configuration."""
    connect: bytes
    """The publisher's first message."""
    encode: Callable[[bytes, int], bytes]
    """Makes the publisher's message from a payload and a packet number; 0 for a message without acknowledgement."""

    @asynccontextmanager
    async def run(self, folder: Path, *, acknowledged: bool = False) -> AsyncIterator[tuple[int, int, Publish] | None]:
        """Start the server; yield process id, port and a function that publishes, or None if it is not installed.

        The function sends its payloads in one write. With `acknowledged`, publisher and sink use acknowledgements.
        """
        path = find_program(self.program)
        if path is None:
            yield None
            return
        port = free_port()
        quiet = asyncio.subprocess.DEVNULL
        async with child_process(path, *self.arguments(port, folder), stdout=quiet, stderr=quiet) as process:
            reader, writer = await await_port(port)
            discarding = asyncio.create_task(_discard(reader))
            writer.write(self.connect)
            packets = cycle(range(1, 1 << 16)) if acknowledged else repeat(0)

            async def publish(payloads: list[bytes]) -> None:
                writer.write(b"".join(self.encode(payload, next(packets)) for payload in payloads))
                await writer.drain()

            yield process.pid, port, publish
            discarding.cancel()
            writer.close()


async def _discard(reader: asyncio.StreamReader) -> None:
    """Read the server's answers to the publisher, so that its buffers stay empty."""
    while await reader.read(1 << 16):
        pass


async def await_port(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect within 4 s: the server has just been started."""
    for _ in range(200):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.transport.set_write_buffer_limits(high=1 << 20)
        return reader, writer
    raise RuntimeError(f"no server listens on port {port}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _nats_arguments(port: int, _folder: Path) -> list[str]:
    return ["-a", "127.0.0.1", "-p", str(port)]


def _nats_message(payload: bytes, _packet: int) -> bytes:
    return b"PUB %b %d\r\n%b\r\n" % (TOPIC.encode(), len(payload), payload)


def _mosquitto_arguments(port: int, folder: Path) -> list[str]:
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nlog_type none\n"
        "max_queued_messages 0\nmax_inflight_messages 0\n",
        encoding="utf-8",
    )
    return ["-c", str(configuration)]


def _mosquitto_message(payload: bytes, packet: int) -> bytes:
    number = struct.pack("!H", packet) if packet else b""
    body = struct.pack("!H", len(TOPIC)) + TOPIC.encode() + number + payload
    length, size = b"", len(body)
    while True:  # MQTT's variable length: seven bits in each byte, the lowest first
        size, digit = divmod(size, 128)
        length += bytes((digit | (0x80 if size else 0),))
        if not size:
            return (b"\x32" if packet else b"\x30") + length + body


PEERS = {
    "nats": Peer("nats-server", _nats_arguments, b'CONNECT {"verbose":false}\r\n', _nats_message),
    "mosquitto": Peer(
        "mosquitto", _mosquitto_arguments, b"\x10\x0f\0\x04MQTT\x04\x02\0\0\0\x03pub", _mosquitto_message
    ),
}
