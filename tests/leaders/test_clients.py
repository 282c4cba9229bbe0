"""Clients that follow the leader among real servers: one that refuses, one that is a standby, one that is stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tocsin.leaders.clients import leading_client, leading_transport
from tocsin.runtime.http.listening import Server, listen
from tocsin.runtime.http.standby import leading_only
from tocsin.wire.errors import NotLeading


class Process:
    """A server that leads, is a standby, or is stopped: then it accepts connections and answers nothing."""

    def __init__(self) -> None:
        self.leads = True
        self.running = asyncio.Event()
        self.running.set()
        self.bodies: list[bytes] = []
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.running.wait()
        if scope["path"] == "/slow":
            await asyncio.sleep(3)
        body = (await receive())["body"]
        self.bodies.append(body)
        await PlainTextResponse(self.url)(scope, receive, send)

    def refusal(self) -> NotLeading | None:
        return None if self.leads else NotLeading("this process is a standby")

    @property
    def app(self) -> ASGIApp:
        return leading_only(self, self.refusal)


@contextlib.asynccontextmanager
async def running(*processes: Process) -> AsyncIterator[str]:
    servers = []
    for process in processes:
        listening = listen("127.0.0.1", 0)
        process.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = Server(uvicorn.Config(process.app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        servers.append((server, asyncio.create_task(server.serve(sockets=[listening]))))
    try:
        yield ",".join(process.url for process in processes)
    finally:
        for process in processes:
            process.running.set()
        for server, task in servers:
            server.should_exit = True
            await task


def scenario(test: Callable[[Process, Process, str], contextlib.AbstractAsyncContextManager[None]]) -> None:
    async def run() -> None:
        first, second = Process(), Process()
        async with running(first, second) as addresses, test(first, second, addresses):
            pass

    asyncio.run(run())


def test_request_goes_on_to_the_leader_when_a_standby_answers() -> None:
    @contextlib.asynccontextmanager
    async def test(first: Process, second: Process, addresses: str) -> AsyncIterator[None]:
        first.leads = False
        async with leading_client(addresses) as client:
            assert (await client.post("/x", content=b"once")).text == second.url
            assert (await client.get("/x")).text == second.url
        assert second.bodies == [b"once", b""] and first.bodies == []
        yield

    scenario(test)


def test_request_goes_on_when_a_connection_is_refused() -> None:
    @contextlib.asynccontextmanager
    async def test(first: Process, second: Process, addresses: str) -> AsyncIterator[None]:
        async with leading_client(f"http://127.0.0.1:9,{addresses}") as client:
            assert (await client.get("/x")).text == first.url
        yield

    scenario(test)


def test_stopped_leader_fails_the_request_as_soon_as_another_leads() -> None:
    @contextlib.asynccontextmanager
    async def test(first: Process, second: Process, addresses: str) -> AsyncIterator[None]:
        second.leads = False
        async with leading_client(addresses, timeout=60.0) as client:
            first.running.clear()
            waiting = asyncio.create_task(client.get("/x"))
            await asyncio.sleep(1.5)
            assert not waiting.done(), "nobody else leads yet"
            second.leads = True
            with pytest.raises(httpx.ReadTimeout, match="leads now"):
                async with asyncio.timeout(10):
                    await waiting
            assert (await client.get("/x")).text == second.url
        yield

    scenario(test)


def test_slow_answer_of_a_server_that_is_ready_is_awaited() -> None:
    @contextlib.asynccontextmanager
    async def test(first: Process, second: Process, addresses: str) -> AsyncIterator[None]:
        async with leading_client(addresses, timeout=60.0) as client:
            assert (await client.get("/slow")).text == first.url
        yield

    scenario(test)


def test_answer_of_standbys_alone_reaches_the_caller() -> None:
    @contextlib.asynccontextmanager
    async def test(first: Process, second: Process, addresses: str) -> AsyncIterator[None]:
        first.leads = second.leads = False
        async with leading_client(addresses) as client:
            answer = await client.get("/x")
        assert answer.status_code == 503 and "standby" in answer.json()["error"]["message"]
        yield

    scenario(test)


def test_blocking_client_follows_too() -> None:
    @contextlib.asynccontextmanager
    async def test(first: Process, second: Process, addresses: str) -> AsyncIterator[None]:
        first.leads = False

        def ask() -> str:
            with httpx.Client(base_url=first.url, transport=leading_transport(addresses)) as client:
                return client.get("/x").text

        assert await asyncio.to_thread(ask) == second.url
        yield

    scenario(test)


def test_one_address_needs_no_transport_of_its_own() -> None:
    assert leading_transport("http://127.0.0.1:1") is None
