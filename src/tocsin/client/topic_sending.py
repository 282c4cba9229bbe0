"""What one client publishes to one topic: numbers, messages in flight, and what must be sent again. Pure.

A message gets its number when it is first sent, so that a message that is too large never takes one. Numbers that were
sent and not acknowledged are sent again to the same home or the next one; the home removes repeats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile

from tocsin.client.topic_events import Settle
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code

WINDOW_MESSAGES = 20_000
"""Most messages without an acknowledgement: more wait here."""
_FRAME_SHARE = 0.5
"""Part of the largest frame that messages fill: base64 and envelopes need the rest."""


@dataclass(slots=True)
class Outgoing:
    number: int
    ticket: int
    data: bytes
    dropped: bool = False
    """The home refused it for good. It keeps its number until all earlier ones are acknowledged."""
    dropped_before: bool = False
    """It was dropped before the present attach: the present home may not know its number."""


@dataclass(slots=True)
class SenderState:
    topic: TopicName
    numbered: deque[Outgoing] = field(default_factory=deque)
    """Sent at least once and not acknowledged, by number."""
    queued: deque[tuple[int, bytes]] = field(default_factory=deque)
    """(ticket, data) that were never sent."""
    next_number: int = 1
    resend: int = 0
    """How many of `numbered`, counted from the end, must be sent (again)."""
    paused_until_s: float = 0.0

    @property
    def first_number(self) -> int:
        """The first number without an acknowledgement. An attach with it skips dropped messages before it."""
        return self.numbered[0].number if self.numbered else self.next_number

    @property
    def must_attach(self) -> bool:
        """True if the present home may wait for a message that another one dropped: an attach names the number behind
        it."""
        return bool(self.numbered) and self.numbered[0].dropped_before

    @property
    def idle(self) -> bool:
        return not (self.numbered or self.queued)

    def restart(self) -> None:
        """The connection is lost, or the topic has another home: send everything again."""
        while self.numbered and self.numbered[0].dropped:
            self.numbered.popleft()
        for outgoing in self.numbered:
            outgoing.dropped_before = outgoing.dropped
        self.resend = len(self.numbered)

    def attached(self, expected: int) -> Iterator[Settle]:
        """The home expects this number next: all earlier ones are accepted."""
        yield from self.acknowledged(expected - 1)
        self.next_number = max(self.next_number, expected)
        self.restart()

    def acknowledged(self, number: int) -> Iterator[Settle]:
        while self.numbered and self.numbered[0].number <= number:
            outgoing = self.numbered.popleft()
            if not outgoing.dropped:
                yield Settle(outgoing.ticket)
        self.resend = min(self.resend, len(self.numbered))

    def refused(self, message: wire.NotAccepted, now_s: float) -> Iterator[Settle]:
        """The home wants this number again, or has dropped it for good."""
        if _may_retry(message.code):
            self.paused_until_s = now_s + (message.retry_after_s or 0.0)
            self.resend = sum(1 for outgoing in self.numbered if outgoing.number >= message.number)
            return
        yield from self.dropped(message)

    def dropped(self, message: wire.NotAccepted) -> Iterator[Settle]:
        """The home has dropped this number for good, unless it may be sent again."""
        for outgoing in () if _may_retry(message.code) else self.numbered:
            if outgoing.number == message.number and not outgoing.dropped:
                yield Settle(outgoing.ticket, message.code, message.message)
                outgoing.dropped, outgoing.data = True, b""

    def fail_all(self, code: str, text: str) -> Iterator[Settle]:
        for outgoing in self.numbered:
            if not outgoing.dropped:
                yield Settle(outgoing.ticket, code, text)
        for ticket, _ in self.queued:
            yield Settle(ticket, code, text)
        self.numbered.clear()
        self.queued.clear()
        self.resend = 0

    def batches(self, at: int, message_bytes: int, frame_bytes: int, now_s: float) -> Iterator[wire.Publish | Settle]:
        """Frames with everything that may be sent now, and the messages that are too large for this home."""
        if now_s < self.paused_until_s:
            return
        yield from self._number_queued(message_bytes)
        unsent = islice(self.numbered, len(self.numbered) - self.resend, None)
        ready = list(takewhile(lambda outgoing: not outgoing.dropped, unsent))
        self.resend -= len(ready)
        start, size_bytes, limit_bytes = 0, 0, int(frame_bytes * _FRAME_SHARE)
        for index, outgoing in enumerate(ready):
            if index > start and size_bytes + len(outgoing.data) > limit_bytes:
                yield _frame(at, ready[start:index])
                start, size_bytes = index, 0
            size_bytes += len(outgoing.data) + 16
        if ready:
            yield _frame(at, ready[start:])

    def _number_queued(self, message_bytes: int) -> Iterator[Settle]:
        while self.queued and len(self.numbered) < WINDOW_MESSAGES:
            ticket, data = self.queued.popleft()
            if len(data) > message_bytes:
                yield Settle(ticket, str(Code.TOO_LARGE), f"a message has at most {message_bytes:,} bytes")
                continue
            self.numbered.append(Outgoing(self.next_number, ticket, data))
            self.next_number += 1
            self.resend += 1


def _may_retry(code: str) -> bool:
    try:
        return Code(code).retry
    except ValueError:
        return False


def _frame(at: int, outgoing: list[Outgoing]) -> wire.Publish:
    return wire.Publish(at, outgoing[0].number, [message.data for message in outgoing])
