"""A broker over plain HTTP: REST calls, server-sent events, webhooks, documents."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.runtime.broker.running_broker import RunningBroker, broker_with_emulated_cluster, row, token, until
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriptionId
from tocsin.runtime.broker import webhooks as broker_webhooks
from tocsin.runtime.broker.routes.stream import event_id, positions_of
from tocsin.runtime.http.listening import Server, listen

FIRE = {"channel": "Reports", "parameters": {"kind": "fire"}}


@asynccontextmanager
async def rest(broker: RunningBroker, name: str = "ann") -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {token(name)}"}
    async with httpx.AsyncClient(base_url=broker.url, headers=headers, timeout=20) as client:
        yield client


async def events(response: httpx.Response) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    """(type, id, content) of each server-sent event."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields["event"], fields["id"], json.loads(fields["data"])
            fields = {}


async def next_result(stream: AsyncIterator[tuple[str, str, dict[str, Any]]]) -> tuple[str, int]:
    async with asyncio.timeout(10):
        async for kind, identity, content in stream:
            if kind == "result":
                return identity, content["result"]["n"]
    raise AssertionError("the stream ended")


def test_rest_calls_return_the_same_answers_as_a_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster), rest(broker) as ann:
            subscribed = await ann.post("/v1/subscriptions", json=FIRE)
            held = subscribed.json()["held"]
            assert subscribed.status_code == 200 and subscribed.json()["stored"] is False
            assert (await ann.get("/v1/subscriptions")).json()["subscriptions"] == [held]
            assert (await ann.post("/v1/login")).json()["subscriptions"] == [held]
            assert (await ann.get("/v1/ping")).json()["type"] == "pong"
            assert (await ann.post("/v1/logout")).json()["type"] == "logged_out"
            cluster.execute("Reports", {held["subscription"]: [row(1), row(2)]})
            await until(lambda: broker.core.state.backends[held["subscription"]].batches)
            first = broker.core.state.backends[held["subscription"]].batches[0].cursors()[0]
            acked = await ann.post("/v1/ack", json={"cursors": {held["subscription"]: str(first)}})
            assert acked.json()["type"] == "acked"
            async with broker.session("ann") as session:  # without cursors it starts after the acknowledged result
                assert await session.results(1) == [2]
            deleted = await ann.delete(f"/v1/subscriptions/{held['subscription']}")
            assert deleted.json()["type"] == "unsubscribed"
            assert (await ann.delete(f"/v1/subscriptions/{held['subscription']}")).status_code == 404
            refused = await ann.post("/v1/subscriptions", json={"channel": "Reports", "parameters": {"bad": 1}})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_parameter")

    asyncio.run(scenario())


def test_event_stream_resumes_from_its_last_event_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster), rest(broker) as ann:
            ids = []
            for kind in ("fire", "flood"):
                answer = await ann.post("/v1/subscriptions", json={"channel": "Reports", "parameters": {"kind": kind}})
                ids.append(answer.json()["held"]["subscription"])
            fire, flood = ids
            async with ann.stream("GET", "/v1/stream") as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                stream = events(response)
                cluster.execute("Reports", {fire: [row(1)], flood: [row(11), row(12)]})
                seen = [await next_result(stream) for _ in range(3)]
                assert sorted(number for _, number in seen) == [1, 11, 12]
            last = seen[1][0]  # as if the third event was lost
            await until(lambda: not broker.core.state.sessions)
            cluster.execute("Reports", {fire: [row(2)]})
            async with ann.stream("GET", "/v1/stream", headers={"Last-Event-ID": last}) as response:
                stream = events(response)
                again = [await next_result(stream) for _ in range(2)]
                assert sorted(number for _, number in again) == sorted([seen[2][1], 2])
            refused = await ann.get("/v1/stream", headers={"Last-Event-ID": "yesterday"})
            assert refused.json()["error"]["code"] == "bad_cursor"

    asyncio.run(scenario())


def test_event_id_contains_every_position() -> None:
    positions = {SubscriptionId(f"{n:032x}"): Cursor(n, n << 30) for n in range(20)}
    assert positions_of(event_id(positions)) == {key: str(cursor) for key, cursor in positions.items()}
    for damaged in ("", "1.", "1.AAAA", "1.@@@@", "2.AAAA", event_id(positions)[:-3]):
        assert positions_of(damaged) in (None, {})


class Receiver:
    """The receiver of a webhook; it answers with `answers` in order, then with 200."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []

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
        app = Starlette(routes=[Route("/hook", self.called, methods=["POST"])])
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
    monkeypatch.setattr(broker_webhooks, "SCHEDULE_S", (0.0, 0.05, 0.05, 0.05))

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


def test_openapi_and_asyncapi_describe_every_route_and_message(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path) as (broker, _),
            httpx.AsyncClient(base_url=broker.url) as client,
        ):
            described = (await client.get("/v1/asyncapi.json")).json()
            assert described["asyncapi"].startswith("3.")
            assert {"Login", "Result", "Move"} <= set(described["components"]["messages"])
            routes = (await client.get("/v1/openapi.json")).json()["paths"]
            assert {"/v1/login", "/v1/subscriptions", "/v1/stream", "/v1/webhook", "/readyz"} <= set(routes)
            assert (await client.get("/healthz")).status_code == 200
            assert "tocsin_broker_sessions" in (await client.get("/metrics")).text
            assert (await client.get("/readyz")).status_code == 200
            broker.core.accepting, broker.core.draining = False, True
            assert (await client.get("/readyz")).status_code == 503

    asyncio.run(scenario())
