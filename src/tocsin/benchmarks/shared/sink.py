"""The receiving process of `bench fanout` and `bench sessions`: many raw sockets that subscribe, read and count.

`python -m tocsin.benchmarks.shared.sink FILE` is a process of its own, so that its CPU time is not the server's. The
sink uses just enough of three protocols to subscribe: the broker's WebSocket, NATS and MQTT. It counts the mark that
each result carries, the same for all three. On a few sockets it checks that no result is missing or out of order.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import re
import select
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = b'"mark":"'
NUMBER = re.compile(rb'"mark":"(\d{10})"')
MARK_BYTES = len(MARK) + 12
"""Bytes that may hold a mark whose number is not complete yet."""
CHECKED = 5
"""Sockets whose results are checked one by one."""
CONNECT_TOGETHER = 250
"""Sessions that connect at the same time."""
TOPIC = "Hot"
READ_BYTES = 256 << 10


class SinkConnection:
    """A blocking socket with a buffer, for the requests and answers before the counting."""

    def __init__(self, port: int, source: str = "") -> None:
        """`source` is the local address; empty for any."""
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=60, source_address=(source, 0) if source else None
        )
        self.buffer = b""

    def read_until(self, end_of: Callable[[bytes], int]) -> bytes:
        """Read until `end_of` returns a length instead of -1, and return that many bytes."""
        while (end := end_of(self.buffer)) < 0:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError(f"the server closed the connection after {self.buffer[:200]!r}")
            self.buffer += data
        taken, self.buffer = self.buffer[:end], self.buffer[end:]
        return taken

    def read_through(self, mark: bytes) -> bytes:
        return self.read_until(lambda data: data.find(mark) + len(mark) if mark in data else -1)

    def read_bytes(self, count: int) -> bytes:
        return self.read_until(lambda data: count if len(data) >= count else -1)

    def read_answers(self, count: int) -> None:
        """Read this many answers of a broker; raise if one is a refusal."""
        while count:
            size = self.read_bytes(2)[1]
            if size == 126:
                size = int.from_bytes(self.read_bytes(2), "big")
            message = json.loads(self.read_bytes(size))
            if message.get("type") in ("refused", "closing"):
                raise ConnectionError(f"the broker refused: {message}")
            count -= "id" in message


def connect_to_broker(port: int, sessions: list[tuple[str, list[dict[str, Any]], str]]) -> list[SinkConnection]:
    """Open sessions, given as (token, subscriptions, source address). All take each step before any takes the next."""
    connections = [SinkConnection(port, source) for _, _, source in sessions]
    for connection in connections:
        key = base64.b64encode(os.urandom(16)).decode()
        connection.socket.sendall(
            f"GET /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
    for connection in connections:
        if b" 101 " not in connection.read_through(b"\r\n\r\n"):
            raise ConnectionError("the broker refused the handshake")
    for connection, (token, subscriptions, _) in zip(connections, sessions, strict=True):
        requests: list[dict[str, Any]] = [{"op": "login", "id": 1, "token": token}]
        requests += [{"op": "subscribe", "id": number} | chosen for number, chosen in enumerate(subscriptions, 2)]
        connection.socket.sendall(b"".join(_text_frame(json.dumps(request).encode()) for request in requests))
    for connection, (_, subscriptions, _) in zip(connections, sessions, strict=True):
        connection.read_answers(1 + len(subscriptions))
    return connections


def _text_frame(payload: bytes) -> bytes:
    """A WebSocket text frame. Its mask is zeros, which leaves the payload unchanged."""
    size = len(payload)
    head = bytes((0x81, 0x80 | size)) if size < 126 else b"\x81\xfe" + struct.pack("!H", size)
    return head + b"\0\0\0\0" + payload


def connect_to_nats(port: int) -> SinkConnection:
    connection = SinkConnection(port)
    connection.read_through(b"\r\n")
    connection.socket.sendall(b'CONNECT {"verbose":false}\r\nSUB ' + TOPIC.encode() + b" 1\r\nPING\r\n")
    connection.read_through(b"PONG\r\n")
    return connection


def connect_to_mosquitto(port: int, number: int) -> SinkConnection:
    connection = SinkConnection(port)
    name = f"s{number}".encode()
    body = b"\0\x04MQTT\x04\x02\0\0" + struct.pack("!H", len(name)) + name
    connection.socket.sendall(bytes((0x10, len(body))) + body)
    connection.read_bytes(4)
    topic = TOPIC.encode()
    body = b"\0\x01" + struct.pack("!H", len(topic)) + topic + b"\0"
    connection.socket.sendall(bytes((0x82, len(body))) + body)
    connection.read_bytes(5)
    return connection


class Sink:
    """Counts deliveries into eight bytes of shared memory that the benchmark reads."""

    def __init__(self, connections: list[SinkConnection], counter: mmap.mmap, checked: int) -> None:
        self._counter = counter
        self._poll = select.epoll()
        self._sockets = {connection.socket.fileno(): connection.socket for connection in connections}
        self._tails = {connection.socket.fileno(): connection.buffer for connection in connections}
        """The last bytes of each socket, which may begin a mark."""
        self._last_numbers = dict.fromkeys(list(self._sockets)[:checked], -1)
        self._total = 0
        for descriptor, opened in self._sockets.items():
            opened.setblocking(False)
            self._poll.register(descriptor, select.EPOLLIN)

    def run(self, stop: int) -> None:
        """Count until the pipe `stop` is closed."""
        self._poll.register(stop, select.EPOLLIN | select.EPOLLHUP)
        while True:
            for descriptor, _ in self._poll.poll(1.0):
                if descriptor == stop:
                    return
                try:
                    data = self._sockets[descriptor].recv(READ_BYTES)
                except BlockingIOError:
                    continue
                if not data:
                    raise ConnectionError("the server closed the connection")
                self._count(descriptor, self._tails[descriptor] + data)
            self._counter[:8] = struct.pack("<q", self._total)

    def _count(self, descriptor: int, data: bytes) -> None:
        """Count complete marks. An incomplete mark at the end stays in the tail until more data arrives."""
        marks, end = data.count(MARK), len(data)
        if marks and (last := data.rfind(MARK)) > end - MARK_BYTES:
            marks -= 1
            end = last
            self._tails[descriptor] = data[last:]
        else:
            self._tails[descriptor] = data[-(len(MARK) - 1) :]
        self._total += marks
        if descriptor in self._last_numbers:
            for match in NUMBER.finditer(data[:end]):
                number, last_number = int(match[1]), self._last_numbers[descriptor]
                if number != last_number + 1:
                    raise AssertionError(f"result {number} came after {last_number}")
                self._last_numbers[descriptor] = number


def main() -> None:
    """Read a JSON file with kind, port, counter and tokens, subscriptions, sources (broker) or sessions (peers)."""
    task = json.loads(Path(sys.argv[1]).read_bytes())
    port = task["port"]
    connections: list[SinkConnection] = []
    if task["kind"] == "broker":
        tokens = Path(task["tokens"]).read_text(encoding="utf-8").split()
        sources = task.get("sources") or [""]
        choices = task["subscriptions"]
        sessions = [
            (token, choices[index % len(choices)], sources[index % len(sources)]) for index, token in enumerate(tokens)
        ]
        for start in range(0, len(sessions), CONNECT_TOGETHER):
            connections += connect_to_broker(port, sessions[start : start + CONNECT_TOGETHER])
    elif task["kind"] == "nats":
        connections = [connect_to_nats(port) for _ in range(task["sessions"])]
    else:
        connections = [connect_to_mosquitto(port, number) for number in range(task["sessions"])]
    with Path(task["counter"]).open("r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
    sink = Sink(connections, counter, task.get("checked", CHECKED))
    print("ready", flush=True)
    sink.run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
