"""The sink acknowledges complete results and messages, also those that arrive in pieces."""

from __future__ import annotations

import json

from tocsin.benchmarks.shared.sink_acknowledgements import BrokerAcknowledger, MqttAcknowledger


def test_broker_gets_the_last_complete_cursor_of_a_read() -> None:
    sink = BrokerAcknowledger()
    results = [b'{"type":"result","subscription":"s","channel":"Hot","cursor":"1-%d","result":{}}' % n for n in (5, 6)]
    data = b"".join(results)
    frame = sink.feed(data[: len(results[0]) + 50])
    assert json.loads(frame[frame.index(b"{") :])["cursors"] == {"s": "1-5"}
    frame = sink.feed(data[len(results[0]) + 50 :])
    assert json.loads(frame[frame.index(b"{") :])["cursors"] == {"s": "1-6"}
    assert sink.feed(b'{"type":"acked","id":1001}') == b""


def test_mosquitto_gets_an_acknowledgement_for_each_message() -> None:
    body = b"\0\x03Hot" + b"\0\x07" + b"x" * 200
    message = b"\x32" + bytes((len(body) % 128 | 0x80, len(body) // 128)) + body
    sink = MqttAcknowledger()
    assert sink.feed(message[:100]) == b""
    assert sink.feed(message[100:] + message) == b"\x40\x02\0\x07" * 2
    assert sink.feed(b"\x30" + message[1:]) == b"", "quality of service 0 needs none"
