"""Serves the real page with a made-up city behind it: GET /v1/watch, a recording's /v1/replay, a broker's lists.

For tests of the page alone: many people, broken streams, wrong tokens. The page's files and headers are the ones that a
coordinator serves; the main browser tests run against a real network.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import tocsin.web
from tests.web.made_up_city import MadeUpCity

STATIC = Path(tocsin.web.__file__).parent / "static"
POLICY = "default-src 'self'; connect-src 'self' ws: wss:"
TOKEN = "let-me-in"


class CityServer:
    def __init__(self, city: MadeUpCity, *, replay: bool = False, pace_s: float = 1.0) -> None:
        self.city, self.pace_s = city, pace_s
        self.broken = False
        """While it is, every stream ends and none begins."""
        self.replay: dict[str, Any] | None = None
        if replay:
            self.replay = {"from_s": 0.0, "to_s": 600.0, "at_s": city.now_s, "speed": 1.0, "playing": True}
        self.app = Starlette(
            routes=[
                Route("/", self.page),
                Route("/v1/watch", self.watch),
                Route("/v1/brokers/{broker}/subscribers", self.subscribers),
                Route("/v1/brokers/{broker}/subscriptions", self.subscriptions),
                Route("/v1/replay", self.get_replay, methods=["GET", "PUT"]),
                Mount("/static", StaticFiles(directory=STATIC)),
            ]
        )
        self.address = ""

    async def page(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"Content-Security-Policy": POLICY})

    async def watch(self, request: Request) -> Response:
        if self.replay is None and request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"error": {"code": "unauthenticated", "message": "send a token"}}, 401)
        if self.broken:
            return JSONResponse({"error": {"code": "not_ready", "message": "later"}}, 503)
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[str]:
        yield f"event: picture\ndata: {json.dumps(self.city.picture())}\n\n"
        while not self.broken:
            await asyncio.sleep(self.pace_s)
            yield f"event: rows\ndata: {json.dumps(self.city.second())}\n\n"

    async def subscribers(self, request: Request) -> Response:
        index = self.city.brokers.index(request.path_params["broker"])
        here = [f"p{number}" for number, home in enumerate(self.city.homes) if home == index]
        rows = [{"subscriber": one, "online": True, "subscriptions": 2, "load_bytes_per_s": 90.0} for one in here[:100]]
        return JSONResponse({"subscribers": rows, "total": len(here)})

    async def subscriptions(self, request: Request) -> Response:
        held = {"subscription": "0" * 32, "channel": "EmergenciesOfType", "parameters": {"kind": "fire"}}
        return JSONResponse({"subscriptions": [{**held, "frontend": 12, "rate_bytes_per_s": 240.0}], "total": 1})

    async def get_replay(self, request: Request) -> Response:
        if self.replay is None:
            return JSONResponse({"error": {"code": "not_found", "message": "this is live"}}, 404)
        if request.method == "PUT":
            self.replay |= await request.json()
        return JSONResponse(self.replay)


@contextmanager
def served(server: CityServer) -> Iterator[CityServer]:
    config = uvicorn.Config(server.app, port=0, log_level="error", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        thread.join(0.01)
    server.address = f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    yield server
    server.broken = running.should_exit = True
    thread.join(10)
