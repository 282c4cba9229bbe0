"""Watching: everything that happens in the network, as one stream of trace rows (docs/watching.md)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from tocsin.runtime.coordinator.routes.api import require_read
from tocsin.runtime.http.answers import EVENT_STREAM, STREAM_HEADERS

router = APIRouter(tags=["watch"])


@router.get("/v1/watch", response_class=Response)
async def watch(request: Request, positions: bool = True) -> StreamingResponse:
    """Server-sent events: `picture`, the rows that rebuild the present, then about once a second `rows`.

    A reader that falls behind gets a new picture instead of a backlog. `positions=false` leaves out positions and
    streets.
    """
    api = require_read(request)
    _ = api.core
    return StreamingResponse(api.watch.stream.watch(positions), headers=STREAM_HEADERS, media_type=EVENT_STREAM)
