"""A WebSocket handshake that a server refuses gets an HTTP answer, and the log stays silent."""

from __future__ import annotations

import asyncio
import logging

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tocsin.runtime.http.bounded_protocols import BoundedWebSocket
from tocsin.runtime.http.listening import Server, listen


def test_refused_handshake_has_its_status_and_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "websocket.http.response.start", "status": 503, "headers": [(b"retry-after", b"2")]})
        await send({"type": "websocket.http.response.body", "body": b"starting", "more_body": True})
        await send({"type": "websocket.http.response.body", "body": b", wait"})

    async def scenario() -> None:
        listening = listen("127.0.0.1", 0)
        server = Server(uvicorn.Config(refuse, ws=BoundedWebSocket, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{listening.getsockname()[1]}")
        assert (refused.value.response.status_code, refused.value.response.body) == (503, b"starting, wait")
        server.should_exit = True
        await serving
        listening.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert not caplog.records, [record.message for record in caplog.records]
