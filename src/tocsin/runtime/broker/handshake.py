"""The opening handshake of a subscriber's WebSocket (RFC 6455 §4.2): a request in, a reply and what was agreed out."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass
from hashlib import sha1
from urllib.parse import parse_qs

from tocsin.broker.message_encoding import SUBPROTOCOLS, Encoding
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError

PATHS = frozenset({"/v1/session", "/v1", "/v1/", "/"})
"""`/v1/session` is its name; an address without a path is understood too."""
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass(frozen=True, slots=True)
class Handshake:
    reply: bytes
    encoding: Encoding
    token: str | None


def shake_hands(request: bytes) -> Handshake:
    """Raises with the reason if this is no handshake of ours."""
    method, path, query, headers = _parsed(request)
    if method != "GET" or path not in PATHS:
        raise TocsinError(Code.NOT_FOUND, "subscribers connect at /v1/session")
    key = headers.get("sec-websocket-key", "")
    if headers.get("sec-websocket-version") != "13" or not _is_key(key):
        raise TocsinError(Code.BAD_REQUEST, "expected a WebSocket handshake of version 13")
    offered = [name.strip() for name in headers.get("sec-websocket-protocol", "").split(",") if name.strip()]
    chosen = next((name for name in offered if name in SUBPROTOCOLS), None)
    if offered and chosen is None:
        raise TocsinError(Code.BAD_REQUEST, f"there is no such subprotocol here, only {', '.join(SUBPROTOCOLS)}")
    return Handshake(_reply(key, chosen), SUBPROTOCOLS.get(chosen or wire.JSON, Encoding.JSON), _token(headers, query))


def _parsed(request: bytes) -> tuple[str, str, str, dict[str, str]]:
    """(method, path, query, headers) of what uvicorn has parsed and put together again."""
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
    """From the header, or from the address: browsers cannot set headers."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    given = parse_qs(query).get("access_token", [""])[0]
    return (token.strip() if kind.lower() == "bearer" else given) or None


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
