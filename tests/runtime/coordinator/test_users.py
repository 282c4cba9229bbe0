"""Users of a running coordinator: registration, placement, state across restarts, sessions at other brokers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.runtime.coordinator.harness import ADA, FakeBroker, coordinator, frontend
from tocsin.runtime.http.credentials import BROKERS, Verifier
from tocsin.wire.link import (
    Adopt,
    Beat,
    Changed,
    Release,
    SessionOpened,
    StateRequest,
    Stored,
    Webhook,
)


def test_registered_user_gets_the_nearest_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            client = await running.user("ada", lat=48.0, lon=11.0)
            no_broker = await client.post("/v1/users/ada/broker", json={})
            assert no_broker.status_code == 503 and int(no_broker.headers["Retry-After"]) >= 1
            far = await FakeBroker(running, "far", lat=-33.0, lon=151.0).connect()
            near = await FakeBroker(running, "near", lat=48.1, lon=11.5).connect()
            placed = (await client.post("/v1/users/ada/broker", json={})).json()
            assert (placed["broker"], placed["address"]) == ("near", "ws://near")
            await near.send(StateRequest(ADA))
            assert [state.subscriber for state in (await near.receive(Adopt)).subscribers] == ["ada"]
            keys = (await running.client(None).get("/v1/keys")).json()
            claims = Verifier.from_jwks(keys).claims(placed["token"], time.time(), audience=BROKERS)
            assert claims is not None and (claims.subject, claims.scopes) == ("ada", frozenset({"subscribe"}))
            assert claims.expires_s == placed["expires_s"]
            # The user keeps its broker, even if another is nearer now; it changes only if the user cannot reach it.
            again = (await client.post("/v1/users/ada/broker", json={"lat": -33.0, "lon": 151.0})).json()
            assert again["broker"] == "near"
            avoided = (await client.post("/v1/users/ada/broker", json={"avoid": ["near"]})).json()
            assert avoided["broker"] == "far"
            for broker in (far, near):
                await broker.stop()

    asyncio.run(scenario())


def test_stored_changes_are_confirmed_and_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        hook = Webhook("https://example.org", ["whsec_abc"])
        async with coordinator(tmp_path) as running:
            await running.user("ada", lat=1.0, lon=2.0)
            broker = await FakeBroker(running, "b1").connect()
            await running.place("ada")
            await broker.send(SessionOpened(ADA))
            for number in range(1, 40):
                acked = {frontend().subscription: f"1-{number}"}
                await broker.send(Changed(number, ADA, added=[frontend(f"s{number}")], acked=acked))
            await broker.send(Changed(40, ADA, webhook=hook))
            while (await broker.receive(Stored)).upto < 40:
                pass
            # Changes share commits.
            assert running.server.process.commits < 40
            before = await running.user_view("ada")
            assert len(before["subscriptions"]) == 39
            await broker.stop()
        async with coordinator(tmp_path) as running:
            assert running.first_token is None, "the admin token is shown once"
            after = await running.user_view("ada")
            assert after == before | {"online": False}
            # The broker reconnects with its subscribers: nothing is sent again.
            broker = await FakeBroker(running, "b1", online=[ADA], hosting=[ADA]).connect()
            await broker.receive(Beat)
            assert not [message for message in broker.received if isinstance(message, Adopt | Release)]
            assert (await running.user_view("ada"))["online"]
            await broker.stop()
            # A restarted broker has no state: the coordinator sends it.
            broker = await FakeBroker(running, "b1", incarnation="b1-2").connect()
            [state] = (await broker.receive(Adopt)).subscribers
            assert state.subscriber == ADA and len(state.subscriptions) == 39 and state.webhook == hook
            assert {frontend.cursor for frontend in state.subscriptions if frontend.subscription == "s1"} == {"1-39"}
            await broker.stop()

    asyncio.run(scenario())


def test_login_at_another_broker_adopts_there_and_releases_at_home(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            await running.user("ada")
            home = await FakeBroker(running, "b1").connect()
            await running.place("ada")
            await home.send(Changed(1, ADA, added=[frontend()]))
            await home.receive(Stored)
            other = await FakeBroker(running, "b2").connect()
            await other.send(StateRequest(ADA))
            assert (await other.receive(Adopt)).subscribers[0].subscriptions == [frontend()]
            assert not [message for message in home.received if isinstance(message, Release)]
            await other.send(SessionOpened(ADA))
            assert (await home.receive(Release)).subscriber == "ada"
            await running.until("/v1/users/ada", lambda answer: answer["broker"] == "b2" and answer["online"])
            for broker in (home, other):
                await broker.stop()

    asyncio.run(scenario())
