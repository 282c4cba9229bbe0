"""Raw clients of `bench topics`: just enough of three protocols to publish and to subscribe, at the same cost for all.

A client connects with blocking requests and answers. After that, `topic_load` sends what `encode` has made, reads the
sockets itself and gives the publisher's answers to `acknowledged`.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from tocsin.benchmarks.shared.sink_connections import SinkConnection
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire

_BUFFER_BYTES = 4 << 20
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(wire.ToClient)


class TopicClient(ABC):
    """One connection, as the publisher or as a subscriber of the benchmark's one topic."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self.connection = SinkConnection(task["port"])
        self.connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self.connection.socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self.acknowledgements = 0
        """Messages that the server has acknowledged."""

    @abstractmethod
    def subscribe(self) -> None:
        """Log in and subscribe; returns when the server will send every further message."""

    @abstractmethod
    def prepare_publishing(self) -> None:
        """Log in as a publisher."""

    @abstractmethod
    def encode(self, first: int, payloads: Sequence[bytes]) -> bytes:
        """The bytes that publish these messages, numbered from `first` (1 and up)."""

    @abstractmethod
    def acknowledged(self, data: bytes) -> None:
        """Count the acknowledgements in the server's answers to the publisher."""


class TocsinClient(TopicClient):
    """A topic connection in MessagePack. Its frames have a mask of zeros, which costs the broker as much as any.

    Without acknowledgements the publisher is not `prompt`: the home acknowledges ten times a second.
    """

    _at = 0

    def subscribe(self) -> None:
        self._log_in()
        self._ask(wire.AttachReceiver(2, TopicName(self._task["topic"])))

    def prepare_publishing(self) -> None:
        self._log_in()
        run, prompt = int.from_bytes(os.urandom(6), "big"), bool(self._task["acknowledged"])
        self._at = self._ask(wire.AttachSender(2, TopicName(self._task["topic"]), run, prompt=prompt)).at

    def _log_in(self) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        self.connection.socket.sendall(
            f"GET {wire.PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
            f"Sec-WebSocket-Protocol: tocsin.msgpack\r\n\r\n".encode()
        )
        if b" 101 " not in self.connection.read_through(b"\r\n\r\n"):
            raise ConnectionError("the broker refused the handshake")
        self._ask(wire.Login(1, self._task["token"]))

    def _ask(self, request: wire.FromClient) -> Any:
        self.connection.socket.sendall(_masked(_encoder.encode(request)))
        while True:
            size = self.connection.read_bytes(2)[1]
            if size >= 126:
                size = int.from_bytes(self.connection.read_bytes(2 if size == 126 else 8), "big")
            message = _decoder.decode(self.connection.read_bytes(size))
            if isinstance(message, wire.Refused | wire.Closing):
                raise ConnectionError(f"the broker refused: {message}")
            if hasattr(message, "id"):
                return message

    def encode(self, first: int, payloads: Sequence[bytes]) -> bytes:
        return _masked(_encoder.encode(wire.Publish(self._at, first, list(payloads))))

    def acknowledged(self, data: bytes) -> None:
        self.connection.buffer += data
        while (frame := _next_frame(self.connection.buffer)) is not None:
            payload, self.connection.buffer = frame
            message = _decoder.decode(payload)
            if isinstance(message, wire.Acknowledged):
                self.acknowledgements = message.number
            elif not isinstance(message, wire.Beat):
                raise AssertionError(f"the broker sent the publisher {message}")


