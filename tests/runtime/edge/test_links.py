"""Connections between nodes: a failure inside this process ends the connection, and is reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve

from tocsin.edge.messages import Piece
from tocsin.model.edge import EdgeNodeId, OperatorId
from tocsin.runtime.edge.control_links import ControlClient
from tocsin.runtime.edge.data_links import DataUplink
from tocsin.runtime.edge.links import Channel
from tocsin.wire import edge_data, edge_link


@asynccontextmanager
async def server(handle: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[str]:
    async with serve(handle, "127.0.0.1", 0) as listening:
        [socket] = listening.sockets
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"


def test_error_of_a_handler_is_no_lost_connection() -> None:
    async def never(_message: bytes) -> None:
        await asyncio.Event().wait()

    async def message() -> bytes:
        return b"x"

    def fail(_message: bytes) -> None:
        raise RuntimeError("an invariant is broken")

    async def run() -> None:
        with pytest.raises(RuntimeError, match="invariant"):
            await Channel(never, message, "peer").run(fail)

    asyncio.run(run())


def test_pieces_that_cannot_be_encoded_end_the_connection_to_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the node would wait for ever: nothing would ever reach the parent."""

    async def run() -> None:
        async def handle(connection: ServerConnection) -> None:
            await connection.wait_closed()

        def fail(_self: object, _items: object) -> list[bytes]:
            raise ValueError("not encodable")

        monkeypatch.setattr(edge_data.PieceEncoder, "encode", fail)
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with server(handle) as address:
            node, parent = EdgeNodeId("leaf"), EdgeNodeId("root")
            uplink = DataUplink(node, parent, address, None, 1, None, lambda _credit: None, lost.set_result)
            uplink.send(Piece(OperatorId("Use/final"), 0, None, 5))
            async with asyncio.timeout(5):
                assert "ValueError" in await lost

    asyncio.run(run())


def test_node_keeps_its_connection_to_the_root_after_a_message_that_failed() -> None:
    async def run() -> None:
        registered = 0
        twice = asyncio.Event()

        async def handle(connection: ServerConnection) -> None:
            nonlocal registered
            await connection.recv()
            registered += 1
            if registered == 2:
                twice.set()
            await connection.send(msgspec.json.encode(edge_link.Fenced(1)))
            await connection.wait_closed()

        def fail(_message: edge_link.RootMessage) -> None:
            raise LookupError("unexpected")

        async with server(handle) as address:
            client = ControlClient(address, None)
            client.start(lambda: edge_link.Register("leaf", "root", 1, "", [], []), fail)
            async with asyncio.timeout(5):
                await twice.wait()
            await client.stop()

    asyncio.run(run())
