"""Acknowledgements of `shared/sink.py`, for servers that know them: the broker and MQTT. Core NATS has none. Pure."""

from __future__ import annotations

import json
import re
from typing import Protocol

from tocsin.benchmarks.shared.sink_connections import text_frame

_RESULT = re.compile(rb'"subscription":"([^"]+)","channel":"[^"]*","cursor":"([^"]+)"')
_HEAD_BYTES = 200
"""More than the bytes of a result that come before its row."""
_PUBLISH = 3
"""MQTT's packet type, in the upper half of the first byte."""


class Acknowledger(Protocol):
    def feed(self, data: bytes) -> bytes:
        """Take what one socket received, and return the bytes to send; empty if there is nothing to acknowledge."""


class BrokerAcknowledger:
    """Acknowledges the last cursor of each read."""

    def __init__(self) -> None:
        self._requests = 1_000
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        results = _RESULT.findall(self._tail + data)
        self._tail = data[-_HEAD_BYTES:]
        if not results:
            return b""
        subscription, cursor = results[-1]
        self._requests += 1
        request = {"op": "ack", "id": self._requests, "cursors": {subscription.decode(): cursor.decode()}}
        return text_frame(json.dumps(request).encode())


class MqttAcknowledger:
    """Acknowledges each message of quality of service 1."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> bytes:
        data = self._buffer + data
        answers, at = bytearray(), 0
        while (body := _body(data, at)) is not None:
            start, end = body
            if data[at] >> 4 == _PUBLISH and data[at] & 0x06:
                topic_bytes = int.from_bytes(data[start : start + 2], "big")
                place = start + 2 + topic_bytes
                answers += b"\x40\x02" + data[place : place + 2]
            at = end
        self._buffer = data[at:]
        return bytes(answers)


def _body(data: bytes, at: int) -> tuple[int, int] | None:
    """Where the body of the MQTT packet at `at` starts and ends; None if it is not complete."""
    size, place = 0, at + 1
    while place < len(data):
        digit = data[place]
        size |= (digit & 0x7F) << (7 * (place - at - 1))
        place += 1
        if not digit & 0x80:
            return (place, place + size) if place + size <= len(data) else None
    return None
