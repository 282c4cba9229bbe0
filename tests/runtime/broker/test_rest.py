"""A broker over plain HTTP: REST calls, server-sent events and API documents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import httpx
import msgspec

from tests.runtime.broker.running_broker import RunningBroker, broker_with_emulated_cluster, row, token, until
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriptionId
from tocsin.runtime.broker.routes.asyncapi import document
from tocsin.runtime.broker.routes.stream import event_id, positions_of
from tocsin.wire import session, topic

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


def test_asyncapi_describes_sessions_and_topics_without_dangling_references() -> None:
    described = document()
    assert {name: channel["address"] for name, channel in described["channels"].items()} == {
        "session": "/v1/session",
        "topics": topic.PATH,
    }
    messages = described["components"]["messages"]
    for kind in (*get_args(topic.FromClient), *get_args(topic.ToClient)):
        assert messages[f"topic.{kind.__name__}"]["name"] == kind.__name__
    for kind in (*get_args(session.FromSubscriber), *get_args(session.ToSubscriber)):
        assert messages[kind.__name__]["name"] == kind.__name__
    for reference in _references(described):
        found: Any = described
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]


def test_asyncapi_schema_of_a_topic_message_fits_its_json() -> None:
    described = document()["components"]["schemas"]["topic.Publish"]
    message = msgspec.json.decode(msgspec.json.encode(topic.Publish(1, 2, [b"x"])))
    assert set(described["properties"]) == set(message)
    assert described["properties"]["op"] == {"enum": [message["op"]]}
    assert described["properties"]["messages"]["items"]["contentEncoding"] == "base64"


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            yield reference
        for child in node.values():
            yield from _references(child)
    elif isinstance(node, list):
        for child in node:
            yield from _references(child)


def test_openapi_and_asyncapi_describe_every_route_and_message(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path, open_metrics=True) as (broker, _),
            httpx.AsyncClient(base_url=broker.url) as client,
        ):
            described = (await client.get("/v1/asyncapi.json")).json()
            assert described["asyncapi"].startswith("3.")
            messages = described["components"]["messages"]
            assert {"Login", "Update", "Updated", "Result", "Move", "topic.Publish", "topic.Messages"} <= set(messages)
            routes = (await client.get("/v1/openapi.json")).json()["paths"]
            assert {"/v1/login", "/v1/subscriptions", "/v1/stream", "/v1/webhook", "/readyz"} <= set(routes)
            assert routes["/v1/me/datasets/{name}"]["put"]["requestBody"]["required"]
            assert (await client.get("/healthz")).status_code == 200
            assert "tocsin_broker_sessions" in (await client.get("/metrics")).text
            assert (await client.get("/readyz")).status_code == 200
            broker.core.accepting, broker.core.draining = False, True
            assert (await client.get("/readyz")).status_code == 503

    asyncio.run(scenario())
