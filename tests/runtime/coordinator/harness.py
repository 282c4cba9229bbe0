"""A real coordinator on a free port, and brokers that say over real links what the tests want them to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import websockets
from websockets.asyncio.client import ClientConnection

from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.runtime.coordinator.server import CoordinatorServer
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.settings import load_settings
from tocsin.wire.link import (
    FromBroker,
    FromCoordinator,
    FromCoordinatorMessage,
    Frontend,
    Heartbeat,
    Register,
    Registered,
)

M = TypeVar("M", bound=FromCoordinatorMessage)
WAIT_S = 10.0
"""How long anything may take before a test says that it did not happen."""


class Running:
    def __init__(self, server: CoordinatorServer, token: str | None, folder: Path) -> None:
        self.server = server
        self.token = token or (folder / "admin-token").read_text().strip()
        self.first_token = token
        self.url = server.address
        self.admin = self.client(self.token)
        self.clients = [self.admin]

    def client(self, token: str | None) -> httpx.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=WAIT_S)
        if hasattr(self, "clients"):
            self.clients.append(client)
        return client

    async def token_for(self, *scopes: str, subject: str = "test", days: float | None = None) -> str:
        made = await self.admin.post("/v1/tokens", json={"subject": subject, "scopes": list(scopes), "days": days})
        assert made.status_code == 201, made.text
        return str(made.json()["token"])

    async def user(self, name: str, **where: float) -> httpx.AsyncClient:
        made = await self.admin.post("/v1/users", json={"user": name, **where})
        assert made.status_code in (200, 201), made.text
        return self.client(made.json()["token"])

    async def place(self, name: str, **wanted: Any) -> dict[str, Any]:
        placed = await self.admin.post(f"/v1/users/{name}/broker", json=wanted)
        assert placed.status_code == 200, placed.text
        return dict(placed.json())

    async def user_view(self, name: str) -> dict[str, Any]:
        return dict((await self.admin.get(f"/v1/users/{name}")).json())

    async def until(self, path: str, holds: Any) -> Any:
        async with asyncio.timeout(WAIT_S):
            while not holds(found := (await self.admin.get(path)).json()):
                await asyncio.sleep(0.02)
        return found


@asynccontextmanager
async def coordinator(folder: Path, pages: Path | None = None, **settings: Any) -> AsyncIterator[Running]:
    """Stopped at the end; start it again on the same folder for a restart."""
    up: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
    quick = {"tick_s": 0.02, "heartbeat_s": 0.2, "suspect_s": 0.6, "dead_s": 1.0, "grace_s": 1.0}
    server = CoordinatorServer(
        load_settings(CoordinatorSettings, {"state": str(folder), "port": 0} | quick | settings, {}),
        lambda *known: up.set_result(known),
        pages=pages,
    )
    task = asyncio.create_task(server.run())
    await asyncio.wait((task, up), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    running = Running(server, (await up)[1], folder)
    try:
        yield running
    finally:
        for client in running.clients:
            await client.aclose()
        server.stop()
        await task


class FakeBroker:
    """Says what it is told to; answers nothing by itself but heartbeats."""

    def __init__(self, running: Running, name: str, **about: Any) -> None:
        self.running = running
        self.id = BrokerId(name)
        self.about: dict[str, Any] = {"incarnation": f"{name}-1", "address": f"ws://{name}"} | about
        self.heard: list[FromCoordinator] = []
        self.closed: tuple[int, str] | None = None
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._socket: ClientConnection | None = None

    async def connect(self, token: str | None = None, *, register: bool = True, beat: bool = True) -> FakeBroker:
        address = f"{self.running.url.replace('http', 'ws', 1)}/v1/brokers/{self.id}/link"
        headers = {"Authorization": f"Bearer {token or self.running.token}"}
        self._socket = await websockets.connect(address, additional_headers=headers)
        self._tasks = [asyncio.create_task(self._listen(self._socket))]
        if beat:
            self._tasks.append(asyncio.create_task(self._beat()))
        if register:
            await self.say(Register(self.id, **self.about))
            await self.hears(Registered)
        return self

    async def _listen(self, socket: ClientConnection) -> None:
        decoder = msgspec.json.Decoder(FromCoordinator)
        try:
            async for frame in socket:
                self.heard.append(decoder.decode(frame))
                self._news.set()
        except websockets.ConnectionClosed:
            pass
        self.closed = (socket.close_code or 0, socket.close_reason or "")
        self._news.set()

    async def _beat(self) -> None:
        while self.closed is None:
            await asyncio.sleep(0.1)
            try:
                await self.say(Heartbeat(0, 0, 0))
            except websockets.ConnectionClosed:
                return

    async def say(self, message: FromBroker) -> None:
        await self.send_text(msgspec.json.encode(message).decode())

    async def send_text(self, text: str) -> None:
        assert self._socket is not None
        await self._socket.send(text)

    async def hears(self, kind: type[M]) -> M:
        """The next message of a kind; the ones before it are skipped."""
        async with asyncio.timeout(WAIT_S):
            while True:
                while self.heard:
                    message = self.heard.pop(0)
                    if isinstance(message, kind):
                        return message
                assert self.closed is None, self.closed
                self._news.clear()
                await self._news.wait()

    async def is_closed(self) -> tuple[int, str]:
        async with asyncio.timeout(WAIT_S):
            while self.closed is None:
                self._news.clear()
                await self._news.wait()
        return self.closed

    async def stop(self) -> None:
        """As if the process had died."""
        if self._socket is not None:
            await self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def frontend(name: str = "s1", cursor: str = "1-0") -> Frontend:
    return Frontend(SubscriptionId(name), ChannelName("Fires"), {"kind": "x"}, cursor)


ADA = SubscriberId("ada")
