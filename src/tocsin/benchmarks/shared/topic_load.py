"""The load of `bench topics`: one publisher that sends at due times, and its subscribers, in a process of its own.

`python -m tocsin.benchmarks.shared.topic_load FILE` connects, warms the server up, measures and prints one JSON object.
It is an open loop: a burst is sent when it is due, whatever the answers do, and a latency counts from the due time. The
process polls without sleeping, so that waking up costs no server anything. Each payload ends with its number; every
socket must get every number in order, and the publisher every acknowledgement.
"""

from __future__ import annotations

import gc
import json
import re
import select
import sys
import time
from pathlib import Path
from typing import Any

from tocsin.benchmarks.shared.topic_clients import CLIENTS, TopicClient

NUMBER = re.compile(rb"<(\d{10})>")
MARK_BYTES = 12
READ_BYTES = 256 << 10
LAST_S = 20.0
"""Seconds in which the last message must arrive."""
SHARES = {"p50_s": 0.5, "p99_s": 0.99, "p999_s": 0.999}


class TopicLoad:
    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        client = CLIENTS[task["server"]]
        self._subscribers: dict[int, TopicClient] = {}
        self._tails: dict[int, bytes] = {}
        self._last: dict[int, int] = {}
        """The last number on each subscriber's socket."""
        self._poll = select.epoll()
        for _ in range(task["subscribers"]):
            subscriber = client(task)
            subscriber.subscribe()
            descriptor = self._register(subscriber)
            self._subscribers[descriptor] = subscriber
            self._tails[descriptor], self._last[descriptor] = subscriber.connection.buffer, 0
        self._publisher = client(task)
        self._publisher.prepare_publishing()
        self._register(self._publisher)
        self._publisher.connection.socket.setblocking(True)
        self._padding = b"x" * (task["payload_bytes"] - MARK_BYTES)
        self._sent = 0
        self._delivered = 0
        self._due_s: list[float] = [0.0]
        """Due time of each message, by number."""
        self._latencies_s: list[float] = []
        self._late_s: list[float] = []
        """How late each burst left this process."""

    def _register(self, client: TopicClient) -> int:
        client.connection.socket.setblocking(False)
        self._poll.register(client.connection.socket, select.EPOLLIN)
        return client.connection.socket.fileno()

    def run(self) -> dict[str, Any]:
        self._run(self._task["warm_up_s"])
        self._latencies_s.clear()
        self._late_s.clear()
        gc.disable()
        delivered, sent, cpu_s = self._delivered, self._sent, process_cpu_s(self._task["process"])
        started_s = time.perf_counter()
        self._run(self._task["seconds"])
        took_s = time.perf_counter() - started_s
        cpu_s = process_cpu_s(self._task["process"]) - cpu_s
        deliveries = self._delivered - delivered
        figures = {"messages": self._sent - sent, "deliveries": deliveries, "took_s": took_s, "cpu_s": cpu_s}
        figures |= {"deliveries_per_cpu_s": deliveries / max(cpu_s, 1e-9)}
        figures |= quantiles(self._latencies_s) | {"late_s_p99": quantiles(self._late_s)["p99_s"]}
        return figures

    def close(self) -> None:
        for client in (self._publisher, *self._subscribers.values()):
            client.connection.socket.close()
        self._poll.close()

    def _run(self, seconds: float) -> None:
        """Send bursts for a while, then wait for the last delivery and acknowledgement."""
        burst, clock = self._task["burst"], time.perf_counter
        interval_s = burst / self._task["rate_per_s"]
        publisher, poll = self._publisher.connection.socket, self._poll.poll
        bursts = max(1, int(seconds / interval_s))
        start_s = clock() + 0.01
        for number in range(bursts):
            due_s = start_s + number * interval_s
            data = self._next_burst(burst, due_s)
            while (now_s := clock()) < due_s:
                self._read(poll(0))
            publisher.sendall(data)
            self._late_s.append(now_s - due_s)
            self._read(poll(0))
        self._await_last()

    def _await_last(self) -> None:
        """Wait for the last delivery and acknowledgement."""
        deadline_s = time.perf_counter() + LAST_S
        while not self._is_complete():
            self._read(self._poll.poll(0))
            if time.perf_counter() > deadline_s:
                raise AssertionError(
                    f"{self._delivered:,} of {self._sent * len(self._subscribers):,} deliveries and "
                    f"{self._publisher.acknowledgements:,} of {self._sent:,} acknowledgements arrived"
                )

    def _next_burst(self, burst: int, due_s: float) -> bytes:
        first = self._sent + 1
        self._sent += burst
        self._due_s += [due_s] * burst
        payloads = [b"%b<%010d>" % (self._padding, number) for number in range(first, first + burst)]
        return self._publisher.encode(first, payloads)

    def _is_complete(self) -> bool:
        if self._task["acknowledged"] and self._publisher.acknowledgements != self._sent:
            return False
        return all(last == self._sent for last in self._last.values())

    def _read(self, ready: list[tuple[int, int]]) -> None:
        for descriptor, _ in ready:
            subscriber = self._subscribers.get(descriptor)
            client = subscriber or self._publisher
            data = client.connection.socket.recv(READ_BYTES)
            now_s = time.perf_counter()
            if not data:
                raise ConnectionError("the server closed a connection")
            if subscriber is None:
                self._on_answer(data, now_s)
            else:
                self._count(descriptor, self._tails[descriptor] + data, now_s)

    def _on_answer(self, data: bytes, now_s: float) -> None:
        """The server has answered to the publisher."""
        self._publisher.acknowledged(data)

    def _count(self, descriptor: int, data: bytes, now_s: float) -> None:
        """Check and time the numbers in these bytes. The tail is too short for a whole mark."""
        last, due_s = self._last[descriptor], self._due_s
        for text in NUMBER.findall(data):
            number = int(text)
            if number != last + 1:
                raise AssertionError(f"message {number} came after {last}")
            last = number
            self._latencies_s.append(now_s - due_s[number])
            self._delivered += 1
        self._last[descriptor] = last
        self._tails[descriptor] = data[1 - MARK_BYTES :]


def quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in SHARES.items()}


def process_cpu_s(process: int) -> float:
    """CPU time of all threads of a process, in nanoseconds' resolution where the kernel counts so."""
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9
    except OSError:
        import psutil

        times = psutil.Process(process).cpu_times()
        return float(times.user + times.system)


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_bytes())
    print(json.dumps(TopicLoad(task).run()), flush=True)


if __name__ == "__main__":
    main()
