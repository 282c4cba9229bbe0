"""Reading a server's event stream from a command."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from tocsin.cli.connection import checked
from tocsin.runtime.http.event_streams import events_of
from tocsin.wire.errors import Code, TocsinError

_SILENCE_S = 60.0
"""Servers say at least that they are alive more often than this."""


async def read_events(url: str, path: str, token: str | None) -> AsyncIterator[tuple[str, str]]:
    """(event, data) until the server ends it; raises `TocsinError` as a person can use it."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    timeout = httpx.Timeout(10.0, read=_SILENCE_S)
    try:
        async with (
            httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout) as client,
            client.stream("GET", path) as answer,
        ):
            if not answer.is_success:
                await answer.aread()
                checked(answer)
            async for event in events_of(answer.aiter_bytes()):
                yield event
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise TocsinError(
            Code.NOT_READY, f"no answer from {url} ({error}); is `tocsin up` running, or is --url right?"
        ) from error
