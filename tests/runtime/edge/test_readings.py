"""Bodies of published readings: one batch, or several Arrow streams one behind the other."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.edge.edge_readings import READINGS, readings
from tocsin.runtime.edge.entry_log import encode_batch
from tocsin.runtime.edge.readings import from_arrow
from tocsin.wire.errors import TocsinError

BATCHES = [readings((1, "a", 0.5, 1)), readings((2, "b", 0.25, 2), (3, "c", None, None)), readings((4, "d", 1.0, 1))]


def test_streams_behind_each_other_are_one_batch_each() -> None:
    body = b"".join(map(encode_batch, BATCHES))
    assert from_arrow(body, READINGS, 3) == BATCHES


@pytest.mark.parametrize("count", [1, 2, 4])
def test_body_with_another_number_of_streams_is_refused(count: int) -> None:
    with pytest.raises(TocsinError):
        from_arrow(b"".join(map(encode_batch, BATCHES)), READINGS, count)


def test_streams_of_one_body_may_have_their_own_columns() -> None:
    wider = BATCHES[0].append_column("more", pa.array(["x"]))
    assert from_arrow(encode_batch(wider) + encode_batch(BATCHES[1]), READINGS, 2) == BATCHES[:2]
