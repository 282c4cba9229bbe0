"""The REST API of topics: scopes, errors, the list and the watch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx

from tests.runtime.coordinator.harness import RunningCoordinator, coordinator
from tocsin.coordinator.effects import StoreEffect
from tocsin.model.ids import BrokerId, TopicName
from tocsin.runtime.http.credentials import CLUSTER


async def create(client: httpx.AsyncClient, topic: str, **more: Any) -> httpx.Response:
    return await client.post("/v1/topics", json={"topic": topic, **more})


async def watch(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/v1/topics/watch", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def names(answer: dict[str, Any]) -> list[str]:
    return sorted(entry["topic"] for entry in answer["topics"])


async def client(running: RunningCoordinator, *scopes: str) -> httpx.AsyncClient:
    return running.client(await running.token_for(*scopes, subject="ann"))


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_topics_are_created_listed_and_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            created = await create(running.admin, "swarm/3/leader", within_s=0.04)
            assert (created.status_code, created.json()["home"], created.json()["within_s"]) == (201, None, 0.04)
            assert code(await create(running.admin, "swarm/3/leader")) == (409, "exists")
            assert code(await create(running.admin, "swarm/+")) == (400, "bad_request")
            assert (await create(running.admin, "a", within_s=-1)).status_code == 400
            assert names((await running.admin.get("/v1/topics", params={"pattern": "swarm/#"})).json()) == [
                "swarm/3/leader"
            ]
            assert code(await running.admin.get("/v1/topics", params={"pattern": "#/a"})) == (400, "bad_request")
            assert (await running.admin.delete("/v1/topics/swarm/3/leader")).status_code == 200
            assert code(await running.admin.delete("/v1/topics/swarm/3/leader")) == (404, "unknown_topic")

    asyncio.run(scenario())


def test_topics_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            await create(running.admin, "a/b", within_s=0.5)
        async with coordinator(tmp_path) as running:
            [entry] = (await running.admin.get("/v1/topics")).json()["topics"]
            assert (entry["topic"], entry["within_s"]) == ("a/b", 0.5)

    asyncio.run(scenario())


def test_author_records_only_into_datasets_that_it_may_publish_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            author = await client(running, "author", "publish:Read*")
            created = await create(author, "a", record_into="Readings")
            assert (created.status_code, created.json()["record_into"]) == (201, "Readings")
            assert code(await create(author, "b", record_into="Others")) == (403, "forbidden")
            assert code(await create(running.admin, "b", record_into="a b")) == (400, "bad_request")
            changed = await create(author, "a", within_s=0.5, replace=True)
            assert (changed.json()["record_into"], changed.json()["within_s"]) == (None, 0.5)

    asyncio.run(scenario())


def test_only_the_home_of_a_recorded_topic_is_granted_to_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            await create(running.admin, "a", record_into="Readings")
            await create(running.admin, "plain")
            broker = await client(running, "broker:b1")

            async def ask(topic: str, name: str = "b1") -> httpx.Response:
                return await broker.post(f"/v1/brokers/{name}/recording_tokens", json={"topic": topic})

            assert code(await ask("a")) == (403, "forbidden")
            assert code(await ask("a", "b2")) == (403, "forbidden")
            assert code(await ask("plain")) == (404, "unknown_topic")
            topics = running.server.context.core.registry.topics
            topics.set_holder(topics.topics[TopicName("a")], (BrokerId("b1"), "i1"))
            granted = (await ask("a")).json()
            keys = running.server.context.keys.verifier
            claims = keys.claims(granted["token"], time.time(), audience=CLUSTER)
            assert claims is not None
            assert (claims.subject, claims.scopes) == ("b1", frozenset({"publish:Readings"}))
            assert keys.claims(granted["token"], time.time()) is None, "it is no token for other requests"

    asyncio.run(scenario())


def test_scopes_decide_which_topics_a_caller_sees_and_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            for topic in ("a/1", "a/2", "b"):
                await create(running.admin, topic)
            limited = await client(running, "receive:a/+", "send:b")
            assert code(await create(limited, "c")) == (403, "forbidden")
            assert code(await limited.delete("/v1/topics/b")) == (403, "forbidden")
            assert code(await limited.post("/v1/topics/move", json={"topic": "b", "target": "b1"})) == (
                403,
                "forbidden",
            )
            assert names((await limited.get("/v1/topics")).json()) == ["a/1", "a/2", "b"]
            assert names(await watch(limited, receive=["#"])) == ["a/1", "a/2"]
            sending = await watch(limited, send=["b", "a/1"])
            assert [(entry["topic"], entry["receive"]) for entry in sending["topics"]] == [("b", False)]
            assert sending["refused"]["a/1"]["code"] == "forbidden"
            reader = await client(running, "subscribe")
            assert code(await reader.get("/v1/topics")) == (403, "forbidden")
            assert (await create(await client(running, "author"), "c")).status_code == 201

    asyncio.run(scenario())


def test_token_of_a_watch_is_for_brokers_and_has_only_topic_scopes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            limited = await client(running, "receive:a/+", "subscribe")
            token = (await watch(limited, receive=["a/+"]))["token"]
            assert (await running.client(token).get("/v1/topics")).status_code == 401
            claims = running.server.context.verifier.claims(token, 0.0, audience="tocsin:brokers")
            assert claims is not None
            assert (claims.subject, claims.scopes) == ("ann", frozenset({"receive:a/+"}))

    asyncio.run(scenario())


def test_invalid_scopes_of_topics_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            for scope in ("send", "send:", "receive:#/a", "send:a b", "receive:a//b"):
                answer = await running.admin.post("/v1/tokens", json={"subject": "x", "scopes": [scope]})
                assert answer.status_code == 400, scope

    asyncio.run(scenario())


def test_watch_answers_when_a_matching_topic_appears(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            first = await watch(running.admin, receive=["a/#"])
            waiting = asyncio.create_task(watch(running.admin, receive=["a/#"], after=first["revision"], wait_s=30))
            await asyncio.sleep(0.2)
            await create(running.admin, "other")
            await create(running.admin, "a/1")
            async with asyncio.timeout(10):
                assert names(await waiting) == ["a/1"]

    asyncio.run(scenario())


def test_watch_answers_with_a_change_that_was_being_stored_when_it_began(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            first = await watch(running.admin, receive=["a/#"])
            process, may_commit = running.server.context.process, threading.Event()
            commit = process._store.commit

            def wait_and_commit(effects: Iterable[StoreEffect]) -> None:
                may_commit.wait(10)
                commit(effects)

            process._store.commit = wait_and_commit  # type: ignore[method-assign]
            creating = asyncio.create_task(create(running.admin, "a/1"))
            while "a/1" not in running.server.context.core.registry.topics.topics:
                await asyncio.sleep(0.01)
            waiting = asyncio.create_task(watch(running.admin, receive=["a/#"], after=first["revision"], wait_s=30))
            await asyncio.sleep(0.3)
            may_commit.set()
            async with asyncio.timeout(10):
                assert names(await waiting) == ["a/1"]
                await creating

    asyncio.run(scenario())


def test_watch_without_a_change_ends_after_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            first = await watch(running.admin, receive=["a/#"])
            again = await watch(running.admin, receive=["a/#"], after=first["revision"], wait_s=0.05)
            assert again["revision"] == first["revision"]
            assert (await running.admin.post("/v1/topics/watch", json={"wait_s": 1e9})).status_code == 400

    asyncio.run(scenario())


def test_first_use_creates_a_topic_under_a_prefix(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, topic_prefixes="game/") as running:
            answer = await watch(running.admin, send=["game/1", "other"])
            assert names(answer) == ["game/1"]
            assert answer["refused"]["other"]["code"] == "unknown_topic"
            assert names(await watch(running.admin, receive=["game/2"])) == [], "receivers create nothing"

    asyncio.run(scenario())
