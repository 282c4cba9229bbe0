"""Web pages beside an API: `/` is one file of a folder, by default its index.html, `/static/…` its files.

Pages load no files from other hosts.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    # Brokers run on other hosts: a page may open WebSockets to any host, but other connections only to its own.
    "content-security-policy": "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def serve_pages(app: FastAPI, folder: Path, index: str = "index.html") -> None:
    """Serve the folder without authentication: pages contain no secret, and every request they make needs a token.

    `index` is the file at `/`.
    """

    @app.get("/", include_in_schema=False)
    async def show_index() -> Response:
        return FileResponse(folder / index, headers=_HEADERS)

    app.mount("/static", _WithHeaders(StaticFiles(directory=folder)))


class _WithHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, send_with_headers)
