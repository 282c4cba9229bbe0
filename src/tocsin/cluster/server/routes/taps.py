"""`GET /v1/datasets/{name}/tap`: a sample of a dataset's records as they are accepted, for people to look at.

Server-sent events: `opening` with existing records, then `records` with new ones; each is a JSON array. The tap sends
at most some hundred records a second and keeps nothing for a disconnected reader: `cluster.feed.tap` states the limits.
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
from tocsin.cluster.server.routes.authentication import require_read
from tocsin.cluster.server.routes.context import ClusterContext
from tocsin.runtime.http.answers import EVENT_STREAM, STREAM_HEADERS, encode
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["taps"])

PULL_S = 0.25
"""Pause between two reads of new records."""
MOST_PER_S = 500
TAPS = 100
"""The most taps open at a time, over all datasets."""


@router.get("/v1/datasets/{name}/tap", response_class=Response)
async def tap(request: Request, name: str) -> StreamingResponse:
    """Stream a sample of the accepted records. Some are left out, and none is kept for a disconnected reader."""
    context = require_read(request)
    live = context.cluster.dataset(name)
    if context.taps >= TAPS:
        raise TocsinError(Code.BACKLOGGED, f"{TAPS} taps are open already; close some", retry_after_s=10)
    return StreamingResponse(_events(context, live), headers=STREAM_HEADERS, media_type=EVENT_STREAM)


async def _events(context: ClusterContext, live: LiveDataset) -> AsyncIterator[bytes]:
    stopping = asyncio.Event()
    last_event_s = time.monotonic()
    version: int | None = None
    reader = None if live.gateway is None else TapReader(live.dataset, live.gateway.recent)
    context.taps += 1
    try:
        yield b"retry: 2000\n\n"
        if reader is not None:
            yield _event("opening", await asyncio.to_thread(reader.opening))
        with context.process.calling_on_stop(stopping.set):
            while not context.process.stopping.is_set() and _exists(context, live):
                event = b""
                if reader is not None:
                    records = reader.news(int(MOST_PER_S * PULL_S))
                    event = _event("records", records) if records else b""
                elif live.writer.version != version:
                    version = live.writer.version
                    cluster = context.cluster
                    rows = await asyncio.to_thread(static_records, live.dataset, cluster.catalog, cluster.storage)
                    event = _event("opening", [encode(row) for row in rows])
                if not event and time.monotonic() - last_event_s >= context.settings.heartbeat_s:
                    event = b": alive\n\n"
                if event:
                    last_event_s = time.monotonic()
                    yield event
                with suppress(TimeoutError):
                    async with asyncio.timeout(PULL_S):
                        await stopping.wait()
    finally:
        context.taps -= 1


def _exists(context: ClusterContext, live: LiveDataset) -> bool:
    """True while the dataset exists. False if it was dropped, even if a dataset of the same name was created since."""
    try:
        return context.cluster.dataset(live.dataset.name) is live
    except TocsinError:
        return False


def _event(name: str, records: list[bytes]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: [" + b",".join(records) + b"]\n\n"
