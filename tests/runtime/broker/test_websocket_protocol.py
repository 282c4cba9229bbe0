"""The frame reader: arbitrary bytes, masks, fragments and cuts."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.runtime.broker.websocket_protocol import FrameReader, Violation


def masked(fin: bool, opcode: int, data: bytes, mask: bytes) -> bytes:
    size, first = len(data), 0x80 * fin | opcode
    head = bytes((first, 0x80 | size)) if size < 126 else struct.pack("!BBH", first, 254, size & 0xFFFF)
    if size >= 1 << 16:
        head = struct.pack("!BBQ", first, 255, size)
    return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))


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
    stream = b""
    for message in messages:
        half = len(message) // 2
        stream += (
            masked(False, 2, message[:half], mask)
            + masked(True, 9, b"ping", mask)
            + masked(True, 0, message[half:], mask)
        )
    reader = FrameReader(1_000)
    received = [message for start in range(0, len(stream), cut) for message in reader.feed(stream[start : start + cut])]
    assert [message[1] for message in received if not isinstance(message, Violation) and message[0] == 2] == messages


@given(
    st.one_of(st.binary(max_size=200), st.sampled_from([b"x" * size for size in (125, 126, 65_535, 65_536)])),
    st.sampled_from([1, 2, 8, 9, 0, 3]),
    st.booleans(),
    st.binary(max_size=2),
)
def test_whole_message_agrees_with_the_frame_reader(data: bytes, opcode: int, fin: bool, more: bytes) -> None:
    """The fast way returns what `feed` returns, or None where `feed` has to decide."""
    sent = masked(fin, opcode, data, b"\x01\xfe\x80\x00") + more
    whole = FrameReader(70_000).whole_message(sent)
    if fin and opcode in (1, 2) and not more:
        assert whole == (opcode, data) and list(FrameReader(70_000).feed(sent)) == [whole]
    else:
        assert whole is None


def test_whole_message_leaves_limits_fragments_and_rests_to_the_frame_reader() -> None:
    mask = bytes(4)
    assert FrameReader(4).whole_message(masked(True, 2, b"12345", mask)) is None
    assert FrameReader(9).whole_message(b"\x82\x0512345") is None, "not masked"
    reader = FrameReader(9)
    assert list(reader.feed(masked(True, 2, b"first", mask) + b"\x82")) == [(2, b"first")]
    assert reader.whole_message(masked(True, 2, b"12345", mask)) is None, "a byte of the next frame waits"
    reader = FrameReader(9)
    assert list(reader.feed(masked(False, 2, b"1", mask))) == []
    assert reader.whole_message(masked(True, 2, b"2", mask)) is None, "a fragmented message is incomplete"
