"""The demo's HTTP requests: on a slow machine a server may still be starting, or start again. All may be repeated."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import httpx

from tocsin.wire.errors import Code, TocsinError, error_from

_LIMIT_S: Final = 180.0
"""How long a request is repeated while the server does not answer or is not ready."""
_PAUSE_S: Final = 0.5
_REPEATED: Final = frozenset({Code.NOT_READY, Code.BACKLOGGED})


async def request_when_ready(
    client: httpx.AsyncClient, method: str, path: str, *, limit_s: float = _LIMIT_S, **request: Any
) -> httpx.Response:
    """The successful answer. Raises `TocsinError` with the reason if there is none within `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while True:
        error = await _attempt(client, method, path, request)
        if isinstance(error, httpx.Response):
            return error
        if error.code not in _REPEATED:
            raise error
        if time.monotonic() > deadline_s:
            raise TocsinError(
                error.code,
                f"{error.message}; still so after {limit_s:g} s, so this machine may be too slow or too busy",
            )
        await asyncio.sleep(_PAUSE_S)


async def _attempt(
    client: httpx.AsyncClient, method: str, path: str, request: dict[str, Any]
) -> httpx.Response | TocsinError:
    try:
        answer = await client.request(method, path, **request)
    except httpx.TransportError as error:
        return TocsinError(Code.NOT_READY, f"no answer from {client.base_url} to {path} ({type(error).__name__})")
    if answer.is_success:
        return answer
    message = f"{client.base_url} answered {answer.status_code} to {path}"
    return error_from(answer.status_code, answer.content, fallback=Code.INTERNAL, message=message)


def explained(error: BaseException) -> TocsinError | None:
    """The reason of an error that a slow or busy machine causes; None for any other error, which is a bug.

    Tasks that run at the same time fail as a group: the first explained error of a group is the reason.
    """
    if isinstance(error, TocsinError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((reason for reason in map(explained, error.exceptions) if reason is not None), None)
    if isinstance(error, TimeoutError | httpx.HTTPError):
        reason = f"{type(error).__name__} {error}".strip()
        return TocsinError(Code.NOT_READY, f"a step took too long ({reason}): this machine may be too slow or too busy")
    return None
