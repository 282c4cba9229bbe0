"""Clients of topics: one user displaces no other's publishers and takes no other's names, and refusals are recorded."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from tests.broker.topics.home_bench import HomeBench, T
from tests.coordinator.test_topics import RULES, TopicBench
from tests.runtime.broker.running_broker import token
from tests.runtime.broker.test_mqtt import FIRE, client, mqtt_broker, until
from tests.runtime.broker.test_topic_socket import T as HOMED
from tests.runtime.broker.test_topic_socket import connected, home
from tests.runtime.coordinator.harness import coordinator
from tests.security.test_audit_log import told
from tocsin.coordinator.effects import RequestRejection
from tocsin.coordinator.events import TopicDeleted, TopicsUsed
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.model.ids import BrokerId, TopicName
from tocsin.runtime.http.credentials import Signer
from tocsin.wire import topic as wire
from tocsin.wire import topic_link
from tocsin.wire.errors import Code
from tocsin.wire.link import REPLICATE
from tocsin.wire.topic_directory import WATCH
from tocsin.wire.topic_log import PATH

# -- publishers --------------------------------------------------------------------------------------------------------


def attach_many(bench: HomeBench, user: str, runs: int) -> None:
    connection = bench.connect(user)
    for run in range(runs):
        bench.ask(connection, wire.AttachSender(run + 1, T, 1_000 + run, 1))


def test_publishers_of_one_user_displace_no_other_user() -> None:
    bench = HomeBench(T, topic_publishers=100)
    receiver, ann = bench.receiver(), bench.sender(user="ann")
    bench.publish(ann, 1, b"m1")
    assert bench.data(receiver) == [b"m1"]
    attach_many(bench, "eve", 201)
    again = bench.sender(user="ann")
    bench.publish(again, 1, b"m1")
    assert bench.data(receiver) == [], "the home recognises the repeat"
    assert len(bench.core.state.topics[T].publishers) == 100


def test_users_of_publishers_are_known_to_the_next_home() -> None:
    source = HomeBench(T, topic_publishers=100)
    ann = source.sender(user="ann")
    source.publish(ann, 1, b"m1")
    attach_many(source, "eve", 99)
    target = HomeBench(topic_publishers=100)
    state = source.core.state.topics[T].handed_state()
    target.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, 2, state)))
    target.renew()
    attach_many(target, "bob", 3)
    receiver, again = target.receiver(), target.sender(user="ann")
    target.publish(again, 1, b"m1")
    assert target.data(receiver) == []


# -- names -------------------------------------------------------------------------------------------------------------

BROKER = BrokerId("b1")


def bench_with_quota(quota: int) -> TopicBench:
    return TopicBench(BROKER, rules=CoordinatorRules(topic_prefixes=RULES.topic_prefixes, user_topics=quota))


def use(bench: TopicBench, user: str | None, *names: str, **more: Any) -> dict[TopicName, RequestRejection]:
    topics = tuple(TopicName(name) for name in names)
    refused: Any = bench.ask(lambda ask: TopicsUsed(ask, topics, user=user, **more))
    return dict(refused)


def test_messages_of_one_user_create_a_limited_number_of_topics() -> None:
    bench = bench_with_quota(2)
    refused = use(bench, "eve", "swarm/1", "swarm/2", "swarm/3")
    assert list(refused) == ["swarm/3"]
    assert refused[TopicName("swarm/3")].code is Code.TOO_MANY
    assert "as many as a user may create" in refused[TopicName("swarm/3")].message
    assert not use(bench, "ann", "swarm/3"), "another user has its own quota"
    assert not use(bench, "eve", "swarm/3"), "a topic that exists costs nothing"
    bench.ask(lambda ask: TopicDeleted(ask, TopicName("swarm/1")))
    assert not use(bench, "eve", "swarm/4")
    assert isinstance(bench.create(TopicName("swarm/5")), TopicRecord), "a statement has no quota"


def test_broker_creates_topics_for_the_quotas_of_its_users() -> None:
    bench = bench_with_quota(1)
    first, second, third = (TopicName(f"swarm/{number}") for number in range(3))
    refused = use(bench, None, first, second, third, users={first: "eve", second: "eve", third: "ann"})
    assert list(refused) == [second]


def test_quota_of_topics_survives_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings: dict[str, Any] = {"topic_prefixes": "swarm/", "user_topics": 1}
        names = ["swarm/1", "swarm/2"]
        async with coordinator(tmp_path, **settings) as running:
            eve = running.client(await running.token_for("send:#", subject="eve"))
            answer = (await eve.post(WATCH, json={"send": names})).json()
            assert list(answer["refused"]) == ["swarm/2"]
            relay = running.client(await running.token_for("broker:b1", subject="b1"))
            asked = {"send": ["swarm/2", "swarm/3"], "creators": {"eve": [0], "ann": [1, 7, -1]}}
            answer = (await relay.post(WATCH, json=asked)).json()
            assert list(answer["refused"]) == ["swarm/2"]
        async with coordinator(tmp_path, **settings) as running:
            for user, refused in (("eve", ["swarm/2"]), ("ann", ["swarm/2"]), ("bob", [])):
                caller = running.client(await running.token_for("send:#", subject=user))
                body = {"send": ["swarm/2"], "creators": {"bob": [0]}}
                assert list((await caller.post(WATCH, json=body)).json()["refused"]) == refused

    asyncio.run(scenario())


def test_relay_names_the_user_that_creates_a_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mqtt_broker(tmp_path) as (_, broker):
            assert broker.server.mqtt is not None
            relay = broker.server.mqtt.process.relay
            async with client(broker, "eve", password=token("eve", "send:#")) as eve:
                await eve.publish("swarm/1", b"x", qos=0)
                await until(lambda: "eve" in relay.waiting_of)
            (session,) = relay._sessions
            watch = session.driver._watched
            assert watch is not None
            assert [watch.send[index] for index in session.driver._creators(watch)["eve"]] == ["swarm/1"]

    asyncio.run(scenario())


# -- names of users ----------------------------------------------------------------------------------------------------


def test_stranger_cannot_register_the_name_of_a_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, open_registration=True) as running:
            await running.token_for("subscribe", subject="ann")
            strangers = (running.client(None), running.client(await running.token_for("subscribe", subject="eve")))
            for stranger in strangers:
                refused = await stranger.post("/v1/users", json={"user": "ann"})
                assert refused.status_code == 403
                assert "guest-" in refused.text
                assert (await stranger.post("/v1/users", json={})).json()["user"].startswith("u-")
            assert (await strangers[0].post("/v1/users", json={"user": "guest-1"})).status_code == 201
            assert (await running.admin.post("/v1/users", json={"user": "ann"})).status_code == 201

    asyncio.run(scenario())


def test_token_cannot_carry_a_name_that_strangers_may_register(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, open_registration=True) as running:
            body = {"subject": "guest-1", "scopes": ["subscribe"]}
            assert (await running.admin.post("/v1/tokens", json=body)).status_code == 400
            assert (await running.client(None).post("/v1/users", json={"user": "guest-1"})).status_code == 201
            assert (await running.admin.post("/v1/tokens", json=body)).status_code == 201

    asyncio.run(scenario())


# -- the audit log -----------------------------------------------------------------------------------------------------


def test_refused_attach_is_recorded(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"

    async def scenario() -> None:
        async with home(tmp_path, audit=str(log)) as broker, connected(broker, "send:x", "receive:x") as eve:
            assert isinstance(await eve.ask(wire.AttachSender(1, HOMED, 7, 1)), wire.Refused)
            assert isinstance(await eve.ask(wire.AttachReceiver(2, HOMED)), wire.Refused)

    asyncio.run(scenario())
    assert told(log)[1:] == [
        ("ann", "send", HOMED, "topics", "forbidden"),
        ("ann", "receive", HOMED, "topics", "forbidden"),
    ]


def test_refusals_and_ends_at_a_broker_are_recorded(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"

    async def join(address: str, given: str) -> Any:
        headers = {"Authorization": f"Bearer {given}"}
        return await connect(address + PATH, subprotocols=[Subprotocol("tocsin.msgpack")], additional_headers=headers)

    async def scenario() -> None:
        async with mqtt_broker(tmp_path, audit=str(log)) as (_, broker), broker.session("bob"):
            replica = await join(broker.address, token("b2", REPLICATE))
            with pytest.raises(InvalidStatus):
                await join(broker.address, token("eve"))
            with contextlib.suppress(Exception):  # the broker ends the connection
                narrow = token("ann", "send:a/#", "receive:a/#")
                async with client(broker, "ann", password=narrow) as ann:
                    await ann.subscribe([("secret/1", 1), (FIRE, 1)])
                    for _ in range(3):
                        with contextlib.suppress(Exception):
                            await ann.publish("secret/1", b"x", qos=1)
                    other_keys = Signer(Ed25519PrivateKey.generate()).jwks()
                    (tmp_path / "keys.json").write_text(json.dumps(other_keys), encoding="utf-8")
                    await until(lambda: not broker.server.mqtt.process.claims)  # type: ignore[union-attr]
            await replica.close()

    asyncio.run(scenario())
    lines = told(log)
    for line in (
        ("b2", "login", PATH, PATH, "ok"),
        (None, "login", PATH, PATH, "unauthenticated"),
        ("ann", "receive", "secret/1", "mqtt", "forbidden"),
        ("ann", "subscribe", "Reports", "mqtt", "forbidden"),
        ("ann", "send", "secret/1", "mqtt", "forbidden"),
        ("ann", "end", "mqtt", "mqtt", "revoked"),
        ("bob", "end", "session", "session", "revoked"),
    ):
        assert lines.count(line) == 1, line


def test_end_of_streams_with_the_key_is_recorded_at_the_coordinator(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"

    async def scenario() -> None:
        async with coordinator(tmp_path / "state", audit=str(log), topic_prefixes="swarm/") as running:
            bob = running.client(await running.token_for("receive:#", subject="bob"))
            revision = (await bob.post(WATCH, json={"receive": ["#"]})).json()["revision"]
            body = {"receive": ["#"], "after": revision, "wait_s": 30}
            waiting = asyncio.create_task(bob.post(WATCH, json=body, timeout=60))
            await until(lambda: len(running.server.context.open_requests) > 0)
            assert (await running.admin.post("/v1/keys/rotate", json={"overlap_days": 0})).status_code == 200
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(scenario())
    assert ("bob", "end", "request", "request", "revoked") in told(log)
