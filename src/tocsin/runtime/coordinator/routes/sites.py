"""The neighbouring sites: their links and flows; and the WebSocket that a neighbour's coordinator opens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response, WebSocket

from tocsin.coordinator.site_views import sites_view
from tocsin.runtime.coordinator.routes.authentication import require_read, require_site
from tocsin.runtime.http.answers import answer
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.neighbour_link import PATH

router = APIRouter(tags=["sites"])


@router.get("/v1/sites", response_class=Response)
async def list_sites(request: Request) -> Response:
    """This site's neighbours: state of the link, flows with the messages that have crossed, round trips of pings."""
    context = require_read(request)
    federation, connections = context.core.federation, context.process.neighbours
    if federation is None or connections is None:
        return answer({"site": None, "neighbours": []})
    view = sites_view(federation, context.process.now_s())
    for neighbour in view["neighbours"]:
        neighbour["round_trip"] = _percentiles(connections.round_trips_s(neighbour["site"]))
    return answer(view)


def _percentiles(round_trips_s: list[float]) -> dict[str, Any]:
    ordered = sorted(round_trips_s)
    if not ordered:
        return {"count": 0}
    parts = {"p50_s": 0.5, "p99_s": 0.99}
    return {"count": len(ordered), "last_s": round_trips_s[-1], "most_s": ordered[-1]} | {
        name: ordered[min(len(ordered) - 1, int(part * len(ordered)))] for name, part in parts.items()
    }


@router.websocket(PATH)
async def site_link(socket: WebSocket, site: str) -> None:
    context = require_site(socket, site)
    connections = context.process.neighbours
    if context.core.federation is None or connections is None:
        raise TocsinError(Code.NOT_FOUND, "this site has no neighbours: set site and neighbours")
    await socket.accept()
    await connections.accept(site, socket)
