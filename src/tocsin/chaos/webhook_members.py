"""Subscribers that receive results by webhook: one HTTP server that counts the calls of the brokers.

A broker calls again if it did not get the answer. Such a repeat carries the same `webhook-id`; the receiver recognises
it and counts it apart.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tocsin.chaos.ledger import Account, Delivery, DeliveryLedger
from tocsin.client.coordinator import CoordinatorClient
from tocsin.client.errors import ClientError
from tocsin.client.tls import context_for
from tocsin.runtime.http.listening import Server, listen

_PAUSE_S: Final = 0.5


class WebhookReceiver:
    def __init__(self, coordinator: str, token: str, ledger: DeliveryLedger, next_batch: Callable[[], int]) -> None:
        self._coordinator = coordinator
        self._token = token
        self._ledger = ledger
        self._next_batch = next_batch
        self._accounts: dict[str, Account] = {}
        self._seen: dict[Account, set[str]] = {}
        self.calls = 0
        self.repeats = 0
        """Calls with a `webhook-id` that was called before."""
        self._listening = listen("127.0.0.1", 0)
        app = Starlette(routes=[Route("/{user}", self._called, methods=["POST", "OPTIONS"])])
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        self._server = Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self, kinds: dict[str, str]) -> None:
        """Serve, and register a webhook for each user (the kind of its subscription by its name)."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        await asyncio.gather(*(self._register(user, kind) for user, kind in kinds.items()))

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)

    async def _register(self, user: str, kind: str) -> None:
        """Subscribe and set the webhook; repeat until a broker accepts both."""
        coordinator = CoordinatorClient(self._coordinator, self._token, context_for(True), user)
        account = self._accounts[user] = (user, "kind")
        self._seen[account] = set()
        try:
            while True:
                try:
                    await self._subscribe(coordinator, user, kind)
                    self._ledger.open(account, lambda ping: ping.kind == kind, self._next_batch())
                    return
                except (httpx.HTTPError, ClientError):
                    await asyncio.sleep(_PAUSE_S)
        finally:
            await coordinator.close()

    async def _subscribe(self, coordinator: CoordinatorClient, user: str, kind: str) -> None:
        broker = await coordinator.request_broker(None)
        url, headers = broker.address.replace("ws", "http", 1), {"Authorization": f"Bearer {broker.token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=15.0, verify=False) as client:
            body = {"channel": "PingsOfKind", "parameters": {"kind": kind}}
            (await client.post("/v1/subscriptions", json=body)).raise_for_status()
            hook = f"http://127.0.0.1:{self._listening.getsockname()[1]}/{user}"
            (await client.put("/v1/webhook", json={"url": hook})).raise_for_status()

    async def _called(self, request: Request) -> Response:
        if request.method == "OPTIONS":  # the owner of the URL consents to the calls of this network
            return Response(headers={"WebHook-Allowed-Origin": request.headers["WebHook-Request-Origin"]})
        body = await request.body()
        content = json.loads(body)
        data = content.get("data", {})
        if "result" in data:
            self._take(self._accounts[request.path_params["user"]], data)
        elif content.get("type", "").endswith("gap"):
            self._ledger.gaps += 1
        return Response(body, media_type="application/json")

    def _take(self, account: Account, data: dict[str, object]) -> None:
        self.calls += 1
        cursor = str(data["cursor"])
        if cursor in self._seen[account]:
            self.repeats += 1
            return
        self._seen[account].add(cursor)
        result = data["result"]
        assert isinstance(result, dict)
        self._ledger.deliver(account, Delivery(str(result["id"]), cursor))
