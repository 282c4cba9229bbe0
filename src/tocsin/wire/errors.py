"""Error codes: one table for every server and every client.

A message tells the caller what to do next. Pure parts return a code; processes raise `TocsinError`, servers answer with
it as `{"error": {"code", "message", …}}`, and clients turn that answer back into a `TocsinError`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

import msgspec


class Code(StrEnum):
    """Name of the error, and the HTTP status that carries it."""

    status: int

    def __new__(cls, name: str, status: int = 500) -> Self:  # the default is for `Code(name)`, a look-up
        code = str.__new__(cls, name)
        code._value_ = name
        code.status = status
        return code

    BAD_REQUEST = "bad_request", 400
    BAD_SQL = "bad_sql", 400
    BAD_PARAMETER = "bad_parameter", 400
    BAD_RECORDS = "bad_records", 400
    BAD_CURSOR = "bad_cursor", 400
    UNAUTHENTICATED = "unauthenticated", 401
    FORBIDDEN = "forbidden", 403
    FOREIGN_USER = "foreign_user", 403
    UNPROVEN_USER = "unproven_user", 403
    UNKNOWN_DATASET = "unknown_dataset", 404
    UNKNOWN_CHANNEL = "unknown_channel", 404
    UNKNOWN_FEED = "unknown_feed", 404
    UNKNOWN_SUBSCRIPTION = "unknown_subscription", 404
    UNKNOWN_TOPIC = "unknown_topic", 404
    NOT_FOUND = "not_found", 404
    TOO_SLOW = "too_slow", 408
    EXISTS = "exists", 409
    IN_USE = "in_use", 409
    NOT_A_FEED_TARGET = "not_a_feed_target", 409
    NEWER_FORMAT = "newer_format", 409
    TOO_LARGE = "too_large", 413
    NOT_HOME = "not_home", 421
    IDEMPOTENCY_CONFLICT = "idempotency_conflict", 422
    BACKLOGGED = "backlogged", 429
    LIMITED = "limited", 429
    TOO_MANY = "too_many", 429
    INTERNAL = "internal", 500
    NOT_READY = "not_ready", 503

    @property
    def retry(self) -> bool:
        """True if the same request, unchanged, may succeed later."""
        return self in (Code.BACKLOGGED, Code.NOT_READY, Code.NOT_HOME)


_CODE_OF_PROXY_STATUS = {
    **{code.status: code for code in (Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.NOT_FOUND, Code.TOO_LARGE)},
    429: Code.BACKLOGGED,
    **dict.fromkeys((502, 503, 504), Code.NOT_READY),
}
"""Status → code, for answers of a proxy, whose bodies carry no code. Other statuses are INTERNAL."""


class TocsinError(Exception):
    """A request was refused or failed; the code and the message go to the caller."""

    def __init__(self, code: Code, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    def details(self) -> dict[str, Any]:
        """Further fields of the error in an answer, besides code and message; values that JSON can hold."""
        return {}


STANDBY_HEADER = "Tocsin-Standby"
"""The header of an answer of a process that does not lead. Its value is the leader's address, as far as it is known."""


class NotLeading(TocsinError):
    """This process is a standby, or has lost its lease: the request changed nothing, and the leader takes it."""

    def __init__(self, message: str, leader: str = "") -> None:
        super().__init__(Code.NOT_READY, message, retry_after_s=1)
        self.leader = leader


class _Error(msgspec.Struct):
    code: str
    message: str


class _ErrorAnswer(msgspec.Struct):
    error: _Error


_decode = msgspec.json.Decoder(_ErrorAnswer).decode


def error_from(
    status: int, body: bytes, *, retry_after: str = "", fallback: Code | None = None, message: str = ""
) -> TocsinError:
    """The error that an HTTP answer carries. `retry_after` is the text of that header.

    When the body is not one of ours, the code is `fallback`, or follows from the status if that is None, and `message`
    is the message. A code that this version does not know becomes INTERNAL and is named in the message.
    """
    wait_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
    try:
        error = _decode(body).error
    except (ValueError, RecursionError):
        code = fallback or _CODE_OF_PROXY_STATUS.get(status, Code.INTERNAL)
        return TocsinError(code, message or f"HTTP status {status}", retry_after_s=wait_s)
    try:
        return TocsinError(Code(error.code), error.message, retry_after_s=wait_s)
    except ValueError:
        return TocsinError(Code.INTERNAL, f"{error.message} ({error.code})", retry_after_s=wait_s)
