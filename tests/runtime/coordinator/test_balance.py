"""Migrations that an administrator requests, and placement settings, at a running coordinator."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.runtime.coordinator.harness import ADA, FakeBroker, coordinator, frontend
from tocsin.wire.link import (
    Abandon,
    Changed,
    HandOver,
    Prepare,
    Prepared,
    PrepareFailed,
    Release,
    Released,
    SessionOpened,
    Stored,
)


def test_source_releases_only_after_the_target_has_the_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            await running.user("ada")
            source = await FakeBroker(running, "b1").connect()
            await running.place("ada")
            await source.send(SessionOpened(ADA))
            await source.send(Changed(1, ADA, added=[frontend()]))
            await source.receive(Stored)
            target = await FakeBroker(running, "b2").connect()
            answer = await running.admin.post("/v1/migrations", json={"subscriber": "ada", "target": "b2"})
            assert answer.status_code == 202, answer.text
            prepare = await target.receive(Prepare)
            assert prepare.state.subscriptions == [frontend()]
            assert not [message for message in source.received if isinstance(message, HandOver | Release)]
            await target.send(Prepared(prepare.migration))
            hand_over = await source.receive(HandOver)
            assert (hand_over.broker, hand_over.address, hand_over.subscriber) == ("b2", "ws://b2", "ada")
            verifier = running.server.context.verifier
            assert verifier.claims(hand_over.token, time.time()) is None, "the token is valid at the target only"
            claims = verifier.claims(hand_over.token, time.time(), audience="b2")
            assert claims is not None and claims.migration == prepare.migration
            assert claims.expires_s is not None and claims.expires_s <= time.time() + 60
            assert (await running.user_view("ada"))["broker"] == "b1"
            await target.send(SessionOpened(ADA, prepare.migration))
            released = await source.receive(Release)
            assert (released.subscriber, released.migration) == ("ada", prepare.migration)
            assert (await running.user_view("ada"))["broker"] == "b2"
            await source.send(Released(ADA, prepare.migration))
            assert (await running.until("/v1/migrations", lambda answer: not answer["migrations"]))["waiting"] == 0
            for broker in (source, target):
                await broker.stop()

    asyncio.run(scenario())


def test_failed_preparation_leaves_the_subscriber_at_its_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, prepare_s=0.3) as running:
            await running.user("ada")
            source = await FakeBroker(running, "b1").connect()
            await running.place("ada")
            await source.send(SessionOpened(ADA))
            target = await FakeBroker(running, "b2").connect()
            await running.admin.post("/v1/migrations", json={"subscriber": "ada", "target": "b2"})
            await target.send(PrepareFailed((await target.receive(Prepare)).migration, "not_ready", "no room"))
            await target.receive(Abandon)
            await running.admin.post("/v1/migrations", json={"subscriber": "ada", "target": "b2"})
            await target.receive(Prepare)
            await target.receive(Abandon)  # the target did not answer in time
            assert (await running.user_view("ada"))["broker"] == "b1"
            refused = await running.admin.post("/v1/migrations", json={"subscriber": "ada", "target": "b1"})
            assert refused.status_code == 409 and "there already" in refused.json()["error"]["message"]
            for broker in (source, target):
                await broker.stop()

    asyncio.run(scenario())


def test_changed_placement_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            assert (await running.admin.get("/v1/settings")).json()["placement"] == "nearest"
            changed = await running.admin.put("/v1/settings", json={"placement": "round-robin"})
            assert changed.json() == {"placement": "round-robin", "replacement": "least-loaded"}
            assert (await running.admin.put("/v1/settings", json={"placement": "best"})).status_code == 400
        async with coordinator(tmp_path) as running:
            assert (await running.admin.get("/v1/settings")).json()["placement"] == "round-robin"

    asyncio.run(scenario())
