"""The receiving process of `bench fanout` and `bench sessions`: many raw sockets that subscribe, read and count.

`python -m tocsin.benchmarks.shared.sink FILE` is a process of its own, so that its CPU time is not the server's. It
counts the mark that each result carries, the same for all servers. On a few sockets it checks that no result is missing
or out of order. At the end it checks the number of results and the last mark on every socket.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import select
import ssl
import struct
import sys
from pathlib import Path
from typing import Any

from tocsin.benchmarks.shared.sink_acknowledgements import Acknowledger, BrokerAcknowledger, MqttAcknowledger
from tocsin.benchmarks.shared.sink_connections import (
    SinkConnection,
    connect_to_broker,
    connect_to_mosquitto,
    connect_to_nats,
)

MARK = b'"mark":"'
DIGITS = 10
NUMBER = re.compile(rb'"mark":"(\d{10})"')
MARK_BYTES = len(MARK) + 12
"""Bytes that may hold a mark whose number is not complete yet."""
CHECKED = 5
"""Sockets whose results are checked one by one."""
CONNECT_TOGETHER = 250
"""Sessions that connect at the same time."""
READ_BYTES = 256 << 10
COUNTER = struct.Struct("<qq")
"""Deliveries and reads so far, in shared memory."""


class Sink:
    """Counts deliveries into shared memory that the benchmark reads."""

    def __init__(
        self, connections: list[SinkConnection], counter: mmap.mmap, checked: int, acknowledged: str | None = None
    ) -> None:
        """`acknowledged` names the protocol in which this sink acknowledges results."""
        self._counter = counter
        self._poll = select.epoll()
        self._sockets = {connection.socket.fileno(): connection.socket for connection in connections}
        self._tails = {connection.socket.fileno(): connection.buffer for connection in connections}
        """The last bytes of each socket, which may begin a mark."""
        self._last_numbers = dict.fromkeys(list(self._sockets)[:checked], -1)
        self._counts = dict.fromkeys(self._sockets, 0)
        self._last_marks = dict.fromkeys(self._sockets, b"")
        self._acknowledgers: dict[int, Acknowledger] = {}
        if acknowledged is not None:
            kind = BrokerAcknowledger if acknowledged == "broker" else MqttAcknowledger
            self._acknowledgers = {descriptor: kind() for descriptor in self._sockets}
        self._total = self._reads = 0
        for descriptor, opened in self._sockets.items():
            opened.setblocking(False)
            self._poll.register(descriptor, select.EPOLLIN)

    def run(self, stop: int) -> None:
        """Count until a line arrives in the pipe `stop`, or the pipe is closed. The line has what `check` expects."""
        self._poll.register(stop, select.EPOLLIN | select.EPOLLHUP)
        while True:
            for descriptor, _ in self._poll.poll(1.0):
                if descriptor == stop:
                    if line := os.read(stop, 4096):
                        self.check(**json.loads(line))
                    return
                self._read(descriptor)
            self._counter[: COUNTER.size] = COUNTER.pack(self._total, self._reads)

    def check(self, each: int, last: int) -> None:
        """Raise unless every socket received `each` results, the last of them with the mark `last`."""
        mark = b"%010d" % last
        wrong = [
            (count, self._last_marks[descriptor])
            for descriptor, count in self._counts.items()
            if count != each or self._last_marks[descriptor] != mark
        ]
        if wrong:
            raise AssertionError(f"{len(wrong)} sockets have not {each} results until {mark!r}, the first: {wrong[0]}")

    def _read(self, descriptor: int) -> None:
        """Read a socket once; a TLS socket until nothing is left, because epoll does not see its decrypted bytes."""
        opened = self._sockets[descriptor]
        while True:
            try:
                data = opened.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reads += 1
            self._count(descriptor, self._tails[descriptor] + data)
            if self._acknowledgers and (answer := self._acknowledgers[descriptor].feed(data)):
                opened.setblocking(True)
                opened.sendall(answer)
                opened.setblocking(False)
            if not isinstance(opened, ssl.SSLSocket):
                return

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
        if marks:
            self._counts[descriptor] += marks
            number_at = data.rfind(MARK, 0, end) + len(MARK)
            self._last_marks[descriptor] = data[number_at : number_at + DIGITS]
        if descriptor in self._last_numbers:
            for match in NUMBER.finditer(data[:end]):
                number, last_number = int(match[1]), self._last_numbers[descriptor]
                if number != last_number + 1:
                    raise AssertionError(f"result {number} came after {last_number}")
                self._last_numbers[descriptor] = number


def connected(task: dict[str, Any]) -> list[SinkConnection]:
    port = task["port"]
    if task["kind"] == "nats":
        return [connect_to_nats(port) for _ in range(task["sessions"])]
    if task["kind"] == "mosquitto":
        quality = int(task.get("acknowledged", False))
        return [connect_to_mosquitto(port, number, quality) for number in range(task["sessions"])]
    tokens = Path(task["tokens"]).read_text(encoding="utf-8").split()
    sources = task.get("sources") or [""]
    choices = task["subscriptions"]
    sessions = [
        (token, choices[index % len(choices)], sources[index % len(sources)]) for index, token in enumerate(tokens)
    ]
    connections: list[SinkConnection] = []
    for start in range(0, len(sessions), CONNECT_TOGETHER):
        connections += connect_to_broker(port, sessions[start : start + CONNECT_TOGETHER], task.get("certificate"))
    return connections


def main() -> None:
    """Read a JSON file with kind, port, counter and tokens, subscriptions, sources (broker) or sessions (peers)."""
    task = json.loads(Path(sys.argv[1]).read_bytes())
    connections = connected(task)
    with Path(task["counter"]).open("r+b") as file:
        counter = mmap.mmap(file.fileno(), COUNTER.size)
    acknowledged = task["kind"] if task.get("acknowledged") else None
    sink = Sink(connections, counter, task.get("checked", CHECKED), acknowledged)
    print("ready", flush=True)
    sink.run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
