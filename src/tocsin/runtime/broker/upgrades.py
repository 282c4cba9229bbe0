"""The protocol of a WebSocket by its path: uvicorn makes one object for each upgrade, before it knows the path.

The object passes the request to the protocol that serves the path, and the transport to it at the end of the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any


def upgrade_class(by_path: Mapping[str, Callable[..., Any]], default: Callable[..., Any]) -> type[asyncio.Protocol]:
    """The class for uvicorn. `default` serves every path that is not in `by_path`."""

    class Upgrade(asyncio.Protocol):
        def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
            self._arguments = (config, server_state, app_state)
            self._transport: Any = None
            self._chosen: Any = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = transport

        def data_received(self, data: bytes) -> None:
            if self._chosen is None:
                self._chosen = by_path.get(_path(data), default)(*self._arguments)
                self._chosen.connection_made(self._transport)
                asyncio.get_running_loop().call_soon(self._hand_over)
            self._chosen.data_received(data)

        def _hand_over(self) -> None:
            """uvicorn has set this object as the transport's protocol by now."""
            if self._transport.get_protocol() is self:
                self._transport.set_protocol(self._chosen)

        def connection_lost(self, error: Exception | None) -> None:
            if self._chosen is not None:
                self._chosen.connection_lost(error)

        def eof_received(self) -> None:
            return

        def pause_writing(self) -> None:
            self._chosen.pause_writing()

        def resume_writing(self) -> None:
            self._chosen.resume_writing()

        def shutdown(self) -> None:
            """Called by uvicorn when the server stops."""
            self._chosen.shutdown()

    return Upgrade


def _path(request: bytes) -> str:
    target = request.split(b" ", 2)[1] if request.count(b" ", 0, 4096) >= 2 else b""
    return target.partition(b"?")[0].decode("latin-1")
