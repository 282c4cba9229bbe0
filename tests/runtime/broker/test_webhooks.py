"""Webhooks: signed calls in order, retries, secrets and refused URLs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.runtime.broker.running_broker import broker_with_emulated_cluster, row, until
from tests.runtime.broker.test_rest import FIRE, rest
from tocsin.runtime.broker import webhooks
from tocsin.runtime.http.listening import Server, listen


class Receiver:
    """The receiver of a webhook; it answers with `answers` in order, then with 200."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.handshakes: list[tuple[dict[str, str], bytes]] = []
        self.allowed_origin: str | None = "*"
        """The answer to a handshake; None refuses it."""

    async def asked(self, request: Request) -> Response:
        self.handshakes.append((dict(request.headers), await request.body()))
        if self.allowed_origin is None:
            return Response(status_code=405)
        return Response(headers={"WebHook-Allowed-Origin": self.allowed_origin})

    async def called(self, request: Request) -> Response:
        self.calls.append((dict(request.headers), await request.body()))
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        return Response(status_code=status, headers=headers)

    @property
    def numbers(self) -> list[int]:
        return [json.loads(body)["data"]["result"]["n"] for _, body in self.calls]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        sock = listen("127.0.0.1", 0)
        routes = [Route("/hook", self.called, methods=["POST"]), Route("/hook", self.asked, methods=["OPTIONS"])]
        app = Starlette(routes=routes)
        server = Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve(sockets=[sock]))
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/hook"
        server.should_exit = True
        await task
        sock.close()


def verified(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Check a signature as a receiver does."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return expected in headers["webhook-signature"].split(" ")


def test_webhook_gets_each_result_in_order_until_it_accepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "SCHEDULE_S", (0.0, 0.05, 0.05, 0.05))

    async def scenario() -> None:
        receiver = Receiver()
        async with (
            broker_with_emulated_cluster(tmp_path, webhooks_private=True) as (broker, cluster),
            receiver.listening() as url,
            rest(broker) as ann,
        ):
            held = (await ann.post("/v1/subscriptions", json=FIRE)).json()["held"]
            created = (await ann.put("/v1/webhook", json={"url": url})).json()
            assert (await ann.get("/v1/webhook")).json() == {"url": url, "secrets": 1}
            receiver.answers = [(200, {}), (500, {}), (302, {"location": "/"}), (429, {"retry-after": "0"})]
            cluster.execute("Reports", {held["subscription"]: [row(1), row(2), row(3)]})
            await until(lambda: receiver.numbers == [1, 2, 2, 2, 2, 3])
            ids = [headers["webhook-id"] for headers, _ in receiver.calls]
            assert len(set(ids)) == 3 and ids[1] == ids[4]
            assert all(verified(created["secret"], *call) for call in receiver.calls)
            frontend = broker.core.state.subscribers["ann"].frontends[held["subscription"]]
            await until(lambda: frontend.acked == frontend.backend.batches[-1].end)

            rotated = (await ann.put("/v1/webhook", json={"url": url, "keep_secret": True})).json()
            async with broker.session("ann") as session:  # results go to the session while it is open
                cluster.execute("Reports", {held["subscription"]: [row(4)]})
                cursor = (await session.push("result"))["cursor"]
                await session.ask("ack", cursors={held["subscription"]: cursor})
                assert len(receiver.calls) == 6
            cluster.execute("Reports", {held["subscription"]: [row(5)]})
            await until(lambda: receiver.numbers[-1] == 5)
            for secret in (created["secret"], rotated["secret"]):
                assert verified(secret, *receiver.calls[-1])

            receiver.answers = [(410, {})]
            cluster.execute("Reports", {held["subscription"]: [row(6)]})
            await until(lambda: broker.core.state.subscribers["ann"].webhook is None)
            assert (await ann.get("/v1/webhook")).status_code == 404

    asyncio.run(scenario())


def test_webhook_with_a_private_or_invalid_url_is_refused(tmp_path: Path) -> None:
    tried = {
        "http://example.com/hook": 400,
        "https://127.0.0.1/hook": 403,
        "https://localhost:9/hook": 403,
        "https://[::1]/hook": 403,
        "https://10.0.0.7/hook": 403,
        "https://169.254.169.254/latest/meta-data": 403,
        "https://user:pass@example.com/": 400,
        "https://no-such-host.invalid/": 400,
        "ftp://example.com/": 400,
        "nonsense": 400,
    }

    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, _), rest(broker) as ann:
            for url, status in tried.items():
                assert (await ann.put("/v1/webhook", json={"url": url})).status_code == status, url

    asyncio.run(scenario())
