"""A subscriber's frames, from bytes: unmasked, put together, bounded (RFC 6455 §5). Knows no connection.

Written by hand because a general parser keeps kilobytes per connection, and an idle session here costs a few hundred
bytes. Anything the RFC forbids is a `Violation` with the close code it names.
"""

from __future__ import annotations

from dataclasses import dataclass

from websockets.speedups import apply_mask

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


@dataclass(frozen=True, slots=True)
class Violation:
    code: int
    message: str


Message = tuple[int, bytes]
"""(opcode, payload) of a whole message or a control frame."""


class FrameReader:
    """Feed it bytes; it keeps only what is incomplete."""

    __slots__ = ("_limit_bytes", "_opcode", "_parts", "_rest")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._rest = b""
        self._opcode = 0
        self._parts: list[bytes] | None = None

    def feed(self, data: bytes) -> list[Message | Violation]:
        """Whole messages, in order; nothing after a violation counts."""
        data = self._rest + data if self._rest else data
        found: list[Message | Violation] = []
        place = 0
        while True:
            frame = self._frame(data, place)
            if frame is None:
                break
            if isinstance(frame, Violation):
                found.append(frame)
                break
            place, fin, opcode, payload = frame
            message = self._assemble(fin, opcode, payload)
            if message is not None:
                found.append(message)
                if isinstance(message, Violation):
                    break
        self._rest = data[place:]
        return found

    def _frame(self, data: bytes, place: int) -> tuple[int, bool, int, bytes] | Violation | None:
        """(where the next begins, fin, opcode, payload); None if there is more to come."""
        if len(data) - place < 2:
            return None
        first, second = data[place], data[place + 1]
        opcode, size = first & 0x0F, second & 0x7F
        if first & 0x70:
            return Violation(1002, "reserved bits are set, and no extension was agreed on")
        if not second & 0x80:
            return Violation(1002, "frames from a client are masked")
        if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            return Violation(1002, f"there is no opcode {opcode}")
        if opcode >= CLOSE and (size > 125 or not first & 0x80):
            return Violation(1002, "control frames are short and whole")
        begin = place + 2
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(data) < begin + width:
                return None
            size = int.from_bytes(data[begin : begin + width], "big")
            begin += width
        if size > self._limit_bytes:
            return Violation(1009, f"at most {self._limit_bytes:,} bytes a message")
        end = begin + 4 + size
        if len(data) < end:
            return None
        payload = apply_mask(data[begin + 4 : end], data[begin : begin + 4])
        return end, bool(first & 0x80), opcode, payload

    def _assemble(self, fin: bool, opcode: int, payload: bytes) -> Message | Violation | None:
        if opcode >= CLOSE:
            return opcode, payload
        if opcode == CONTINUATION:
            if self._parts is None:
                return Violation(1002, "a continuation of nothing")
            self._parts.append(payload)
        elif self._parts is not None:
            return Violation(1002, "a new message inside another")
        elif fin:
            return opcode, payload
        else:
            self._opcode, self._parts = opcode, [payload]
        if sum(map(len, self._parts)) > self._limit_bytes or len(self._parts) > 1024:
            return Violation(1009, f"at most {self._limit_bytes:,} bytes a message")
        if not fin:
            return None
        whole, self._parts = b"".join(self._parts), None
        return self._opcode, whole


def close_frame(code: int, reason: str) -> bytes:
    """Unmasked, as a server sends it; the reason is cut to what a control frame holds."""
    payload = code.to_bytes(2, "big") + reason.encode()[:123].decode(errors="ignore").encode()
    return bytes((0x80 | CLOSE, len(payload))) + payload


def pong_frame(payload: bytes) -> bytes:
    return bytes((0x80 | PONG, len(payload))) + payload
