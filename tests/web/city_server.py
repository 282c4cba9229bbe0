"""Serves the real page with the rows of a random city: GET /v1/watch and the lists of a broker.

For tests of the page alone: many people, broken streams, wrong tokens. The page is served as by a coordinator. The
tests in tests/end_to_end use a real network.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.web.random_city import RandomCity
from tocsin.runtime.http.pages import serve_pages
from tocsin.web import PAGES

TOKEN = "let-me-in"


class CityServer:
    def __init__(self, city: RandomCity, *, pace_s: float = 1.0) -> None:
        self.city, self.pace_s = city, pace_s
        city.now_s = time.time()
        self.broken = False
        """While True, every stream ends and new ones are refused."""
        self.app = FastAPI()
        self.app.add_route("/v1/watch", self.watch)
        self.app.add_route("/v1/brokers/{broker}/subscribers", self.subscribers)
        self.app.add_route("/v1/brokers/{broker}/subscriptions", self.subscriptions)
        serve_pages(self.app, PAGES)
        self.address = ""

    async def watch(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
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
        names = [f"p{number}" for number, home in enumerate(self.city.homes) if home == index]
        values = {"online": True, "subscriptions": 2, "load_bytes_per_s": 90.0}
        rows = [{"subscriber": name, **values} for name in names[:100]]
        return JSONResponse({"subscribers": rows, "total": len(names)})

    async def subscriptions(self, request: Request) -> Response:
        held = {"subscription": "0" * 32, "channel": "EmergenciesOfType", "parameters": {"kind": "fire"}}
        return JSONResponse({"subscriptions": [{**held, "frontend": 12, "rate_bytes_per_s": 240.0}], "total": 1})


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
