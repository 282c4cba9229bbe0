"""Batches: cutting by cursor, and encodings that are made once."""

from __future__ import annotations

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
