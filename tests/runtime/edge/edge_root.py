"""One edge node, the root, on the test's own event loop: its HTTP API and its outbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tocsin.runtime.edge.server import EdgeServer
from tocsin.runtime.edge.settings import load_node_file

SECRET = "a-secret-of-the-tree"


class RunningRoot:
    def __init__(self, server: EdgeServer, client: httpx.AsyncClient) -> None:
        self.server = server
        self.client = client

    async def status(self) -> dict[str, Any]:
        described: dict[str, Any] = (await self.client.get("/v1/edge")).raise_for_status().json()
        return described

    async def until(self, condition: Callable[[dict[str, Any]], bool], limit_s: float = 15.0) -> dict[str, Any]:
        deadline_s = time.monotonic() + limit_s
        while not condition(status := await self.status()):
            assert time.monotonic() < deadline_s, status
            await asyncio.sleep(0.05)
        return status

    async def apply(self, text: str) -> httpx.Response:
        """Apply statements; if they were accepted, wait until the next generation runs."""
        before = (await self.status())["generation"]
        reply = await self.client.post("/v1/edge/statements", json={"text": text})
        if reply.is_success:
            await self.until(lambda status: status["running"] and status["generation"] > before)
        return reply

    async def publish(self, readings: list[dict[str, Any]], **headers: str) -> httpx.Response:
        return await self.client.post("/v1/streams/Readings/readings", json=readings, headers=headers)

    async def end(self) -> None:
        (await self.client.post("/v1/streams/Readings/watermark", json={})).raise_for_status()


@asynccontextmanager
async def running_root(folder: Path, more: str = "", **settings: object) -> AsyncIterator[RunningRoot]:
    """A root at which the stream `Readings` enters. `more` is added to its file."""
    (folder / "secret").write_text(SECRET)
    lines = ["[node]", 'name = "root"', "port = 0", 'data = "data"', 'token_file = "secret"', 'streams = ["Readings"]']
    lines += [f"{key} = {value!r}" for key, value in settings.items()]
    file = folder / "root.toml"
    file.write_text("\n".join(lines) + "\n" + more)
    ready = asyncio.Event()
    server = EdgeServer(load_node_file(file), lambda address: ready.set())
    running = asyncio.create_task(server.run())
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if running.done():
        running.result()
    headers = {"Authorization": f"Bearer {SECRET}"}
    try:
        async with httpx.AsyncClient(base_url=server.address, headers=headers, timeout=20.0) as client:
            root = RunningRoot(server, client)
            await root.until(lambda status: bool(status["running"]))
            yield root
    finally:
        server.stop()
        await running
