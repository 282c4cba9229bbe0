"""The WebSocket protocol of a server without I/O: the opening handshake (RFC 6455 §4.2) and frames (§5).

The frame parser is written by hand because a general parser keeps kilobytes per connection, and an idle session here
costs a few hundred bytes. Anything that the RFC forbids becomes a `Violation` with the close code that the RFC names.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from hashlib import sha1
from urllib.parse import parse_qs

from websockets.speedups import apply_mask

from tocsin.broker.message_encoding import BINARY, SUBPROTOCOLS, TEXT, Encoding, frame
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError

PATHS = frozenset({"/v1/session", "/v1", "/v1/", "/"})
"""Subscribers connect at `/v1/session`; an address without a path is accepted too."""
CONTINUATION, CLOSE, PING, PONG = 0x0, 0x8, 0x9, 0xA
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MOST_FRAGMENTS = 1024
_WHOLE = (0x80 | BINARY, 0x80 | TEXT)
"""First byte of a message in a single frame."""

# -- the opening handshake ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Handshake:
    reply: bytes
    encoding: Encoding
    token: str | None


def shake_hands(
    request: bytes, paths: Collection[str] = PATHS, encodings: Collection[Encoding] = tuple(SUBPROTOCOLS.values())
) -> Handshake:
    """Answer an upgrade request; raise `TocsinError` with the reason if it is not acceptable."""
    method, path, query, headers = _parse_request(request)
    if method != "GET" or path not in paths:
        raise TocsinError(Code.NOT_FOUND, "subscribers connect at /v1/session, clients of topics at /v1/topics")
    key = headers.get("sec-websocket-key", "")
    if headers.get("sec-websocket-version") != "13" or not _is_key(key):
        raise TocsinError(Code.BAD_REQUEST, "expected a WebSocket handshake of version 13")
    offered = [name.strip() for name in headers.get("sec-websocket-protocol", "").split(",") if name.strip()]
    served = [name for name, encoding in SUBPROTOCOLS.items() if encoding in encodings]
    chosen = next((name for name in offered if name in served), None)
    if offered and chosen is None:
        raise TocsinError(Code.BAD_REQUEST, f"there is no such subprotocol here, only {', '.join(served)}")
    return Handshake(_reply(key, chosen), SUBPROTOCOLS.get(chosen or wire.JSON, Encoding.JSON), _token(headers, query))


def shake_hands_for(request: bytes, path: str, subprotocol: str) -> bytes:
    """The answer to an upgrade request for one path and one subprotocol; raise `TocsinError` if it is another one."""
    method, requested, _, headers = _parse_request(request)
    if method != "GET" or requested != path:
        raise TocsinError(Code.NOT_FOUND, f"clients with the subprotocol {subprotocol} connect at {path}")
    key = headers.get("sec-websocket-key", "")
    if headers.get("sec-websocket-version") != "13" or not _is_key(key):
        raise TocsinError(Code.BAD_REQUEST, "expected a WebSocket handshake of version 13")
    if subprotocol not in (name.strip() for name in headers.get("sec-websocket-protocol", "").split(",")):
        raise TocsinError(Code.BAD_REQUEST, f"clients connect at {path} with the subprotocol {subprotocol}")
    return _reply(key, subprotocol)


def _parse_request(request: bytes) -> tuple[str, str, str, dict[str, str]]:
    """(method, path, query, headers) of a request that uvicorn has parsed and serialised again."""
    head, *lines = request.decode("latin-1").split("\r\n\r\n", 1)[0].split("\r\n")
    method, target, _ = head.split(" ", 2)
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    path, _, query = target.partition("?")
    return method, path, query, headers


def _token(headers: dict[str, str], query: str) -> str | None:
    """The bearer token of the header, else `access_token` of the query: browsers cannot set headers."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    query_token = parse_qs(query).get("access_token", [""])[0]
    return (token.strip() if kind.lower() == "bearer" else query_token) or None


def _reply(key: str, subprotocol: str | None) -> bytes:
    accept = b64encode(sha1(key.encode() + _MAGIC).digest())
    reply = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    reply += b"Sec-WebSocket-Accept: " + accept + b"\r\n"
    if subprotocol is not None:
        reply += b"Sec-WebSocket-Protocol: " + subprotocol.encode() + b"\r\n"
    return reply + b"\r\n"


def _is_key(text: str) -> bool:
    try:
        return len(b64decode(text, validate=True)) == 16
    except (NotBase64, ValueError):
        return False


