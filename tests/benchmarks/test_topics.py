"""`bench topics`: a short run of all servers, its ratios, and a load that notices lost and repeated messages."""

from __future__ import annotations

import asyncio
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tocsin.benchmarks.shared.persistent_topics import FIGURES, RATIOS, PersistentRow, persistent_summary
from tocsin.benchmarks.shared.topic_load import TopicLoad
from tocsin.benchmarks.topics import Row, measure, summary, worst

_PUBLISHED = re.compile(rb"PUB \S+ (\d+)\r\n")


def test_short_run_delivers_and_acknowledges_every_message_in_order() -> None:
    rows = [Row(128, 1, acknowledged=True, burst=1), Row(1024, 3, acknowledged=False, burst=20)]
    figures = asyncio.run(measure(rows, seconds=0.2, rounds=1))
    assert figures["correct"] and len(figures["rows"]) == 2
    for row, figure in zip(rows, figures["rows"], strict=True):
        assert {"tocsin"} <= set(figure["servers"]) <= {"tocsin", "nats", "mosquitto"}
        assert figure["rate_per_s"] == row.rate_per_s
        for server in figure["servers"].values():
            assert 0.0 < server["p50_s"] <= server["p99_s"] <= server["p999_s"]
            assert server["deliveries_per_cpu_s"] > 0.0


def test_persistent_rows_acknowledge_every_message_in_flight() -> None:
    rows = [PersistentRow(128, 1), PersistentRow(1024, 20)]
    figures = asyncio.run(measure([], seconds=0.2, rounds=1, persistent_rows=rows))
    assert figures["correct"] and figures["rows"] == [] and len(figures["persistent"]) == 2
    for figure in figures["persistent"]:
        assert {"tocsin"} <= set(figure["servers"]) <= {"tocsin", "jetstream"}
        assert ("jetstream" in figure["servers"]) == ("ratio_rate_jetstream" in figure)
        for server in figure["servers"].values():
            assert 0.0 < server["acknowledged_p50_s"] <= server["acknowledged_p99_s"]
            assert server["messages_per_s"] > 0.0 and server["deliveries_per_cpu_s"] > 0.0


def test_persistent_ratios_are_those_of_the_same_round() -> None:
    def round_of(value: float) -> dict[str, Any]:
        return dict.fromkeys(FIGURES, value)

    measured = {"tocsin": [round_of(2.0), round_of(9.0), round_of(4.0)], "jetstream": [round_of(1.0)] * 3}
    figures = persistent_summary(PersistentRow(128, 1), measured)
    assert {figures[name] for name in RATIOS} == {4.0}
    assert "ratio_rate_jetstream" not in persistent_summary(PersistentRow(128, 1), {"tocsin": [round_of(2.0)]})


def test_ratios_compare_servers_of_the_same_round() -> None:
    def round_of(p50_s: float, rate: float) -> dict[str, Any]:
        more = {"p99_s": 1.0, "p999_s": 1.0, "cpu_s": 1.0, "late_s_p99": 0.0}
        return {"p50_s": p50_s, "deliveries_per_cpu_s": rate} | more

    row = Row(128, 1, acknowledged=False, burst=1)
    measured = {
        "tocsin": [round_of(2.0, 10.0), round_of(4.0, 30.0), round_of(6.0, 10.0)],
        "nats": [round_of(1.0, 10.0), round_of(4.0, 10.0), round_of(1.0, 10.0)],
    }
    figures = summary(row, measured)
    assert figures["ratio_p50_nats"] == 2.0 and figures["ratios_p50_nats"] == [1.0, 6.0]
    assert figures["ratio_rate_nats"] == 1.0 and figures["servers"]["tocsin"]["p50_s"] == 4.0
    better = figures | {"ratio_p50_nats": 1.0, "ratio_rate_nats": 2.0}
    assert worst([better, figures]) == {"ratio_p50_nats": 2.0, "ratio_rate_nats": 1.0, "ratio_rate_mosquitto": None}


@pytest.mark.parametrize(
    ("lost", "repeated", "problem"),
    [({7}, set(), "message 8 came after 6"), (set(), {9}, "message 9 came after 9"), (set(), set(), None)],
)
def test_load_fails_on_a_lost_or_repeated_message(lost: set[int], repeated: set[int], problem: str | None) -> None:
    with faulty_nats(lost, repeated) as port:
        task = {"server": "nats", "port": port, "topic": "t", "subscribers": 2, "payload_bytes": 64, "burst": 5}
        task |= {"acknowledged": False, "rate_per_s": 500, "warm_up_s": 0.04, "seconds": 0.06, "process": 1}
        with closing(TopicLoad(task)) as load:
            if problem is None:
                assert load.run()["deliveries"] == 60
            else:
                with pytest.raises(AssertionError, match=problem):
                    load.run()


@contextmanager
def faulty_nats(lost: set[int], repeated: set[int]) -> Iterator[int]:
    """A server that speaks as much of NATS as the load needs, and loses or repeats the messages with these numbers."""
    subscribers: list[Any] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"INFO {}\r\n")
            while line := self.rfile.readline():
                if line.startswith(b"SUB"):
                    subscribers.append(self.wfile)
                elif line.startswith(b"PING"):
                    self.wfile.write(b"PONG\r\n")
                elif found := _PUBLISHED.match(line):
                    payload = self.rfile.read(int(found[1]) + 2)
                    number = int(payload[-13:-3])
                    for _ in range(0 if number in lost else 2 if number in repeated else 1):
                        for subscriber in subscribers:
                            subscriber.write(b"MSG t 1 %d\r\n" % int(found[1]) + payload)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()
