"""Parts that the broker's connections to coordinator and data cluster share: back-off, TLS, errors in answers."""

from __future__ import annotations

import random
import ssl
from typing import Any

import httpx
from websockets.exceptions import InvalidStatus

from tocsin.leaders.addresses import Leaders
from tocsin.model.backoff import retry_delay_s
from tocsin.wire.errors import STANDBY_HEADER, Code, TocsinError, error_from

LONGEST_S = 15.0
LONGEST_SEARCH_S = 1.0
"""The longest pause while several addresses are tried in turn."""
_rng = random.Random()


def jittered_s(failures: int) -> float:
    """Seconds to wait before the next attempt, with jitter so that many brokers do not reconnect at the same moment."""
    return retry_delay_s(failures, longest_s=LONGEST_S, jitter=_rng.uniform(0.5, 1.0)) if failures else 0.1


def pause_s(leaders: Leaders, failures: int) -> float:
    """Like `jittered_s`, but short if another address may lead by then."""
    return min(jittered_s(failures), LONGEST_SEARCH_S) if leaders.has_standbys else jittered_s(failures)


def silence_limits(leaders: Leaders) -> dict[str, Any]:
    """How long a WebSocket waits for a silent server. Where there is a standby, a stopped leader is noticed sooner."""
    if leaders.has_standbys:
        return {"open_timeout": 3, "ping_interval": 1.5, "ping_timeout": 3, "close_timeout": 0.5}
    return {"open_timeout": 10, "ping_interval": 10, "ping_timeout": 10, "close_timeout": 10}


def try_next(leaders: Leaders, address: str, error: Exception) -> None:
    """The connection to `address` failed or broke: another address may lead."""
    if isinstance(error, InvalidStatus) and STANDBY_HEADER in error.response.headers:
        leaders.is_standby(address, error.response.headers[STANDBY_HEADER])
    else:
        leaders.failed(address)


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
