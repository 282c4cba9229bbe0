"""A broker's token opens no user's state: the user is assigned to the broker, or its own token proves the session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.runtime.coordinator.harness import FakeBroker, RunningCoordinator, coordinator
from tocsin.model.ids import ChannelName, SubscriberId, SubscriptionId
from tocsin.runtime.http.credentials import BROKERS, CLUSTER
from tocsin.wire.link import (
    Adopt,
    Changed,
    FromBroker,
    Frontend,
    Register,
    Release,
    SessionOpened,
    StateRequest,
    Stored,
    Webhook,
)

ANN = SubscriberId("ann")
HELD = Frontend(SubscriptionId("s1"), ChannelName("C"), {}, "1-0")
HOOK = Webhook("https://ann.example", ["whsec_secret"])


@asynccontextmanager
async def home_and_rogue(folder: Path) -> AsyncIterator[tuple[RunningCoordinator, FakeBroker, FakeBroker]]:
    """A coordinator, the broker that serves ann, and another broker with a token of its own."""
    async with coordinator(folder) as running:
        await running.user("ann")
        home, rogue = FakeBroker(running, "home"), FakeBroker(running, "rogue")
        for broker in (home, rogue):
            await broker.connect(await running.token_for(f"broker:{broker.id}"))
        await home.send(SessionOpened(ANN))
        await home.send(Changed(1, ANN, [HELD], webhook=HOOK))
        await home.receive(Stored)
        try:
            yield running, home, rogue
        finally:
            await home.stop()
            await rogue.stop()


async def asked(rogue: FakeBroker, message: FromBroker) -> list[object]:
    """The messages that the coordinator sends before it confirms a change sent after `message`."""
    await rogue.send_alone(message)
    await rogue.send_alone(Changed(99, SubscriberId("nobody")))
    received: list[object] = []
    async with asyncio.timeout(10):
        while True:
            while rogue.received:
                reply = rogue.received.pop(0)
                if isinstance(reply, Stored) and reply.upto == 99:
                    return received
                received.append(reply)
            await asyncio.sleep(0.01)


def test_broker_gets_no_state_of_a_user_without_its_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with home_and_rogue(tmp_path) as (_, _home, rogue):
            assert not [reply for reply in await asked(rogue, StateRequest(ANN)) if isinstance(reply, Adopt)]
            other = rogue.running.server.context.sign("bob", ["subscribe"], 60, audience=BROKERS)[0]
            assert not [reply for reply in await asked(rogue, StateRequest(ANN, other)) if isinstance(reply, Adopt)]
            for_home = rogue.running.server.context.sign("ann", ["subscribe"], 60, audience="home")[0]
            assert not [reply for reply in await asked(rogue, StateRequest(ANN, for_home)) if isinstance(reply, Adopt)]
            await rogue.send(StateRequest(ANN))
            [state] = (await rogue.receive(Adopt)).subscribers
            assert (state.subscriptions, state.webhook) == ([HELD], HOOK)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "message",
    [
        SessionOpened(ANN),
        Changed(1, ANN, [Frontend(SubscriptionId("s2"), ChannelName("C"), {}, "1-0")]),
        Changed(1, ANN, webhook=Webhook("https://rogue.example", ["whsec_other"])),
    ],
    ids=["session", "subscription", "webhook"],
)
def test_broker_changes_nothing_of_a_user_without_its_token(tmp_path: Path, message: FromBroker) -> None:
    async def scenario() -> None:
        async with home_and_rogue(tmp_path) as (running, _, rogue):
            before = await running.user_view("ann")
            await asked(rogue, message)
            assert await running.user_view("ann") == before
            assert before["broker"] == "home"

    asyncio.run(scenario())


def test_broker_cannot_register_users_of_a_broker_that_is_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with home_and_rogue(tmp_path) as (running, home, rogue):
            await home.stop()
            await running.until("/v1/brokers/home", lambda view: view["state"] != "alive")
            claim = Register(rogue.id, **rogue.registration | {"online": [ANN], "hosting": [ANN]})
            await rogue.send_alone(claim)
            assert (await rogue.receive(Release)).subscriber == ANN
            assert (await running.user_view("ann"))["broker"] == "home"

    asyncio.run(scenario())


def test_coordinator_vouches_only_for_the_brokers_own_users(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with home_and_rogue(tmp_path) as (running, _, _rogue):
            users = {"users": ["ann", "bob"]}
            vouched = {}
            for broker in ("home", "rogue"):
                client = running.client(await running.token_for(f"broker:{broker}"))
                answer = (await client.post(f"/v1/brokers/{broker}/vouchers", json=users)).json()
                claims = running.server.context.verifier.claims(
                    answer["token"], running.server.process.now_s(), audience=CLUSTER
                )
                assert claims is not None and claims.subject == broker and list(claims.users) == answer["users"]
                vouched[broker] = answer["users"]
                other = await client.post("/v1/brokers/other/vouchers", json=users)
                assert other.status_code == 403
                refused = await running.client(answer["token"]).get("/v1/brokers")
                assert refused.status_code == 401
            assert vouched == {"home": ["ann"], "rogue": []}

    asyncio.run(scenario())