def _masked(payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes((0x82, 0x80 | size))
    elif size < 1 << 16:
        head = b"\x82\xfe" + struct.pack("!H", size)
    else:
        head = b"\x82\xff" + struct.pack("!Q", size)
    return head + b"\0\0\0\0" + payload


def _next_frame(data: bytes) -> tuple[bytes, bytes] | None:
    """(payload, rest) of a server's short frame; None if it is incomplete. Answers to publishers are short."""
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    if data[1] >= 126:
        raise AssertionError("an answer to a publisher is longer than 125 bytes")
    return data[2 : 2 + data[1]], data[2 + data[1] :]


class NatsClient(TopicClient):
    """Core NATS. With acknowledgements the publisher is `verbose`: the server answers `+OK` to each message."""

    def subscribe(self) -> None:
        self._connect(verbose=False, then=b"SUB %b 1\r\n" % self._task["topic"].encode())

    def prepare_publishing(self) -> None:
        self._connect(verbose=self._task["acknowledged"])

    def _connect(self, *, verbose: bool, then: bytes = b"") -> None:
        self.connection.read_through(b"\r\n")
        options = b'{"verbose":%b,"pedantic":false}' % (b"true" if verbose else b"false")
        self.connection.socket.sendall(b"CONNECT %b\r\n%bPING\r\n" % (options, then))
        self.connection.read_through(b"PONG\r\n")

    def encode(self, first: int, payloads: Sequence[bytes]) -> bytes:
        head = b"PUB %b %d\r\n" % (self._task["topic"].encode(), len(payloads[0]))
        return b"".join([part for payload in payloads for part in (head, payload, b"\r\n")])

    def acknowledged(self, data: bytes) -> None:
        self.acknowledgements += data.count(b"+")


class JetStreamClient(NatsClient):
    """A stream of NATS JetStream. Its server sends an acknowledgement for each message to the publisher's inbox.

    The subscriber has a push consumer without acknowledgements, which gets a message when it is stored.
    """

    def subscribe(self) -> None:
        inbox = f"_INBOX.{os.urandom(6).hex()}"
        self._connect(verbose=False, then=f"SUB {inbox}.messages 1\r\nSUB {inbox}.answer 2\r\n".encode())
        config = {"deliver_subject": f"{inbox}.messages", "ack_policy": "none", "deliver_policy": "new"}
        self._ask("CONSUMER.CREATE.BENCH", {"stream_name": "BENCH", "config": config}, f"{inbox}.answer")

    def prepare_publishing(self) -> None:
        self._inbox = f"_INBOX.{os.urandom(6).hex()}".encode()
        self._connect(verbose=False, then=b"SUB %b 1\r\n" % self._inbox)

    def create_stream(self) -> None:
        inbox = f"_INBOX.{os.urandom(6).hex()}"
        self._connect(verbose=False, then=f"SUB {inbox} 1\r\n".encode())
        config = {"name": "BENCH", "subjects": [self._task["topic"]], "storage": "file", "num_replicas": 1}
        self._ask("STREAM.CREATE.BENCH", config, inbox)
        self.connection.socket.close()

    def _ask(self, request: str, content: dict[str, Any], inbox: str) -> None:
        body = json.dumps(content)
        self.connection.socket.sendall(f"PUB $JS.API.{request} {inbox} {len(body)}\r\n{body}\r\n".encode())
        head = self.connection.read_through(b"\r\n")
        answer = self.connection.read_bytes(int(head.split()[-1]) + 2)
        if b'"error"' in answer:
            raise ConnectionError(f"nats-server refused: {answer!r}")

    def encode(self, first: int, payloads: Sequence[bytes]) -> bytes:
        head = b"PUB %b %b %d\r\n" % (self._task["topic"].encode(), self._inbox, len(payloads[0]))
        return b"".join([part for payload in payloads for part in (head, payload, b"\r\n")])

    def acknowledged(self, data: bytes) -> None:
        if b'"error"' in data:
            raise AssertionError(f"nats-server did not store a message: {data!r}")
        self.connection.buffer += data
        self.acknowledgements += self.connection.buffer.count(b"}\r\n")
        self.connection.buffer = self.connection.buffer[self.connection.buffer.rfind(b"}\r\n") + 3 :]


class MosquittoClient(TopicClient):
    """MQTT 3.1.1. With acknowledgements the publisher uses quality of service 1; subscribers have 0, as ours do not
    acknowledge either."""

    def subscribe(self) -> None:
        self._connect()
        topic = self._task["topic"].encode()
        self.connection.socket.sendall(_mqtt(0x82, b"\0\x01" + struct.pack("!H", len(topic)) + topic + b"\0"))
        self.connection.read_bytes(5)

    def prepare_publishing(self) -> None:
        self._connect()

    def _connect(self) -> None:
        name = base64.b32encode(os.urandom(10))
        self.connection.socket.sendall(_mqtt(0x10, b"\0\x04MQTT\x04\x02\0\0" + struct.pack("!H", len(name)) + name))
        self.connection.read_bytes(4)

    def encode(self, first: int, payloads: Sequence[bytes]) -> bytes:
        topic = self._task["topic"].encode()
        head = struct.pack("!H", len(topic)) + topic
        if not self._task["acknowledged"]:
            return b"".join([_mqtt(0x30, head + payload) for payload in payloads])
        packets = [
            _mqtt(0x32, head + struct.pack("!H", number % 0xFFFF + 1) + payload)
            for number, payload in enumerate(payloads, first)
        ]
        return b"".join(packets)

    def acknowledged(self, data: bytes) -> None:
        self.connection.buffer += data
        count = len(self.connection.buffer) // 4
        self.acknowledgements += count
        self.connection.buffer = self.connection.buffer[4 * count :]


def _mqtt(kind: int, body: bytes) -> bytes:
    """A packet; its length has seven bits in each byte, the lowest first."""
    length, size = b"", len(body)
    while True:
        size, digit = divmod(size, 128)
        length += bytes((digit | (0x80 if size else 0),))
        if not size:
            return bytes((kind,)) + length + body


CLIENTS: dict[str, type[TopicClient]] = {
    "tocsin": TocsinClient,
    "nats": NatsClient,
    "mosquitto": MosquittoClient,
    "jetstream": JetStreamClient,
}
