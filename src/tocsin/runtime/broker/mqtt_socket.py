"""Connections of MQTT clients: over TCP or TLS, and in a WebSocket with the subprotocol `mqtt` [MQTT5 §4.2, §6].

What the core sends in one turn of the event loop is written together. A client that does not read is not read either,
and its packets are handled in turns, as with `paced_socket`.

Packets of a client wait here while too many messages of its user wait for homes. The connection then reads a little
ahead, because a ping or an acknowledgement must not wait behind a message.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

from tocsin.broker.message_encoding import BINARY, frame
from tocsin.broker.mqtt import events, packets
from tocsin.broker.mqtt.events import ConnectionId
from tocsin.broker.mqtt.packets import Packet
from tocsin.broker.mqtt.reading import PacketReader
from tocsin.broker.mqtt.reasons import Reason, Violation
from tocsin.runtime.broker.client_socket import refusal
from tocsin.runtime.broker.mqtt import MqttProcess
from tocsin.runtime.broker.paced_reading import PacedReading
from tocsin.runtime.broker.turns import TURN_S
from tocsin.runtime.broker.websocket_protocol import CLOSE, PING, PONG, FrameReader, close_frame, shake_hands_for
from tocsin.runtime.broker.websocket_protocol import Violation as FrameViolation
from tocsin.wire.errors import TocsinError

PATH = "/mqtt"
SUBPROTOCOL = "mqtt"
_QUEUE_BYTES = 256 << 10
"""Bytes that may wait in a connection; the core keeps the rest in the session's queue, which is bounded."""
_CLOSE_S = 2.0
_HELD_BYTES = 64 << 10
"""Packets of a connection that wait; the broker reads no more of a client that exceeds it."""
_PACKET_BYTES = 200
"""Memory of a packet that waits, besides its bytes."""
_PROMPT = (packets.PingReq, packets.PubAck, packets.PubRec, packets.PubComp)
"""Packets that do not wait behind a message: they belong to messages in the other direction, or to none."""