# -- frames ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Violation:
    code: int
    message: str


Message = tuple[int, bytes]
"""(opcode, payload) of a whole message or a control frame."""


class FrameReader:
    """Turns bytes into messages; keeps the bytes that were not taken as messages yet."""

    __slots__ = ("_opcode", "_parts", "_rest", "_start", "_violated", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._rest = b""
        self._start = 0
        """Index of the next frame in `_rest`."""
        self._opcode = 0
        self._parts: list[bytes] | None = None
        self._violated = False

    def whole_message(self, data: bytes) -> Message | None:
        """The message, if these bytes are exactly one unfragmented message and no earlier bytes wait; else None.

        This is how small requests arrive, and it is cheaper than `feed`, which the caller must use otherwise.
        """
        if self._rest or self._parts is not None or len(data) < 6:
            return None
        first, size = data[0], data[1] - 0x80
        begin = 2
        if size >= 126:
            begin = 4 if size == 126 else 10
            size = int.from_bytes(data[2:begin], "big")
        if first not in _WHOLE or not 0 <= size <= self.limit_bytes or len(data) != begin + 4 + size:
            return None
        return first & 0x0F, apply_mask(data[begin + 4 :], data[begin : begin + 4])

    def feed(self, data: bytes = b"") -> Iterator[Message | Violation]:
        """Add bytes and return an iterator over the complete messages, in order. A violation is the last of all.

        The caller may stop early: frames are parsed one by one, and the next call continues behind the last message.
        """
        if self._start:
            self._rest, self._start = self._rest[self._start :], 0
        self._rest = self._rest + data if self._rest else data
        return iter(self._next_message, None)

    def _next_message(self) -> Message | Violation | None:
        message: Message | Violation | None = None
        while message is None and not self._violated:
            parsed = self._frame(self._rest, self._start)
            if parsed is None:
                break
            if isinstance(parsed, Violation):
                message = parsed
            else:
                self._start, fin, opcode, payload = parsed
                message = self._assemble(fin, opcode, payload)
            self._violated = isinstance(message, Violation)
        if message is None and self._start:
            self._rest, self._start = self._rest[self._start :], 0
        return message

    def _frame(self, data: bytes, start: int) -> tuple[int, bool, int, bytes] | Violation | None:
        """(start of the next frame, fin, opcode, payload); None if the frame is incomplete."""
        if len(data) - start < 2:
            return None
        first, second = data[start], data[start + 1]
        opcode, size = first & 0x0F, second & 0x7F
        if first & 0x70:
            return Violation(1002, "reserved bits are set without a negotiated extension")
        if not second & 0x80:
            return Violation(1002, "this frame is not masked; a client must mask its frames")
        if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            return Violation(1002, f"there is no opcode {opcode}")
        if opcode >= CLOSE and (size > 125 or not first & 0x80):
            return Violation(1002, "this control frame is too long or fragmented")
        begin = start + 2
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(data) < begin + width:
                return None
            size = int.from_bytes(data[begin : begin + width], "big")
            begin += width
        if size > self.limit_bytes:
            return self._too_large()
        end = begin + 4 + size
        if len(data) < end:
            return None
        payload = apply_mask(data[begin + 4 : end], data[begin : begin + 4])
        return end, bool(first & 0x80), opcode, payload

    def _assemble(self, fin: bool, opcode: int, payload: bytes) -> Message | Violation | None:
        """A complete message; None while fragments are missing."""
        if opcode >= CLOSE:
            return opcode, payload
        if opcode == CONTINUATION:
            if self._parts is None:
                return Violation(1002, "a continuation frame without a message to continue")
            self._parts.append(payload)
        elif self._parts is not None:
            return Violation(1002, "a new message began before the previous one was complete")
        elif fin:
            return opcode, payload
        else:
            self._opcode, self._parts = opcode, [payload]
        if sum(map(len, self._parts)) > self.limit_bytes or len(self._parts) > _MOST_FRAGMENTS:
            return self._too_large()
        if not fin:
            return None
        whole, self._parts = b"".join(self._parts), None
        return self._opcode, whole

    def _too_large(self) -> Violation:
        return Violation(1009, f"at most {self.limit_bytes:,} bytes a message")


def close_frame(code: int, reason: str) -> bytes:
    """An unmasked close frame; the reason is cut to the size of a control frame."""
    payload = code.to_bytes(2, "big") + reason.encode()[:123].decode(errors="ignore").encode()
    return frame(payload, CLOSE)
