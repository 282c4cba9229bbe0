"""Batches: cutting by cursor, and encodings that are made once."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.broker.simulated import FIRE
from tests.broker.simulated_ends import CHANNEL
from tocsin.broker.message_encoding import Encoding
from tocsin.broker.result_batch import Batch
from tocsin.model.cursor import Cursor


def batch(first: int, count: int, size_bytes: int = 10) -> Batch:
    offsets = list(range(first, first + count))
    return Batch(FIRE, CHANNEL, Cursor(1, first - 1), 1, offsets, [b"x" * size_bytes] * count)


def test_between_returns_the_results_between_two_cursors() -> None:
    whole = batch(10, 5)
    assert whole.between(Cursor(1, 0), Cursor(1, 99)) is whole
    part = whole.between(Cursor(1, 11), Cursor(1, 13))
    assert part is not None and part.offsets == [12, 13] and part.start == Cursor(1, 11) and part.end == Cursor(1, 13)
    assert whole.between(Cursor(1, 14), Cursor(1, 99)) is None
    assert whole.between(Cursor(2, 0), Cursor(2, 99)) is None
    assert whole.between(Cursor(0, 7), Cursor(2, 0)) is whole


def test_batch_is_encoded_once_per_encoding() -> None:
    encoded = batch(1, 2)
    assert encoded.encoded(Encoding.JSON) is encoded.encoded(Encoding.JSON)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_footprint_is_the_memory_that_a_batch_needs(count: int) -> None:
    def filled(number: int) -> Batch:
        offsets = [2**40 + number * count + place for place in range(count)]
        rows = [b"%0300d" % offset for offset in offsets]
        made = Batch(FIRE, CHANNEL, Cursor(1, offsets[0] - 1), 1, offsets, rows)
        made.encoded(Encoding.JSON)
        return made

    tracemalloc.start()
    try:
        batches = [filled(number) for number in range(100)]
        traced_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(made.footprint_bytes for made in batches) == pytest.approx(traced_bytes, rel=0.1)
