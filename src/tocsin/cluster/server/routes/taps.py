"""`GET /v1/datasets/{name}/tap`: records as they are accepted, to look at; `cluster.tap` says what it is not.

Server-sent events: `opening`, what there is, then `records`, what is new; each an array, some hundreds a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from tocsin.cluster.feed.tap import TapReader, static_records
from tocsin.cluster.live import LiveDataset
from tocsin.cluster.server.routes.api import Api, require_read
from tocsin.runtime.http.answers import EVENT_STREAM, STREAM_HEADERS, encode
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["taps"])

PULL_S = 0.25
MOST_PER_S = 500
TAPS = 100
"""Open at a time, over all datasets."""


@router.get("/v1/datasets/{name}/tap", response_class=Response)
async def tap(request: Request, name: str) -> StreamingResponse:
    """A look at records as they come in: thinned, best effort, nothing is kept for a reader that is away."""
    api = require_read(request)
    live = api.cluster.dataset(name)
    if api.taps >= TAPS:
        raise TocsinError(Code.BACKLOGGED, f"{TAPS} taps are open already; close some", retry_after_s=10)
    return StreamingResponse(_events(api, live), headers=STREAM_HEADERS, media_type=EVENT_STREAM)


async def _events(api: Api, live: LiveDataset) -> AsyncIterator[bytes]:
    api.taps += 1
    try:
        async for event in _looks(api, live):
            yield event
    finally:
        api.taps -= 1


async def _looks(api: Api, live: LiveDataset) -> AsyncIterator[bytes]:
    stopping = asyncio.Event()
    said_s = time.monotonic()
    version: int | None = None
    reader = None if live.gateway is None else TapReader(live.dataset, live.gateway.recent)
    yield b"retry: 2000\n\n"
    if reader is not None:
        yield _event("opening", await asyncio.to_thread(reader.opening))
    with api.process.calling_on_stop(stopping.set):
        while not api.process.stopping.is_set() and _is_there(api, live):
            event = b""
            if reader is not None:
                news = reader.news(int(MOST_PER_S * PULL_S))
                event = _event("records", news) if news else b""
            elif live.writer.version != version:
                version = live.writer.version
                rows = await asyncio.to_thread(static_records, live.dataset, api.cluster.catalog, api.cluster.storage)
                event = _event("opening", [encode(row) for row in rows])
            if not event and time.monotonic() - said_s >= api.settings.heartbeat_s:
                event = b": alive\n\n"
            if event:
                said_s = time.monotonic()
                yield event
            with suppress(TimeoutError):
                async with asyncio.timeout(PULL_S):
                    await stopping.wait()


def _is_there(api: Api, live: LiveDataset) -> bool:
    """Not dropped, nor dropped and created again."""
    try:
        return api.cluster.dataset(live.dataset.name) is live
    except TocsinError:
        return False


def _event(name: str, records: list[bytes]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: [" + b",".join(records) + b"]\n\n"
