"""Reads one request of a publisher: its size, its Idempotency-Key, its records. Both kinds of gateway use it."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.cluster.feed.outcomes import FeedLimits, Refused, TooLarge
from tocsin.cluster.feed.recordforms import Malformed, RecordForm, TooMany
from tocsin.cluster.feed.records import Decoded, RecordCodec

_MAX_IDEMPOTENCY_KEY_CHARACTERS = 255


class RequestReader:
    def __init__(self, codec: RecordCodec, limits: FeedLimits) -> None:
        self._codec = codec
        self._limits = limits

    def refusal(self, body: bytes, idempotency_key: str | None) -> Refused | None:
        """Why a request is refused unread; None if it is not."""
        if len(body) > self._limits.body_bytes:
            return TooLarge("body bytes", self._limits.body_bytes)
        if idempotency_key is not None and not 0 < len(idempotency_key) <= _MAX_IDEMPOTENCY_KEY_CHARACTERS:
            return Malformed(f"an Idempotency-Key has 1 to {_MAX_IDEMPOTENCY_KEY_CHARACTERS} characters")
        return None

    def decode(
        self,
        body: bytes,
        form: RecordForm,
        closely: bool = True,
        pause: Callable[[], None] | None = None,
        may_give_up: bool = False,
    ) -> Decoded | Refused | None:
        """With `may_give_up`, the caller reports the refusal to its publisher, which sends the body again."""
        codec = self._codec
        decoded = codec.decode(body, form, pause, may_give_up) if closely else codec.decode_good(body, form)
        if isinstance(decoded, TooMany):
            return TooLarge("records", decoded.limit)
        if isinstance(decoded, Decoded) and _has_longer_line(decoded.lines, self._limits.record_bytes):
            return TooLarge("record bytes", self._limits.record_bytes)
        return decoded


def _has_longer_line(lines: bytes, limit_bytes: int) -> bool:
    """True if a line is longer than the limit.

    Does not look at every line: the last newline within the limit starts the next step.
    """
    start = 0
    while len(lines) - start > limit_bytes:
        newline = lines.rfind(b"\n", start, start + limit_bytes + 1)
        if newline < 0:
            return True
        start = newline + 1
    return False
