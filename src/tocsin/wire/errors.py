"""Error codes: one table for every part that answers somebody.

Each code says which HTTP status carries it and whether trying again may help. Messages say what to do next. Pure parts
return a code; shells raise `TocsinError`, and servers turn it into an answer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


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
        """Whether the same request may succeed later without being changed."""
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


class TocsinError(Exception):
    """A refusal on its way to the person or program that asked."""

    def __init__(self, code: Code, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    def details(self) -> dict[str, Any]:
        """What else the answer says besides code and message, in terms JSON knows."""
        return {}
