"""Error codes: one table for every server and every client.

Each code has the HTTP status that carries it, and says whether a retry may succeed. A message tells the caller what to
do next. Pure parts return a code; processes raise `TocsinError`, servers answer with it as
`{"error": {"code", "message", …}}`, and clients turn that answer back into a `TocsinError`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Code(StrEnum):
    BAD_REQUEST = "bad_request"
    BAD_SQL = "bad_sql"
    BAD_PARAMETER = "bad_parameter"
    BAD_RECORDS = "bad_records"
    BAD_CURSOR = "bad_cursor"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    UNKNOWN_DATASET = "unknown_dataset"
    UNKNOWN_CHANNEL = "unknown_channel"
    UNKNOWN_FEED = "unknown_feed"
    UNKNOWN_SUBSCRIPTION = "unknown_subscription"
    NOT_FOUND = "not_found"
    EXISTS = "exists"
    IN_USE = "in_use"
    NOT_A_FEED_TARGET = "not_a_feed_target"
    TOO_LARGE = "too_large"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    BACKLOGGED = "backlogged"
    INTERNAL = "internal"
    NOT_READY = "not_ready"

    @property
    def status(self) -> int:
        """The HTTP status that carries it."""
        return _STATUS[self]

    @property
    def retry(self) -> bool:
        """Whether the same request, unchanged, may succeed later."""
        return self in (Code.BACKLOGGED, Code.NOT_READY)


_STATUS = {
    Code.BAD_REQUEST: 400,
    Code.BAD_SQL: 400,
    Code.BAD_PARAMETER: 400,
    Code.BAD_RECORDS: 400,
    Code.BAD_CURSOR: 400,
    Code.UNAUTHENTICATED: 401,
    Code.FORBIDDEN: 403,
    Code.UNKNOWN_DATASET: 404,
    Code.UNKNOWN_CHANNEL: 404,
    Code.UNKNOWN_FEED: 404,
    Code.UNKNOWN_SUBSCRIPTION: 404,
    Code.NOT_FOUND: 404,
    Code.EXISTS: 409,
    Code.IN_USE: 409,
    Code.NOT_A_FEED_TARGET: 409,
    Code.TOO_LARGE: 413,
    Code.IDEMPOTENCY_CONFLICT: 422,
    Code.BACKLOGGED: 429,
    Code.INTERNAL: 500,
    Code.NOT_READY: 503,
}

_CODE_OF_PROXY_STATUS = {
    401: Code.UNAUTHENTICATED,
    403: Code.FORBIDDEN,
    404: Code.NOT_FOUND,
    413: Code.TOO_LARGE,
    429: Code.BACKLOGGED,
    502: Code.NOT_READY,
    503: Code.NOT_READY,
    504: Code.NOT_READY,
}
"""Codes for answers that a proxy wrote: their bodies carry no code."""


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


def error_from(
    status: int, body: bytes, *, retry_after: str = "", fallback: Code | None = None, message: str = ""
) -> TocsinError:
    """The error that an HTTP answer carries.

    `retry_after` is the text of the header. When the body is not one of ours, the code is `fallback`, or follows from
    the status if that is None, and `message` is the message. A code that this version does not know becomes INTERNAL
    and is named in the message.
    """
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoded = None
    error = decoded.get("error") if isinstance(decoded, dict) else None
    if not isinstance(error, dict):
        error = {}
    code = fallback or _CODE_OF_PROXY_STATUS.get(status, Code.INTERNAL)
    text = str(error.get("message") or message or f"HTTP status {status}")
    if name := error.get("code"):
        try:
            code = Code(name)
        except ValueError:
            code, text = Code.INTERNAL, f"{text} ({name})"
    wait = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
    return TocsinError(code, text, retry_after_s=wait)
