"""Reading from a WebSocket at a pace that the client and the broker can bear.

A client that does not read its answers is not read either: while more than `queue_bytes` wait in its connection, its
requests stay unparsed and TCP slows it down. The requests of one client are handled in turns, so that a packet with
thousands of them does not delay other connections. `subscriber_socket` says what the messages mean.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from tocsin.runtime.broker.turns import PACKET_S, SHARE, TURN_S, TurnBudget
from tocsin.runtime.broker.websocket_protocol import FrameReader, Message, Violation


class PacedSocket(asyncio.Protocol, ABC):
    __slots__ = (
        "_budget",
        "_ignores_input",
        "_loop",
        "_next_turn",
        "_paused",
        "_reader",
        "_reading_paused",
        "_transport",
    )

    turn_share: ClassVar[float] = SHARE
    """Share of the loop's time for a user whose requests have used up their allowance."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._reader: FrameReader | None = None
        self._budget: TurnBudget | None = None
        self._next_turn: asyncio.Handle | None = None
        self._paused = False
        """True while more than `queue_bytes` wait to be sent."""
        self._reading_paused = False
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
        if self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._read_on)

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

    def _pause_s(self, started_s: float) -> float:
        """Charge the turn to the user, or to a connection without one, and return the pause before the next turn.

        Every turn counts, not only long ones: a flood of packets with one request each has only short turns.
        """
        if self._budget is None:
            self._budget = TurnBudget(self.turn_share)
        now_s = time.perf_counter()
        return self._budget.spend(PACKET_S + now_s - started_s, now_s)

    def _wait_for_turn(self, pause_s: float) -> None:
        self._pause_reading()
        if self._next_turn is None:
            self._next_turn = self._loop.call_later(pause_s, self._read_on)

    def _read_on(self) -> None:
        """Continue with the bytes that arrived before reading was paused."""
        self._next_turn = None
        if self._paused or self._transport.is_closing():
            return
        if self._reader is None or self._ignores_input:
            self._resume_reading()
        else:
            self._take_turn(self._reader.feed())

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()
