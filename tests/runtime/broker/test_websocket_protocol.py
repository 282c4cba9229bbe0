"""The frame reader: arbitrary bytes, masks, fragments and cuts."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.runtime.broker.websocket_protocol import FrameReader, Violation


@given(st.lists(st.binary(max_size=40)), st.integers(1, 64))
@settings(max_examples=150)
def test_frame_reader_accepts_any_bytes(pieces: list[bytes], limit_bytes: int) -> None:
    reader = FrameReader(limit_bytes)
    for piece in pieces:
        for message in reader.feed(piece):
            if isinstance(message, Violation):
                assert message.code in (1002, 1009)
                return
            assert len(message[1]) <= max(limit_bytes, 125)


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(1, 50), st.binary(min_size=4, max_size=4))
@settings(max_examples=100)
def test_frame_reader_assembles_masked_and_fragmented_messages(messages: list[bytes], cut: int, mask: bytes) -> None:
    def masked(fin: bool, opcode: int, data: bytes) -> bytes:
        size = len(data)
        head = (
            bytes((0x80 * fin | opcode, 0x80 | size))
            if size < 126
            else struct.pack("!BBH", 0x80 * fin | opcode, 254, size)
        )
        return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))

    stream = b""
    for message in messages:
        half = len(message) // 2
        stream += masked(False, 2, message[:half]) + masked(True, 9, b"ping") + masked(True, 0, message[half:])
    reader = FrameReader(1_000)
    received = [message for start in range(0, len(stream), cut) for message in reader.feed(stream[start : start + cut])]
    assert [message[1] for message in received if not isinstance(message, Violation) and message[0] == 2] == messages
