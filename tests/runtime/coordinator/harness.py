"""A real coordinator on a free port, scripted brokers over real links, and a reader of the live watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import websockets
from websockets.asyncio.client import ClientConnection

from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.trace import TraceRow, from_json
from tocsin.runtime.broker.user_tokens import UserTokens
from tocsin.runtime.coordinator.server import CoordinatorServer
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.credentials import BROKERS, Claims
from tocsin.runtime.http.event_streams import read_events
from tocsin.runtime.http.settings import load_settings
from tocsin.wire import site_link
from tocsin.wire.link import (
    Changed,
    FromBroker,
    FromCoordinator,
    FromCoordinatorMessage,
    Frontend,
    Heartbeat,
    Register,
    Registered,
    SessionOpened,
    StateRequest,
)

M = TypeVar("M", bound=FromCoordinatorMessage | site_link.FromCoordinatorMessage)
WAIT_S = 10.0
"""Time after which a test fails because an expected event did not happen."""


class RunningCoordinator:
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
        answer = await self.admin.post("/v1/tokens", json={"subject": subject, "scopes": list(scopes), "days": days})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    async def user(self, name: str, **position: float) -> httpx.AsyncClient:
        """Register a user and return a client with its token."""
        answer = await self.admin.post("/v1/users", json={"user": name, **position})
        assert answer.status_code in (200, 201), answer.text
        return self.client(answer.json()["token"])

    async def place(self, name: str) -> None:
        """Request a broker for a user."""
        answer = await self.admin.post(f"/v1/users/{name}/broker", json={})
        assert answer.status_code == 200, answer.text

    async def user_view(self, name: str) -> dict[str, Any]:
        return dict((await self.admin.get(f"/v1/users/{name}")).json())

    async def until(self, path: str, holds: Callable[[Any], bool]) -> Any:
        """The first answer of GET `path` for which `holds` is true."""
        async with asyncio.timeout(WAIT_S):
            while not holds(answer := (await self.admin.get(path)).json()):
                await asyncio.sleep(0.02)
        return answer


@asynccontextmanager
async def coordinator(folder: Path, pages: Path | None = None, **settings: Any) -> AsyncIterator[RunningCoordinator]:
    """A running coordinator, stopped at the end. A second one on the same folder is a restart."""
    ready: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
    quick = {"tick_s": 0.02, "heartbeat_s": 0.2, "suspect_s": 0.6, "dead_s": 1.0, "grace_s": 1.0}
    server = CoordinatorServer(
        load_settings(CoordinatorSettings, {"state": str(folder), "port": 0} | quick | settings, {}),
        lambda *address_and_token: ready.set_result(address_and_token),
        pages=pages,
    )
    task = asyncio.create_task(server.run())
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    running = RunningCoordinator(server, (await ready)[1], folder)
    try:
        yield running
    finally:
        for client in running.clients:
            await client.aclose()
        server.stop()
        await task


def named_in(message: FromBroker) -> list[SubscriberId]:
    """The subscribers whose tokens a broker sends with this message."""
    if isinstance(message, Register):
        return [*message.online, *message.hosting]
    return [message.subscriber] if isinstance(message, SessionOpened | StateRequest | Changed) else []


class FakeBroker:
    """A broker's end of a link. It sends heartbeats; the test sends all other messages."""

    def __init__(self, running: RunningCoordinator, name: str, **registration: Any) -> None:
        self.running = running
        self.id = BrokerId(name)
        self.registration: dict[str, Any] = {"incarnation": f"{name}-1", "address": f"ws://{name}"} | registration
        self.tokens = UserTokens()
        self.received: list[FromCoordinator] = []
        self.closed: tuple[int, str] | None = None
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._socket: ClientConnection | None = None

    async def connect(self, token: str | None = None, *, register: bool = True, beat: bool = True) -> FakeBroker:
        address = f"{self.running.url.replace('http', 'ws', 1)}/v1/brokers/{self.id}/link"
        self.token = token or self.running.token
        headers = {"Authorization": f"Bearer {self.token}"}
        self._socket = await websockets.connect(address, additional_headers=headers)
        self._tasks = [asyncio.create_task(self._listen(self._socket))]
        if beat:
            self._tasks.append(asyncio.create_task(self._beat()))
        if register:
            await self.send(Register(self.id, **self.registration))
            await self.receive(Registered)
        return self

    async def _listen(self, socket: ClientConnection) -> None:
        decoder = msgspec.json.Decoder(FromCoordinator)
        try:
            async for frame in socket:
                self.received.append(decoder.decode(frame))
                self._changed.set()
        except websockets.ConnectionClosed:
            pass
        self.closed = (socket.close_code or 0, socket.close_reason or "")
        self._changed.set()

    async def _beat(self) -> None:
        while self.closed is None:
            await asyncio.sleep(0.1)
            try:
                await self.send(Heartbeat(0, 0, 0))
            except websockets.ConnectionClosed:
                return

    async def send(self, message: FromBroker) -> None:
        """Send a message with tokens of the subscribers that it names, as an honest broker does."""
        for name in named_in(message):
            context = self.running.server.context
            token, _ = context.sign(name, ["subscribe"], 60, audience=BROKERS)
            self.tokens.add(token, Claims(name, frozenset({"subscribe"}), None))
        await self.send_alone(self.tokens.attach(message))

    async def send_alone(self, message: FromBroker) -> None:
        """Send a message as it is, without a token of any subscriber."""
        await self.send_text(msgspec.json.encode(message).decode())

    async def send_text(self, text: str) -> None:
        assert self._socket is not None
        await self._socket.send(text)

    async def receive(self, kind: type[M]) -> M:
        """The next message of a kind; messages of other kinds before it are dropped."""
        async with asyncio.timeout(WAIT_S):
            while True:
                while self.received:
                    message = self.received.pop(0)
                    if isinstance(message, kind):
                        return message
                assert self.closed is None, self.closed
                self._changed.clear()
                await self._changed.wait()

    async def wait_closed(self) -> tuple[int, str]:
        """(close code, reason)."""
        async with asyncio.timeout(WAIT_S):
            while self.closed is None:
                self._changed.clear()
                await self._changed.wait()
        return self.closed

    async def stop(self) -> None:
        """Close the link without a goodbye, as a crash would."""
        if self._socket is not None:
            await self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class WatchReader:
    """One connection to /v1/watch, and all rows it has received."""

    def __init__(self, events: AsyncIterator[tuple[str, str]]) -> None:
        self._events = events
        self.rows: list[TraceRow] = []
        self.pictures = 0

    async def until(self, kind: str, **columns: Any) -> TraceRow:
        """The first row, received or still to come, with this kind and these values."""
        checked = 0
        async with asyncio.timeout(20):
            while True:
                for row in self.rows[checked:]:
                    if row.kind == kind and all(getattr(row, name) == value for name, value in columns.items()):
                        return row
                checked = len(self.rows)
                event, data = await anext(self._events)
                self.pictures += event == "picture"
                self.rows += from_json(data)


@asynccontextmanager
async def watching(running: RunningCoordinator, query: str = "") -> AsyncIterator[WatchReader]:
    running.server.context.watch.frame_s = 0.05
    async with running.admin.stream("GET", f"/v1/watch{query}") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield WatchReader(read_events(answer.aiter_bytes()))


def frontend(name: str = "s1", cursor: str = "1-0") -> Frontend:
    return Frontend(SubscriptionId(name), ChannelName("Fires"), {"kind": "x"}, cursor)


ADA = SubscriberId("ada")
