"""The subscribers of `bench fanout` and `bench sessions`: many raw sockets in one process that reads and counts.

Runs as a process of its own (`python -m tocsin.benchmarks.shared.sink`), so that its CPU time is its own. Speaks just
enough of three protocols to subscribe: a broker's WebSocket, NATS, MQTT. What it receives it only counts, by a mark
that each result carries, the same for all three; on a few sockets it also checks that nothing is missing or out of
order.
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
CHECKED = 5
"""Sockets whose results are checked one by one."""
AT_ONCE = 250
"""Sessions that connect together."""
TOPIC = "Hot"
_READ_BYTES = 256 << 10


def frame(payload: bytes) -> bytes:
    """Masked with zeros, which leaves the payload as it is."""
    size = len(payload)
    head = bytes((0x81, 0x80 | size)) if size < 126 else b"\x81\xfe" + struct.pack("!H", size)
    return head + b"\0\0\0\0" + payload


class Line:
    """A blocking socket with a buffer, for the conversation before the counting."""

    def __init__(self, port: int, source: str = "") -> None:
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=60, source_address=(source, 0) if source else None
        )
        self.rest = b""

    def until(self, found: Callable[[bytes], int]) -> bytes:
        """Bytes up to where `found` says; -1 for not yet."""
        while (end := found(self.rest)) < 0:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError(f"the server hung up after {self.rest[:200]!r}")
            self.rest += data
        taken, self.rest = self.rest[:end], self.rest[end:]
        return taken

    def message(self) -> dict[str, Any]:
        """One short text frame of a broker."""

        def end(data: bytes) -> int:
            if len(data) < 4:
                return -1
            size, head = data[1], 2
            if size == 126:
                size, head = int.from_bytes(data[2:4], "big"), 4
            return head + size if len(data) >= head + size else -1

        data = self.until(end)
        found: dict[str, Any] = json.loads(data[4:] if data[1] == 126 else data[2:])
        return found

    def answers(self, count: int) -> None:
        """Read that many answers; raise if one is a refusal."""
        while count:
            message = self.message()
            if message.get("type") in ("refused", "closing"):
                raise ConnectionError(f"the broker refused: {message}")
            count -= "id" in message


def after(mark: bytes) -> Callable[[bytes], int]:
    return lambda data: data.find(mark) + len(mark) if mark in data else -1


def connect_brokers(port: int, wanted: list[tuple[str, list[dict[str, Any]], str]]) -> list[Line]:
    """Sessions by (token, subscriptions, source address). Each step is taken by all of them before the next."""
    lines = [Line(port, source) for _, _, source in wanted]
    for line in lines:
        key = base64.b64encode(os.urandom(16)).decode()
        line.socket.sendall(
            f"GET /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
    for line in lines:
        if b" 101 " not in line.until(after(b"\r\n\r\n")):
            raise ConnectionError("the broker refused the handshake")
    for line, (token, subscriptions, _) in zip(lines, wanted, strict=True):
        requests: list[dict[str, Any]] = [{"op": "login", "id": 1, "token": token}]
        requests += [{"op": "subscribe", "id": number} | one for number, one in enumerate(subscriptions, 2)]
        line.socket.sendall(b"".join(frame(json.dumps(request).encode()) for request in requests))
    for line, (_, subscriptions, _) in zip(lines, wanted, strict=True):
        line.answers(1 + len(subscriptions))
    return lines


def connect_nats(port: int) -> Line:
    line = Line(port)
    line.until(after(b"\r\n"))
    line.socket.sendall(b'CONNECT {"verbose":false}\r\nSUB ' + TOPIC.encode() + b" 1\r\nPING\r\n")
    line.until(after(b"PONG\r\n"))
    return line


def connect_mosquitto(port: int, number: int) -> Line:
    line = Line(port)
    name = f"s{number}".encode()
    body = b"\0\x04MQTT\x04\x02\0\0" + struct.pack("!H", len(name)) + name
    line.socket.sendall(bytes((0x10, len(body))) + body)
    line.until(lambda data: 4 if len(data) >= 4 else -1)
    topic = TOPIC.encode()
    body = b"\0\x01" + struct.pack("!H", len(topic)) + topic + b"\0"
    line.socket.sendall(bytes((0x82, len(body))) + body)
    line.until(lambda data: 5 if len(data) >= 5 else -1)
    return line


class Sink:
    """Counts what arrives into eight bytes of shared memory that the benchmark watches."""

    def __init__(self, lines: list[Line], counter: mmap.mmap, checked: int) -> None:
        self._counter = counter
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._tails: dict[int, bytes] = {}
        self._numbers: dict[int, int] = {}
        self.total = 0
        for index, line in enumerate(lines):
            line.socket.setblocking(False)
            place = line.socket.fileno()
            self._sockets[place] = line.socket
            self._tails[place] = line.rest
            if index < checked:
                self._numbers[place] = -1
            self._poll.register(place, select.EPOLLIN)

    def run(self, stop: int) -> None:
        """Until the pipe `stop` is closed."""
        self._poll.register(stop, select.EPOLLIN | select.EPOLLHUP)
        keep = len(MARK) + 12
        while True:
            for place, _ in self._poll.poll(1.0):
                if place == stop:
                    return
                try:
                    data = self._sockets[place].recv(_READ_BYTES)
                except BlockingIOError:
                    continue
                if not data:
                    raise ConnectionError("the server hung up")
                self._count(place, self._tails[place] + data, keep)
            self._counter[:8] = struct.pack("<q", self.total)

    def _count(self, place: int, data: bytes, keep: int) -> None:
        """A mark at the very end may be cut: what follows the last whole one is looked at again."""
        found = data.count(MARK)
        end = len(data)
        if found and (last := data.rfind(MARK)) > end - keep:
            found -= 1  # its number may not be whole yet
            end = last
            self._tails[place] = data[last:]
        else:
            self._tails[place] = data[-(len(MARK) - 1) :]
        self.total += found
        if place in self._numbers:
            self._check(place, data[:end])

    def _check(self, place: int, data: bytes) -> None:
        for match in NUMBER.finditer(data):
            number = int(match[1])
            if number != self._numbers[place] + 1:
                raise AssertionError(f"result {number} came after {self._numbers[place]}")
            self._numbers[place] = number


def main() -> None:
    """Takes a JSON file: kind, port, tokens or sessions, subscriptions, sources, counter."""
    given = json.loads(Path(sys.argv[1]).read_bytes())
    lines: list[Line] = []
    if given["kind"] == "broker":
        tokens = Path(given["tokens"]).read_text(encoding="utf-8").split()
        sources = given.get("sources") or [""]
        choices = given["subscriptions"]
        wanted = [
            (token, choices[index % len(choices)], sources[index % len(sources)]) for index, token in enumerate(tokens)
        ]
        for start in range(0, len(wanted), AT_ONCE):
            lines += connect_brokers(given["port"], wanted[start : start + AT_ONCE])
    elif given["kind"] == "nats":
        lines = [connect_nats(given["port"]) for _ in range(given["sessions"])]
    else:
        lines = [connect_mosquitto(given["port"], number) for number in range(given["sessions"])]
    with Path(given["counter"]).open("r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
    sink = Sink(lines, counter, given.get("checked", CHECKED))
    print("ready", flush=True)
    sink.run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
