"""Reading from a WebSocket at a pace that the client and the broker can bear.

A client that does not read its answers is not read either: while more than `queue_bytes` wait in its connection, its
requests stay unparsed and TCP slows it down. The requests of one client are handled in turns, so that a packet with
thousands of them does not delay other connections. `subscriber_socket` says what the messages mean.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator

from tocsin.runtime.broker.paced_reading import PacedReading
from tocsin.runtime.broker.turns import TURN_S
from tocsin.runtime.broker.websocket_protocol import FrameReader, Message, Violation


class PacedSocket(PacedReading):
    __slots__ = ("_ignores_input", "_paused", "_reader")

    def __init__(self) -> None:
        super().__init__()
        self._reader: FrameReader | None = None
        self._paused = False
        """True while more than `queue_bytes` wait to be sent."""
        self._ignores_input = False
        """True after a violation: the start of the next frame is unknown."""

    @property
    @abstractmethod
    def frame_bytes(self) -> int:
        """The largest message of the client."""

    @abstractmethod
    def on_message(self, opcode: int, payload: bytes) -> None:
        """Handle a message of the client."""

    def on_only_message(self, opcode: int, payload: bytes) -> None:
        """Handle a text or binary message that was read by itself: no other request waits behind it."""
        self.on_message(opcode, payload)

    @abstractmethod
    def on_violation(self, violation: Violation) -> None:
        """Handle bytes that break the WebSocket protocol."""

    def pause_writing(self) -> None:
        self._paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._read_on_soon()

    def read(self, data: bytes) -> None:
        """Handle the messages in these bytes, now or in later turns."""
        reader = self._reader
        if reader is None:
            reader = self._reader = FrameReader(self.frame_bytes)
        if self._ignores_input:
            return
        message = reader.whole_message(data)
        if message is None:
            self._take_turn(reader.feed(data))
            return
        started_s = time.perf_counter()
        self.on_only_message(*message)
        if not self._paused and (pause_s := self._pause_s(started_s)) > 0.0:
            self._wait_for_turn(pause_s)

    def _take_turn(self, messages: Iterator[Message | Violation]) -> None:
        """Handle messages until none is left, the connection's queue is full or the turn is over."""
        started_s = time.perf_counter()
        for message in messages:
            if isinstance(message, Violation):
                self._ignores_input = True
                self.on_violation(message)
                return
            self.on_message(*message)
            if self._paused:
                return  # `resume_writing` continues
            if time.perf_counter() - started_s > TURN_S:
                self._wait_for_turn(self._pause_s(started_s))
                return
        pause_s = self._pause_s(started_s)
        if pause_s > 0.0:
            self._wait_for_turn(pause_s)
        else:
            self._resume_reading()

    def _read_on(self) -> None:
        self._next_turn = None
        if self._paused or self._transport.is_closing():
            return
        if self._reader is None or self._ignores_input:
            self._resume_reading()
        else:
            self._take_turn(self._reader.feed())
