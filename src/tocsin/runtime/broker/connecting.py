"""Parts that the broker's connections to coordinator and data cluster share: back-off, TLS, errors in answers."""

from __future__ import annotations

import random
import ssl

import httpx

from tocsin.model.backoff import retry_delay_s
from tocsin.wire.errors import Code, TocsinError, error_from

LONGEST_S = 15.0
_rng = random.Random()


def jittered_s(failures: int) -> float:
    """Seconds to wait before the next attempt, with jitter so that many brokers do not reconnect at the same moment."""
    return retry_delay_s(failures, longest_s=LONGEST_S, jitter=_rng.uniform(0.5, 1.0)) if failures else 0.1


def tls_context(address: str, ca: str | None) -> ssl.SSLContext | None:
    """The TLS context for an https address; None for http."""
    return ssl.create_default_context(cafile=ca) if address.startswith("https:") else None


def reason_of(error: Exception) -> str:
    return str(error) or type(error).__name__


def error_of(answer: httpx.Response) -> TocsinError:
    """The error in an answer. A proxy's error counts as NOT_READY, because the data cluster did not refuse."""
    return error_from(
        answer.status_code,
        answer.content,
        retry_after=answer.headers.get("retry-after", ""),
        fallback=Code.NOT_READY,
        message=answer.reason_phrase,
    )
