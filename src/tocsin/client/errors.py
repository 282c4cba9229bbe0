"""The exceptions of the SDK. Each has an error code.

TocsinError (wire.errors; `.code`, `.message`, `.retry_after_s`)
└── ClientError
    ├── Unreachable         no answer in time; a retry may succeed
    ├── Denied              the token is missing, wrong, expired, or does not permit this
    ├── RequestRefused      the server refused the request; `.code` says why
    ├── SessionReplaced     another session of this subscriber replaced this one; do not reconnect
    ├── SessionEnded        the broker ended the session for good, or the program closed the subscriber
    ├── SubscriptionEnded   the channel was dropped, or the program unsubscribed
    ├── ResultsMissed       results passed their retention before delivery; iteration may continue after the gap
    ├── BadResult           a result does not fit the requested type; iteration may continue after it
    └── Unread              the delivery queue is full of results that the program does not read
"""

from __future__ import annotations

from tocsin.wire.errors import Code, TocsinError


class ClientError(TocsinError):
    """The base class of all exceptions of the SDK."""


class Unreachable(ClientError):
    pass


class Denied(ClientError):
    pass


class RequestRefused(ClientError):
    pass


class SessionReplaced(ClientError):
    pass


class SessionEnded(ClientError):
    pass


class SubscriptionEnded(ClientError):
    def __init__(self, code: Code, message: str, *, asked: bool = False) -> None:
        super().__init__(code, message)
        self.asked = asked
        """True if the program itself unsubscribed."""


class ResultsMissed(ClientError):
    def __init__(self, message: str, cursor: str) -> None:
        super().__init__(Code.BAD_CURSOR, message)
        self.cursor = cursor
        """Delivery continues at this cursor."""


class BadResult(ClientError):
    def __init__(self, message: str, raw: bytes, cursor: str) -> None:
        super().__init__(Code.BAD_RECORDS, message)
        self.raw = raw
        """The encoded result."""
        self.cursor = cursor


class Unread(ClientError):
    pass


_DENIALS = (Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.FOREIGN_USER, Code.UNPROVEN_USER)


def error_for(code: str, message: str, retry_after_s: float | None = None) -> ClientError:
    """The exception for an error code of a server or a close reason of a session."""
    if code == "replaced":
        return SessionReplaced(Code.IN_USE, message)
    try:
        error_code = Code(code)
    except ValueError:
        return SessionEnded(Code.INTERNAL, f"{message} ({code})")
    if error_code in _DENIALS:
        return Denied(error_code, message)
    if error_code.retry:
        return Unreachable(error_code, message, retry_after_s=retry_after_s)
    return RequestRefused(error_code, message, retry_after_s=retry_after_s)
