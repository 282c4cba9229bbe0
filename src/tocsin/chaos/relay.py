"""TCP relays between the processes of a network. A relay can partition two processes, or lose answers of one.

Every process gets the relay's address in place of the address of the other process. A relay forwards bytes and knows no
protocol.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

_CHUNK_BYTES = 64 << 10
_HOST = "127.0.0.1"


class Relay:
    """The relay from one process to one other. It listens from its creation on, and forwards after `start`."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listening = socket.create_server((_HOST, 0), backlog=512)
        self.port = int(self._listening.getsockname()[1])
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._lost_answers = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, sock=self._listening)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def partition(self, lasting_s: float, limit_s: float = 0.0) -> bool:
        """Forward nothing, not even the end of a connection, for a while. Returns whether a connection was open.

        Waits up to `limit_s` for a connection first.
        """
        await _until(lambda: bool(self._connections), limit_s)
        self._is_open.clear()
        try:
            await asyncio.sleep(lasting_s)
            return bool(self._connections)
        finally:
            self._is_open.set()

    async def lose_answers(self, count: int, limit_s: float) -> bool:
        """Break the connection at each of the next `count` answers, which the client then does not get.

        Returns whether any answer was lost within `limit_s`.
        """
        self._lost_answers = count
        await _until(lambda: self._lost_answers == 0, limit_s)
        lost, self._lost_answers = count - self._lost_answers, 0
        return lost > 0

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._is_open.wait()
            target_reader, target_writer = await asyncio.open_connection(_HOST, self._target_port)
        except OSError:
            writer.transport.abort()  # as if the process itself refused the connection
            self._connections.discard(task)
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, target_writer))
                pumps.create_task(self._pump(target_reader, writer, answers=True))
        except* OSError:
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()
            target_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False) -> None:
        """Forward one direction until it ends or breaks; then the whole connection ends."""
        while data := await reader.read(_CHUNK_BYTES):
            await self._is_open.wait()
            if answers and self._lost_answers:
                self._lost_answers -= 1
                break
            writer.write(data)
            await writer.drain()
        await self._is_open.wait()
        await asyncio.sleep(0)
        raise ConnectionError("one side ended the connection")


async def _until(holds: Callable[[], bool], limit_s: float) -> None:
    deadline_s = asyncio.get_running_loop().time() + limit_s
    while not holds() and asyncio.get_running_loop().time() < deadline_s:
        await asyncio.sleep(0.05)


class Relays:
    """All relays of a network, by (source, target)."""

    def __init__(self) -> None:
        self.by_link: dict[tuple[str, str], Relay] = {}

    def address(self, source: str, target: str, url: str) -> str:
        """The address that `source` uses for `target`, whose own address is `url`. Call it on the event loop."""
        relay = self.by_link.get((source, target))
        if relay is None:
            port = urlsplit(url).port
            assert port is not None
            relay = self.by_link[source, target] = Relay(port)
        parts = urlsplit(url)
        return parts._replace(netloc=f"{_HOST}:{relay.port}").geturl()

    async def start(self) -> None:
        await asyncio.gather(*(relay.start() for relay in self.by_link.values()))

    async def stop(self) -> None:
        await asyncio.gather(*(relay.stop() for relay in self.by_link.values()))
