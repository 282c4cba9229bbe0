"""`tocsin replay`: serves the dashboard and its stream from a file, on this machine only and without tokens.

GET /v1/watch is the same as the coordinator's. /v1/replay has the position of the replay, and changes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

from tocsin.runtime.http.answers import (
    EVENT_STREAM,
    STREAM_HEADERS,
    add_error_handlers,
    answer,
    read_json,
    request_body,
)
from tocsin.runtime.http.listening import CLOSE_S, Server, listen, stop_on_signals
from tocsin.runtime.http.pages import serve_pages
from tocsin.runtime.http.trace_recording import read_trace
from tocsin.runtime.http.trace_stream import TraceStream
from tocsin.web import PAGES
from tocsin.web.player import Player
from tocsin.wire.errors import Code, TocsinError

FRAME_S = 0.5
HOST = "127.0.0.1"


class ReplayChange(msgspec.Struct, forbid_unknown_fields=True):
    at_s: float | None = None
    """Seek to this time; a time outside the trace is moved to its beginning or end."""
    speed: Annotated[float, msgspec.Meta(ge=0.01, le=100_000)] | None = None
    """Trace seconds per second."""
    playing: bool | None = None


class Replay:
    """A player with its watchers, driven by the loop's clock."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self.stream = TraceStream(player.picture)
        self._lock = asyncio.Lock()
        """Held while the player works in a thread."""

    def view(self) -> dict[str, Any]:
        player = self._player
        return {
            "from_s": player.from_s,
            "to_s": player.to_s,
            "at_s": player.at_s,
            "speed": player.speed,
            "playing": player.playing,
        }

    async def change(self, request: ReplayChange) -> None:
        async with self._lock:
            player = self._player
            if request.speed is not None:
                player.speed = request.speed
            if request.at_s is not None:
                await asyncio.to_thread(player.seek, request.at_s)
            restarts = False
            if request.playing is not None:
                restarts = await asyncio.to_thread(player.play, request.playing)
            if restarts or request.at_s is not None:
                self.stream.start_over()

    async def run(self) -> None:
        """Send frames until cancelled."""
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        while True:
            await asyncio.sleep(FRAME_S)
            async with self._lock:
                now_s = loop.time()
                frame = await asyncio.to_thread(self._player.advance, now_s - before_s)
                before_s = now_s
                if frame.jumped:
                    self.stream.start_over()
                else:
                    self.stream.send(frame.rows)


def make_app(replay: Replay, pages: Path = PAGES) -> FastAPI:
    app = FastAPI(
        title="Tocsin replay", openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None, redirect_slashes=False
    )
    # Protects against DNS rebinding: a page of another site whose name resolves to this machine is refused.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])

    @app.get("/v1/watch", response_class=Response)
    async def watch(positions: bool = True) -> StreamingResponse:
        """Server-sent events `picture` and `rows`, as the live coordinator sends them."""
        return StreamingResponse(replay.stream.watch(positions), headers=STREAM_HEADERS, media_type=EVENT_STREAM)

    @app.get("/v1/replay", response_class=Response)
    async def position() -> Response:
        return answer(replay.view())

    @app.put("/v1/replay", openapi_extra=request_body(ReplayChange), response_class=Response)
    async def change(request: Request) -> Response:
        """Seek, set the speed, play or pause. Watchers get a new picture after a seek."""
        await replay.change(await read_json(request, ReplayChange))
        return answer(replay.view())

    serve_pages(app, pages)
    add_error_handlers(app)
    return app


class ReplayServer:
    """`run` it in an event loop. `ready` is called with the address."""

    def __init__(
        self, path: Path, *, port: int = 8580, speed: float = 1.0, ready: Callable[[str], None] = lambda address: None
    ) -> None:
        self._path, self._port, self._speed, self._ready = path, port, speed, ready
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Begin to stop the server. Call it from the loop's own thread."""
        self._stop.set()

    async def run(self) -> None:
        table = await asyncio.to_thread(read_trace, self._path)
        if not table.num_rows:
            raise TocsinError(Code.BAD_REQUEST, f"{self._path} is a trace without rows: there is nothing to show")
        replay = Replay(await asyncio.to_thread(Player, table, self._speed))
        listening = listen(HOST, self._port)
        server = Server(
            uvicorn.Config(
                make_app(replay),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=CLOSE_S,
            )
        )
        with listening, stop_on_signals(self._stop):
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            playing = asyncio.create_task(replay.run())
            stopping = asyncio.create_task(self._stop.wait())
            self._ready(f"http://{HOST}:{listening.getsockname()[1]}")
            await asyncio.wait((stopping, serving, playing), return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                playing.result()  # raises its error
            stopping.cancel()
            playing.cancel()
            replay.stream.close()
            server.should_exit = True
            await asyncio.gather(serving, stopping, playing, return_exceptions=True)
