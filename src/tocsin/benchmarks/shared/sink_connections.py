"""The sockets of `shared/sink.py`: just enough of three protocols to subscribe, with blocking requests and answers."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

TOPIC = "Hot"


class SinkConnection:
    """A blocking socket with a buffer, for the requests and answers before the counting."""

    def __init__(self, port: int, source: str = "", tls: ssl.SSLContext | None = None) -> None:
        """`source` is the local address; empty for any."""
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=60, source_address=(source, 0) if source else None
        )
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.buffer = b""

    def read_until(self, end_of: Callable[[bytes], int]) -> bytes:
        """Read until `end_of` returns a length instead of -1, and return that many bytes."""
        while (end := end_of(self.buffer)) < 0:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError(f"the server closed the connection after {self.buffer[:200]!r}")
            self.buffer += data
        taken, self.buffer = self.buffer[:end], self.buffer[end:]
        return taken

    def read_through(self, mark: bytes) -> bytes:
        return self.read_until(lambda data: data.find(mark) + len(mark) if mark in data else -1)

    def read_bytes(self, count: int) -> bytes:
        return self.read_until(lambda data: count if len(data) >= count else -1)

    def read_answers(self, count: int) -> None:
        """Read this many answers of a broker; raise if one is a refusal."""
        while count:
            size = self.read_bytes(2)[1]
            if size == 126:
                size = int.from_bytes(self.read_bytes(2), "big")
            message = json.loads(self.read_bytes(size))
            if message.get("type") in ("refused", "closing"):
                raise ConnectionError(f"the broker refused: {message}")
            count -= "id" in message


def connect_to_broker(
    port: int, sessions: list[tuple[str, list[dict[str, Any]], str]], certificate: str | None = None
) -> list[SinkConnection]:
    """Open sessions, given as (token, subscriptions, source address). All take each step before any takes the next.

    `certificate` is a PEM file that the broker's certificate must be; None for connections without TLS.
    """
    tls = None if certificate is None else ssl.create_default_context(cafile=certificate)
    connections = [SinkConnection(port, source, tls) for _, _, source in sessions]
    for connection in connections:
        key = base64.b64encode(os.urandom(16)).decode()
        connection.socket.sendall(
            f"GET /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
    for connection in connections:
        if b" 101 " not in connection.read_through(b"\r\n\r\n"):
            raise ConnectionError("the broker refused the handshake")
    for connection, (token, subscriptions, _) in zip(connections, sessions, strict=True):
        requests: list[dict[str, Any]] = [{"op": "login", "id": 1, "token": token}]
        requests += [{"op": "subscribe", "id": number} | chosen for number, chosen in enumerate(subscriptions, 2)]
        connection.socket.sendall(b"".join(text_frame(json.dumps(request).encode()) for request in requests))
    for connection, (_, subscriptions, _) in zip(connections, sessions, strict=True):
        connection.read_answers(1 + len(subscriptions))
    return connections


def text_frame(payload: bytes) -> bytes:
    """A WebSocket text frame. Its mask is zeros, which leaves the payload unchanged."""
    size = len(payload)
    head = bytes((0x81, 0x80 | size)) if size < 126 else b"\x81\xfe" + struct.pack("!H", size)
    return head + b"\0\0\0\0" + payload


def connect_to_nats(port: int) -> SinkConnection:
    connection = SinkConnection(port)
    connection.read_through(b"\r\n")
    connection.socket.sendall(b'CONNECT {"verbose":false}\r\nSUB ' + TOPIC.encode() + b" 1\r\nPING\r\n")
    connection.read_through(b"PONG\r\n")
    return connection


def connect_to_mosquitto(port: int, number: int, quality: int = 0) -> SinkConnection:
    """`quality` is MQTT's quality of service: with 1 the sink acknowledges each message."""
    connection = SinkConnection(port)
    name = f"s{number}".encode()
    body = b"\0\x04MQTT\x04\x02\0\0" + struct.pack("!H", len(name)) + name
    connection.socket.sendall(bytes((0x10, len(body))) + body)
    connection.read_bytes(4)
    topic = TOPIC.encode()
    body = b"\0\x01" + struct.pack("!H", len(topic)) + topic + bytes((quality,))
    connection.socket.sendall(bytes((0x82, len(body))) + body)
    connection.read_bytes(5)
    return connection
