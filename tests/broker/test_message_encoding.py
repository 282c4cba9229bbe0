"""WebSocket frames of messages."""

from __future__ import annotations

import pytest

from tocsin.broker.message_encoding import frame


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frame_header_has_the_length_that_the_rfc_requires(size: int) -> None:
    data = frame(b"x" * size)
    head = 2 if size < 126 else 4 if size < 65_536 else 10
    assert len(data) == head + size
    if head > 2:
        assert int.from_bytes(data[2:head], "big") == size