class MqttSocket(PacedReading):
    """A connection over TCP."""

    mqtt: ClassVar[MqttProcess]
    turn_share: ClassVar[float] = 0.5
    """As for connections of topics."""

    def __init__(self) -> None:
        super().__init__()
        self._reader = PacketReader(self.mqtt.limits.mqtt_packet_bytes)
        self._connection = ConnectionId(0)
        self._out: list[bytes] = []
        self._flushing = False
        self._closing = False
        self._blocked = False
        self._user: str | None = None
        """None until the token is accepted."""
        self._held: deque[tuple[Packet, int]] = deque()
        """(packet, size in bytes) that wait, in order."""
        self._held_bytes = 0

    # -- called by the transport ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=_QUEUE_BYTES, low=_QUEUE_BYTES // 4)
        self.mqtt.guard.half_open.add(self, self._loop.time())
        self._connection = self.mqtt.new_connection(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self.mqtt.guard.half_open.remove(self)
        if self._budget is not None:
            self.mqtt.guard.budgets.release(self._budget, time.perf_counter())
        if self._next_turn is not None:
            self._next_turn.cancel()
        if self._held and isinstance(self._held[-1][0], packets.Disconnect):
            self.mqtt.happened(events.PacketReceived(self._connection, self._held[-1][0]))  # no will is due
        self.mqtt.connection_lost(self._connection)

    def eof_received(self) -> None:
        return

    def data_received(self, data: bytes) -> None:
        self._take_turn(self._packets(data))

    def pause_writing(self) -> None:
        self._blocked = True
        self._pause_reading()
        self.mqtt.happened(events.ConnectionBlocked(self._connection))

    def resume_writing(self) -> None:
        self._blocked = False
        self.mqtt.happened(events.ConnectionDrained(self._connection))
        self._read_on_soon()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _packets(self, data: bytes) -> Iterator[Packet | Violation | None]:
        """The packets in these bytes and in those that wait; None after a step without a packet."""
        return self._reader.feed(data)

    def _take_turn(self, packets_in: Iterator[Packet | Violation | None]) -> None:
        started_s = time.perf_counter()
        for packet in packets_in:
            if self._closing:
                return
            if isinstance(packet, Violation):
                self.mqtt.happened(events.PacketViolated(self._connection, packet))
                return
            if packet is not None:
                self._handle_or_hold(packet)
                if self._is_stuffed:
                    break
            if self._blocked or self._is_checked:
                break
            if time.perf_counter() - started_s > TURN_S:
                self._wait_for_turn(self._pause_s(started_s))
                return
        if self._blocked or self._is_checked or self._is_stuffed:
            self._pause_reading()  # `resume_writing` or `read_on` continues
        elif (pause_s := self._pause_s(started_s)) > 0.0:
            self._wait_for_turn(pause_s)
        else:
            self._resume_reading()

    def _handle_or_hold(self, packet: Packet) -> None:
        if not isinstance(packet, _PROMPT) and (self._held or self._must_wait(packet)):
            size_bytes = self._reader.size_bytes + _PACKET_BYTES
            self._held.append((packet, size_bytes))
            self._held_bytes += size_bytes
        else:
            self.mqtt.happened(events.PacketReceived(self._connection, packet))

    def _must_wait(self, packet: Packet) -> bool:
        """True if the packet waits until homes have accepted earlier messages."""
        is_message = self._user is not None and isinstance(packet, packets.Publish)
        return is_message and self.mqtt.is_full(self._connection, self._user or "")

    @property
    def _is_checked(self) -> bool:
        """True while the token of the connection is being checked: nothing more of it is read."""
        return self._connection in self.mqtt.checking

    @property
    def _is_stuffed(self) -> bool:
        """True if no more may be read. Behind a DISCONNECT there is only the end of the connection, which must not
        overtake the packets that wait."""
        held = self._held
        return self._held_bytes > _HELD_BYTES or (bool(held) and isinstance(held[-1][0], packets.Disconnect))

    def _waiting_packets(self) -> Iterator[Packet | Violation | None]:
        """Handle the packets that wait, one for each step, then those that are not parsed yet."""
        while self._held and not self._must_wait(self._held[0][0]):
            packet, size_bytes = self._held.popleft()
            self._held_bytes -= size_bytes
            self.mqtt.happened(events.PacketReceived(self._connection, packet))
            yield None
        if not self._is_stuffed:
            yield from self._packets(b"")

    def read_on(self) -> None:
        """The token was checked, or messages have reached their homes: handle the packets that wait."""
        self._read_on_soon()

    def _read_on(self) -> None:
        self._next_turn = None
        if not (self._blocked or self._closing or self._is_checked):
            self._take_turn(self._waiting_packets())

    # -- called by the process -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._out.append(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        out, self._out = self._out, []
        if out and not self._transport.is_closing():
            self._transport.write(self._framed(out[0] if len(out) == 1 else b"".join(out)))

    def _framed(self, data: bytes) -> bytes:
        return data

    def on_open(self, user: str) -> None:
        """The client's token is valid."""
        self.mqtt.guard.half_open.remove(self)
        self._budget = self.mqtt.guard.budgets.of(user, self.turn_share)
        self._user = user

    def expire(self) -> None:
        """Close a connection that did not log in in time, or that is one of too many half-open connections."""
        self.close()

    def close(self) -> None:
        """Close after the bytes that were written."""
        if not self._closing:
            self._closing = True
            self._flush()
            self._end_stream()
            self._loop.call_later(_CLOSE_S, self._transport.abort)

    def _end_stream(self) -> None:
        self._transport.close()


class MqttWebSocket(MqttSocket):
    """A connection in a WebSocket. uvicorn makes one for each upgrade at `/mqtt` and feeds it the request."""

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__()
        self._shaken = False
        self._frames = FrameReader(self.mqtt.limits.mqtt_packet_bytes)

    def data_received(self, data: bytes) -> None:
        if self._shaken:
            super().data_received(data)
        else:
            self._shake_hands(data)

    def _shake_hands(self, data: bytes) -> None:
        try:
            reply = shake_hands_for(data, PATH, SUBPROTOCOL)
        except TocsinError as error:
            self._closing = True
            self._transport.write(refusal(error))
            self._transport.close()
            return
        self._shaken = True
        self._transport.write(reply)

    def _packets(self, data: bytes) -> Iterator[Packet | Violation | None]:
        return self._unframed(self._frames.feed(data))

    def _unframed(self, messages: Iterator[tuple[int, bytes] | FrameViolation]) -> Iterator[Packet | Violation | None]:
        """The packets in binary frames; a packet may begin in one frame and end in another [MQTT-6.0.0-2].

        None after a control frame, so that the turn ends when the client does not read the pongs.
        """
        yield from self._reader.feed()
        for message in messages:
            if isinstance(message, FrameViolation):
                yield Violation(Reason.MALFORMED_PACKET, message.message)
                return
            opcode, payload = message
            if opcode == BINARY:
                yield from self._reader.feed(payload)
            elif opcode == PING:
                self._transport.write(frame(payload, PONG))
                yield None
            elif opcode == CLOSE:
                self._transport.write(close_frame(1000, ""))
                self._transport.close()
                return
            elif opcode == PONG:
                yield None
            else:
                yield Violation(Reason.MALFORMED_PACKET, "MQTT travels in binary frames")
                return

    def _framed(self, data: bytes) -> bytes:
        return frame(data, BINARY)

    def _end_stream(self) -> None:
        self._transport.write(close_frame(1000, ""))
        self._transport.close()

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops."""
        self.close()


def mqtt_socket_classes(mqtt: MqttProcess) -> tuple[type[MqttSocket], type[MqttWebSocket]]:
    """The protocol classes for TCP and for uvicorn's upgrades."""

    class BoundMqttSocket(MqttSocket):
        pass

    class BoundMqttWebSocket(MqttWebSocket):
        pass

    BoundMqttSocket.mqtt = BoundMqttWebSocket.mqtt = mqtt
    return BoundMqttSocket, BoundMqttWebSocket
