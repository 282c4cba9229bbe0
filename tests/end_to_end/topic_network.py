"""A coordinator and brokers as real processes. Topics need no Spark: only recorded topics have the data cluster too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tocsin.client import Patience, TopicGap, TopicMessage, Topics, TopicSubscription
from tocsin.runtime.stack.distance import EmulatedDistance
from tocsin.runtime.stack.stack import Stack, StackSettings

# Shorter times than in production, to keep the tests fast.
COORDINATOR = {
    "heartbeat-s": "0.5",
    "suspect-s": "1.5",
    "dead-s": "3",
    "grace-s": "5",
    "probation-s": "1",
    "topic-lease-s": "1.5",
    "topic-prefixes": "game/",
}
PATIENCE = Patience(open_s=4.0, shortest_s=0.1, longest_s=0.5)
TAKE_S = 40.0


class TopicNetwork:
    def __init__(self, stack: Stack, http: httpx.AsyncClient) -> None:
        self.stack = stack
        self.http = http
        self.token = stack.admin_token()

    def client(self, token: str | None = None, **options: Any) -> Topics:
        return Topics(self.stack.coordinator_url, token=token or self.token, patience=PATIENCE, **options)

    async def token_for(self, *scopes: str) -> str:
        answer = await self.http.post("/v1/tokens", json={"subject": "ann", "scopes": list(scopes)})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    async def create(self, topic: str, **options: Any) -> dict[str, Any]:
        """Create a topic; `options` are further fields of the request, such as `replicas`."""
        async with asyncio.timeout(TAKE_S):
            body = {"topic": topic, "within_s": 0.04, **options}
            while (answer := await self.request("POST", "/v1/topics", json=body)).status_code == 503:
                await asyncio.sleep(0.05)  # a broker has just been killed by another test
        assert answer.status_code == 201, answer.text
        return await self.until(topic, lambda entry: entry["home"] is not None)

    async def request(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request, again while no coordinator answers: a test has just killed it."""
        async with asyncio.timeout(TAKE_S):
            while True:
                try:
                    return await self.http.request(method, path, **request)
                except httpx.TransportError:
                    await asyncio.sleep(0.1)

    async def entry(self, topic: str) -> dict[str, Any] | None:
        answer = await self.request("GET", "/v1/topics", params={"pattern": topic})
        assert answer.status_code == 200, answer.text
        return next(iter(answer.json()["topics"]), None)

    async def until(self, topic: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first entry of the topic for which `holds` is true."""
        async with asyncio.timeout(TAKE_S):
            while (entry := await self.entry(topic)) is None or not holds(entry):
                await asyncio.sleep(0.05)
        return entry

    async def move(self, topic: str, target: str | None = None) -> str:
        """Move a topic to this or another broker and wait for the end of the move. Returns its new home."""
        entry = await self.until(topic, lambda entry: entry["home"] is not None)
        target = target or next(name for name in self.stack.brokers if name != entry["home"])
        async with asyncio.timeout(TAKE_S):
            while (
                answer := await self.request("POST", "/v1/topics/move", json={"topic": topic, "target": target})
            ).is_error:
                assert answer.status_code == 503, answer.text
                await asyncio.sleep(0.05)
        await self.until(topic, lambda entry: entry["home"] == target and entry["moving_to"] is None)
        return target


@asynccontextmanager
async def topic_network(
    folder: Path,
    brokers: int = 3,
    distance: EmulatedDistance | None = None,
    *,
    coordinator: Mapping[str, str] = COORDINATOR,
    broker: Mapping[str, str] = {},
    broker_flags: Mapping[str, Mapping[str, str]] = {},
    sources: Mapping[str, str] = {},
    data_cluster: bool = False,
) -> AsyncIterator[TopicNetwork]:
    """A network; with `distance` all connections between its processes, and of clients to brokers, are delayed."""
    via = None if distance is None else distance.via
    settings = StackSettings(
        folder,
        brokers,
        free_ports=True,
        data_cluster=data_cluster,
        logs=folder,
        coordinator=coordinator,
        broker=broker,
        broker_flags=broker_flags,
        restart=True,
        via=via,
        sources=sources,
    )
    stack = Stack(settings)
    try:
        if distance is not None:
            await distance.open_routes()
        await stack.start()
        headers = {"Authorization": f"Bearer {stack.admin_token()}"}
        async with httpx.AsyncClient(base_url=stack.coordinator_url, headers=headers, timeout=30) as http:
            yield TopicNetwork(stack, http)
    finally:
        await stack.stop()


async def take(subscription: TopicSubscription, count: int) -> list[bytes]:
    """The data of the next messages; a gap fails the test."""
    data: list[bytes] = []
    async with asyncio.timeout(TAKE_S):
        while len(data) < count:
            item = await anext(subscription)
            assert isinstance(item, TopicMessage), item
            data.append(item.data)
    return data


async def take_until(subscription: TopicSubscription, last: bytes) -> tuple[list[bytes], list[TopicGap]]:
    """Messages and gaps up to the message `last`."""
    data: list[bytes] = []
    gaps: list[TopicGap] = []
    async with asyncio.timeout(TAKE_S):
        while not data or data[-1] != last:
            item = await anext(subscription)
            if isinstance(item, TopicGap):
                gaps.append(item)
            else:
                data.append(item.data)
    return data, gaps
