"""The load of `bench matching`: publishers and subscribers of several topics of one broker, in a process of its own.

`python -m tocsin.benchmarks.shared.matching_load FILE` connects, warms the broker up, measures and prints one JSON
object. Each message has a frame of its own. With a rate, messages are due at fixed times; without one, each publisher
has a window of messages in flight, so that the broker has always work. Every subscriber must get every message of its
topic in order. The CPU time that the idle broker needs does not count.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path
from typing import Any

from tocsin.benchmarks.shared.topic_clients import CLIENTS, TopicClient
from tocsin.benchmarks.shared.topic_load import LAST_S, MARK_BYTES, NUMBER, READ_BYTES, process_cpu_s

WINDOW = 50
"""Messages in flight of each publisher without a rate."""
IDLE_S = 0.5


class MatchingLoad:
    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._poll = select.epoll()
        self._subscribers: dict[int, tuple[TopicClient, int]] = {}
        """Descriptor → connection and number of its topic."""
        self._tails: dict[int, bytes] = {}
        self._last: dict[int, int] = {}
        self._publishers: list[TopicClient] = []
        self._answers: dict[int, TopicClient] = {}
        self._sent: list[int] = []
        for number, topic in enumerate(task["topics"]):
            own = task | {"topic": topic, "acknowledged": True}
            for _ in range(task["subscribers"]):
                subscriber = CLIENTS["tocsin"](own)
                subscriber.subscribe()
                descriptor = self._register(subscriber)
                self._subscribers[descriptor] = (subscriber, number)
                self._tails[descriptor], self._last[descriptor] = subscriber.connection.buffer, 0
            publisher = CLIENTS["tocsin"](own)
            publisher.prepare_publishing()
            self._answers[self._register(publisher)] = publisher
            self._publishers.append(publisher)
            self._sent.append(0)
        self._padding = b"x" * (task["payload_bytes"] - MARK_BYTES)

    def _register(self, client: TopicClient) -> int:
        client.connection.socket.setblocking(False)
        self._poll.register(client.connection.socket, select.EPOLLIN)
        return client.connection.socket.fileno()

    def run(self) -> dict[str, float]:
        self._run(self._task["warm_up_s"])
        idle_cpu_per_s = self._idle_cpu_per_s()
        before, cpu_s, start_s = sum(self._sent), process_cpu_s(self._task["process"]), time.perf_counter()
        self._run(self._task["seconds"])
        took_s = time.perf_counter() - start_s
        cpu_s = max(1e-9, process_cpu_s(self._task["process"]) - cpu_s - took_s * idle_cpu_per_s)
        messages = sum(self._sent) - before
        return {"messages": messages, "cpu_s": cpu_s, "took_s": took_s, "messages_per_cpu_s": messages / cpu_s}

    def _idle_cpu_per_s(self) -> float:
        """CPU seconds that the broker uses in a second without messages."""
        cpu_s, start_s = process_cpu_s(self._task["process"]), time.perf_counter()
        while time.perf_counter() - start_s < IDLE_S:
            self._read(0.05)
        return (process_cpu_s(self._task["process"]) - cpu_s) / (time.perf_counter() - start_s)

    def _run(self, seconds: float) -> None:
        start_s = time.perf_counter()
        end_s, rate_per_s = start_s + seconds, self._task["rate_per_s"]
        due = 0
        while (now_s := time.perf_counter()) < end_s:
            if rate_per_s:
                while due < (now_s - start_s) * rate_per_s:
                    self._publish(due % len(self._publishers), 1)
                    due += 1
                self._read(0.001)
            else:
                for number, publisher in enumerate(self._publishers):
                    if (room := WINDOW - self._sent[number] + publisher.acknowledgements) > WINDOW // 2:
                        self._publish(number, room)
                self._read(0.01)
        self._await_last()

    def _publish(self, number: int, count: int) -> None:
        first = self._sent[number] + 1
        self._sent[number] += count
        payloads = [b"%b<%010d>" % (self._padding, mark) for mark in range(first, first + count)]
        publisher = self._publishers[number]
        frames = [publisher.encode(first + index, [payload]) for index, payload in enumerate(payloads)]
        publisher.connection.socket.setblocking(True)
        publisher.connection.socket.sendall(b"".join(frames))
        publisher.connection.socket.setblocking(False)

    def _read(self, wait_s: float) -> None:
        for descriptor, _ in self._poll.poll(wait_s):
            publisher = self._answers.get(descriptor)
            client = publisher or self._subscribers[descriptor][0]
            data = client.connection.socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the broker closed a connection")
            if publisher is not None:
                publisher.acknowledged(data)
            else:
                self._count(descriptor, self._tails[descriptor] + data)

    def _count(self, descriptor: int, data: bytes) -> None:
        last = self._last[descriptor]
        for text in NUMBER.findall(data):
            if int(text) != last + 1:
                raise AssertionError(f"message {int(text)} came after {last}")
            last += 1
        self._last[descriptor] = last
        self._tails[descriptor] = data[1 - MARK_BYTES :]

    def _await_last(self) -> None:
        deadline_s = time.perf_counter() + LAST_S
        while any(self._last[name] != self._sent[topic] for name, (_, topic) in self._subscribers.items()):
            self._read(0.01)
            if time.perf_counter() > deadline_s:
                raise AssertionError("not every message arrived")


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_bytes())
    print(json.dumps(MatchingLoad(task).run()), flush=True)


if __name__ == "__main__":
    main()
