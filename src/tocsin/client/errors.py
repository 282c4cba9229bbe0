"""What can go wrong for a program that publishes or subscribes, as exceptions with codes.

TocsinError (wire.errors; `.code`, `.message`, `.retry_after_s`)
└── ClientError
    ├── Unreachable         nobody answered within the time given; trying again may help
    ├── Denied              the token is missing, wrong, expired, or not good for this
    ├── RequestRefused      the server understood and said no; `.code` says why
    ├── SessionReplaced     another session of this subscriber began elsewhere; this one must not fight it
    ├── SessionEnded        the broker ended the session for good, or this subscriber was closed
    ├── SubscriptionEnded   the channel is gone, or the subscription was given up
    ├── ResultsMissed       results passed their retention before they could be delivered; iterating goes on after
    ├── BadResult           a result does not fit the type that was asked for; iterating goes on after it
    └── Unread              results that nobody iterates over fill the memory set aside for waiting ones
"""

from __future__ import annotations

from tocsin.wire.errors import Code, TocsinError


class ClientError(TocsinError):
    """The root of everything below: catch it to catch all."""


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
        """By this program itself."""


class ResultsMissed(ClientError):
    def __init__(self, message: str, cursor: str) -> None:
        super().__init__(Code.BAD_CURSOR, message)
        self.cursor = cursor
        """Where delivery goes on."""


class BadResult(ClientError):
    def __init__(self, message: str, raw: bytes, cursor: str) -> None:
        super().__init__(Code.BAD_RECORDS, message)
        self.raw = raw
        """The result as it came."""
        self.cursor = cursor


class Unread(ClientError):
    pass


_DENIALS = (Code.UNAUTHENTICATED, Code.FORBIDDEN)


def error_for(code: str, message: str, retry_after_s: float | None = None) -> ClientError:
    """The exception for a code that a server or the session's logic gave."""
    if code == "replaced":
        return SessionReplaced(Code.IN_USE, message)
    try:
        known = Code(code)
    except ValueError:
        return SessionEnded(Code.INTERNAL, f"{message} ({code})")
    if known in _DENIALS:
        return Denied(known, message)
    if known.retry:
        return Unreachable(known, message, retry_after_s=retry_after_s)
    return RequestRefused(known, message, retry_after_s=retry_after_s)
