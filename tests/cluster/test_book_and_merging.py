"""Rates, the book of subscriptions and the choice of files to merge: the data cluster's pure parts."""

from __future__ import annotations

import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.book import Rates, SubscriptionBook
from tocsin.cluster.catalog import StoredFile
from tocsin.cluster.store import numbered_rows
from tocsin.cluster.store.merging import FAN_IN, TARGET_BYTES, files_to_merge, latest_per_key
from tocsin.cluster.store.sizes import json_sizes
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import BrokerId, ChannelName, DatasetName, SubscriptionId
from tocsin.model.schema import Schema
from tocsin.model.subscription import fingerprint


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_steady_stream_of_results_has_its_rate() -> None:
    rates = Rates(window_s=60)
    for second in range(0, 1200, 10):
        rates.add(numbers(7), numbers(5_000), float(second))
    assert rates.of(numbers(7), 1195.0)[0] == pytest.approx(500, rel=0.1)
    assert rates.of(numbers(8), 1195.0)[0] == 0


def test_rate_decays_and_a_clock_step_back_does_not_raise_it() -> None:
    rates = Rates(window_s=60)
    rates.add(numbers(1, 2), numbers(600, 0), 1000.0)
    assert rates.of(numbers(1), 1000.0)[0] == 10
    assert rates.of(numbers(1), 1060.0)[0] == pytest.approx(10 / math.e)
    assert rates.of(numbers(1), 0.0)[0] == 10
    rates.forget(numbers(1))
    assert rates.of(numbers(1, 2), 1000.0).tolist() == [0, 0]


steps = st.lists(
    st.tuples(st.sampled_from(["add", "hold", "release", "remove"]), st.sets(st.integers(0, 30), max_size=6)),
    max_size=30,
)


@given(steps, st.booleans(), st.integers(0, 4))
def test_book_behaves_like_a_set_of_held_numbers(
    steps: list[tuple[str, set[int]]], look_between: bool, compact_least: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbered_rows, "COMPACT_LEAST", compact_least)
        book, north, known, held = SubscriptionBook(), BrokerId("north"), set[int](), set[int]()
        ended: set[int] = set()
        for step, values in steps:
            if step == "add":  # a number is never given twice
                for number in values - known - ended:
                    book.add(number, SubscriptionId(f"{number:032x}"))
                known |= values - ended
            elif step == "hold":
                book.hold(north, values)
                held |= values & known
            elif step == "release":
                book.release(north, values)
                held -= values
            else:
                book.remove(values)
                ended |= values & known
                known, held = known - values, held - values
            if look_between:
                assert book.held_by(north).tolist() == sorted(held)
        asked = numbers(*range(40))
        assert book.known(asked).tolist() == [value in known for value in range(40)]
        flags, ids = book.named(asked, north)
        assert flags.tolist() == [value in held for value in range(40)]
        assert ids == [f"{number:032x}" for number in sorted(held)]
        assert book.fingerprint(north) == (len(held), fingerprint(map(SubscriptionId, ids)))
        assert len(book) == len(known)


def test_book_returns_ids_and_holders() -> None:
    book = SubscriptionBook()
    north, south = BrokerId("north"), BrokerId("south")
    ids = [SubscriptionId(f"{number:032x}") for number in range(5)]
    for number, name in enumerate(ids):
        book.add(number, name)
    book.hold(north, [0, 1, 2])
    book.hold(south, [2, 3])
    assert len(book) == 5
    held, names = book.named(numbers(1, 3, 4), north)
    assert held.tolist() == [True, False, False] and names == [ids[1]]
    assert book.held(numbers(0, 2, 3, 4), lambda _: True).tolist() == [True, True, True, False]
    assert book.held(numbers(0, 2, 3, 4), lambda broker: broker == south).tolist() == [False, True, True, False]
    book.release(north, [2])
    book.remove([3])
    assert (book.held_by(north).tolist(), book.held_by(south).tolist()) == ([0, 1], [2])
    assert book.known(numbers(2, 3, 99)).tolist() == [True, False, False]
    unknown = BrokerId("unknown")
    assert book.held_by(unknown).tolist() == [] and book.named(numbers(1), unknown)[1] == []


def test_book_loses_nothing_when_read_while_it_changes() -> None:
    """A reader in any thread applies the changes that are still pending."""
    book, north, count = SubscriptionBook(), BrokerId("north"), 1_000
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            assert book.held(numbers(0), lambda _: True).size == 1
            assert len(book) <= count

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as threads:
            looking = [threads.submit(look) for _ in range(2)]
            for number in range(count):
                book.add(number, SubscriptionId(f"{number:032x}"))
                book.hold(north, [number])
            done.set()
            for reader in looking:
                reader.result()
    finally:
        done.set()
        sys.setswitchinterval(switch_s)
    assert (len(book), len(book.held_by(north))) == (count, count)


def stored(first: int, size: int = 1000, at_s: float = 0.0) -> StoredFile:
    return StoredFile(f"f{first}", 1, size, first, first, id=first, at_s=at_s, generation=0)


def test_small_neighbours_are_merged_and_large_files_are_kept() -> None:
    small = [stored(number) for number in range(FAN_IN)]
    assert files_to_merge(small) == small
    assert files_to_merge(small[1:]) == []
    assert files_to_merge([stored(number, TARGET_BYTES) for number in range(50)]) == []


