"""Taps: a sample of the newest records of a dataset."""

from __future__ import annotations

import json
import threading

from tocsin.cluster.feed.tap import RecordRing, TapReader
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema


def reader(kind: DatasetKind, ring: RecordRing) -> TapReader:
    schema = Schema.of(id="STRING", n="INT")
    return TapReader(Dataset(DatasetName("D"), kind, schema, ("id",)), ring)


def lines(*records: tuple[str, int]) -> bytes:
    return b"\n".join(json.dumps({"id": name, "n": number}).encode() for name, number in records)


def numbers(records: list[bytes]) -> list[int]:
    return [json.loads(record)["n"] for record in records]


def test_tap_of_a_stream_opens_with_its_last_records_and_prefers_newest() -> None:
    ring = RecordRing()
    for number in range(0, 300, 3):
        ring.add(lines(("a", number), ("b", number + 1), ("c", number + 2)))
    tap = reader(DatasetKind.STREAM, ring)
    assert numbers(tap.opening()) == list(range(100, 300))
    assert tap.news(5) == []
    ring.add(lines(*(("a", number) for number in range(300, 310))))
    ring.add(lines(("a", 310)))
    assert numbers(tap.news(5)) == [306, 307, 308, 309, 310]
    assert tap.news(5) == []


def test_tap_of_keys_shows_the_newest_record_and_serves_keys_in_turn() -> None:
    ring = RecordRing()
    ring.add(lines(("ada", 1), ("bob", 2), ("ada", 3)))
    tap = reader(DatasetKind.KEYED, ring)
    assert numbers(tap.opening()) == [3, 2]
    ring.add(lines(("ada", 4), ("bob", 5), ("eve", 6)))
    assert numbers(tap.news(1)) == [4]
    ring.add(lines(("ada", 7), ("bob", 8)))
    assert numbers(tap.news(1)) == [8], "the key that waits longest comes first, with its newest record"
    assert numbers(tap.news(9)) == [6, 7]


def test_ring_of_records_for_taps_is_bounded() -> None:
    ring = RecordRing(limit_bytes=100)
    for number in range(1000):
        ring.add(lines(("a", number)))
    tap = reader(DatasetKind.STREAM, ring)
    kept = numbers(tap.opening())
    assert kept == list(range(1000 - len(kept), 1000)) and 1 < len(kept) < 6
    ring.add(lines(*(("a", number) for number in range(100))))
    kept = numbers(tap.news(1000))
    assert kept == list(range(100 - len(kept), 100)) and 1 < len(kept) < 6, "a body beyond the limit is cut"


def test_tap_reads_in_order_while_a_publisher_adds_records() -> None:
    ring = RecordRing(limit_bytes=10_000)
    stop = threading.Event()
    tap, received = reader(DatasetKind.STREAM, ring), 0

    def publish_until_stopped() -> None:
        number = 0
        while not stop.is_set():
            ring.add(lines(("a", number)))
            number += 1

    publishing = threading.Thread(target=publish_until_stopped)
    publishing.start()
    last = -1
    while received < 2_000:
        for number in numbers(tap.news(50)):
            assert number > last
            last, received = number, received + 1
    stop.set()
    publishing.join()
