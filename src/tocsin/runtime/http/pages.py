"""Web pages beside an API: `/` is a folder's index.html, `/static/…` its files. Nothing is loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    # Brokers are other hosts: a page may open WebSockets to them, and nothing else to anybody.
    "content-security-policy": "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def serve_pages(app: FastAPI, folder: Path) -> None:
    """To everybody: pages hold no secret, and every call they make does need a token."""

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(folder / "index.html", headers=_HEADERS)

    app.mount("/static", _WithHeaders(StaticFiles(directory=folder)))


class _WithHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, headed)