def test_large_file_between_small_ones_is_not_rewritten() -> None:
    files = [stored(number, 40_000_000 if number == 4 else 1000) for number in range(13)]
    merged = files_to_merge(files, fan_in=8)
    assert [file.first for file in merged] == list(range(5, 13))


@given(st.lists(st.sampled_from((1_000, 300_000, 9_000_000, 70_000_000)), min_size=9, max_size=60), st.booleans())
def test_merged_files_are_neighbours_so_that_order_is_kept(sizes: list[int], keyed: bool) -> None:
    files = [stored(number, size) for number, size in enumerate(sizes)]
    merged = files_to_merge(files, keyed=keyed, fan_in=4)
    firsts = [file.first for file in merged]
    assert firsts == list(range(firsts[0], firsts[0] + len(firsts))) if firsts else True
    assert keyed or all(file.bytes < TARGET_BYTES for file in merged)


def test_files_far_apart_in_time_are_not_merged() -> None:
    files = [stored(number, at_s=number * 100.0) for number in range(20)]
    assert files_to_merge(files, span_s=500.0, fan_in=8) == []
    assert len(files_to_merge(files, span_s=800.0, fan_in=8)) == 9


@given(st.lists(st.integers(1, 100_000_000), min_size=1, max_size=200), st.booleans())
def test_merging_ends_and_keeps_the_order_of_files(sizes: list[int], keyed: bool) -> None:
    files = [stored(number, size) for number, size in enumerate(sizes)]
    rewritten = 0
    while merged := files_to_merge(files, keyed=keyed, fan_in=8):
        assert [file.first for file in merged] == sorted(file.first for file in merged)
        rewritten += sum(file.bytes for file in merged)
        whole = stored(merged[0].first, sum(file.bytes for file in merged))
        files = sorted([file for file in files if file not in merged] + [whole], key=lambda file: file.first)
    assert sum(file.bytes for file in files) == sum(sizes)
    assert rewritten <= 12 * sum(sizes), "each byte is rewritten a logarithmic number of times"


def test_latest_record_of_a_key_follows_event_order_then_arrival() -> None:
    dataset = Dataset(
        DatasetName("Places"), DatasetKind.KEYED, Schema.of(who="STRING", at="INT", lat="INT"), ("who",), order_by="at"
    )
    rows = [
        ("ann", 10, 1, 1, 0), ("ann", 30, 2, 2, 0), ("ann", 20, 3, 3, 0),  # the last to arrive is not the latest
        ("bob", 5, 4, 1, 1), ("bob", 5, 5, 1, 2),  # arrival decides between equals
        ("cy", None, 6, 9, 0), ("cy", 1, 7, 1, 3),  # NULL is earliest
        (None, 1, 8, 1, 4), (None, 2, 9, 1, 5),
    ]  # fmt: skip
    columns = ("who", "at", "lat", "_tocsin_version", "_tocsin_sequence")
    table = pa.table({name: [row[index] for row in rows] for index, name in enumerate(columns)})
    latest = latest_per_key(table, dataset).to_pylist()
    assert {row["who"]: row["lat"] for row in latest} == {"ann": 2, "bob": 5, "cy": 7, None: 9}
    assert len(latest) == 4


def test_size_of_a_result_is_the_size_of_its_json() -> None:
    import json

    rows = [
        {"id": "a", "n": 5, "x": 1.5, "ok": True, "none": None},
        {"id": "häß", "n": -12, "x": 0.25, "ok": False, "none": None},
    ]
    batch = pa.RecordBatch.from_pylist(
        rows,
        schema=pa.schema(
            [("id", pa.string()), ("n", pa.int32()), ("x", pa.float64()), ("ok", pa.bool_()), ("none", pa.string())]
        ),
    )
    exact = [len(json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode()) for row in rows]
    assert json_sizes(batch).tolist() == exact


def test_size_of_a_nested_result_is_the_size_of_its_json() -> None:
    import json

    rows: list[dict[str, Any]] = [
        {"id": 1, "near": [{"name": "abc", "m": 1.5}, {"name": None, "m": None}], "tags": [], "at": {"of": ["q", "é"]}},
        {"id": None, "near": None, "tags": ["zz", None], "at": None},
        {"id": 22, "near": [], "tags": None, "at": {"of": None}},
    ]
    batch = pa.RecordBatch.from_pylist(rows)
    exact = [len(json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode()) for row in rows]
    assert json_sizes(batch).tolist() == exact
    assert json_sizes(batch.slice(1)).tolist() == exact[1:]


def test_result_with_bytes_that_are_not_text_has_a_size() -> None:
    batch = pa.RecordBatch.from_pylist([{"b": b"\xff\xfe\x00"}, {"b": None}], schema=pa.schema([("b", pa.binary())]))
    assert json_sizes(batch).tolist() == [len('{"b":"..."}'), len('{"b":null}')]


def test_announced_number_is_known_until_its_subscription_ends() -> None:
    book, channel, other = SubscriptionBook(), ChannelName("A"), ChannelName("B")
    first, second = SubscriptionId(f"{1:032x}"), SubscriptionId(f"{2:032x}")
    book.add(1, first)
    book.add(2, second)
    book.announced(channel, [first, second], numbers(1, 2))
    assert book.announced_numbers(channel, [second, first]) == {second: 2, first: 1}
    assert book.announced_numbers(other, [first]) is None, "the subscription belongs to another channel"
    book.remove([1])
    assert book.announced_numbers(channel, [first, second]) is None
    assert book.announced_numbers(channel, [second]) == {second: 2}
