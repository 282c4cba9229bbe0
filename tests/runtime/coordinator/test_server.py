"""The coordinator's process over real sockets: users, brokers, placement, migrations, failures, restarts."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.runtime.coordinator.harness import ADA, FakeBroker, coordinator, frontend
from tocsin.coordinator.effects import StoredState
from tocsin.coordinator.effects import StoreEffect as StoredEffect
from tocsin.model.ids import SubscriberId
from tocsin.runtime.coordinator.store import CoordinatorStore
from tocsin.runtime.http.credentials import Verifier
from tocsin.wire.errors import TocsinError
from tocsin.wire.link import (
    Abandon,
    Accepting,
    Adopt,
    Beat,
    Changed,
    HandOver,
    LoadReport,
    Prepare,
    Prepared,
    PrepareFailed,
    Register,
    Registered,
    Release,
    Released,
    SessionOpened,
    StateRequest,
    Stored,
    Webhook,
)


def test_a_user_registers_and_is_given_a_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            client = await running.user("ada", lat=48.0, lon=11.0)
            nowhere = await client.post("/v1/users/ada/broker", json={})
            assert nowhere.status_code == 503 and int(nowhere.headers["Retry-After"]) >= 1
            far = await FakeBroker(running, "far", lat=-33.0, lon=151.0).connect()
            near = await FakeBroker(running, "near", lat=48.1, lon=11.5).connect()
            placed = (await client.post("/v1/users/ada/broker", json={})).json()
            assert (placed["broker"], placed["address"]) == ("near", "ws://near")
            await near.say(StateRequest(ADA))
            assert [state.subscriber for state in (await near.hears(Adopt)).subscribers] == ["ada"]
            keys = (await running.client(None).get("/v1/keys")).json()
            claims = Verifier.from_jwks(keys).claims(placed["token"], time.time())
            assert claims is not None and (claims.subject, claims.scopes) == ("ada", frozenset({"subscribe"}))
            assert claims.expires_s == placed["expires_s"]
            # Sticky, even where another one would be nearer now; elsewhere only when it cannot be reached.
            again = (await client.post("/v1/users/ada/broker", json={"lat": -33.0, "lon": 151.0})).json()
            assert again["broker"] == "near"
            avoided = (await client.post("/v1/users/ada/broker", json={"avoid": ["near"]})).json()
            assert avoided["broker"] == "far"
            for broker in (far, near):
                await broker.stop()

    asyncio.run(scenario())


def test_what_is_stored_is_confirmed_and_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        hook = Webhook("https://example.org", ["whsec_abc"])
        async with coordinator(tmp_path) as running:
            await running.user("ada", lat=1.0, lon=2.0)
            broker = await FakeBroker(running, "b1").connect()
            await running.place("ada")
            await broker.say(SessionOpened(ADA))
            for number in range(1, 40):
                acked = {frontend().subscription: f"1-{number}"}
                await broker.say(Changed(number, ADA, added=[frontend(f"s{number}")], acked=acked))
            await broker.say(Changed(40, ADA, webhook=hook))
            while (await broker.hears(Stored)).upto < 40:
                pass
            # Far fewer commits than changes: they share.
            assert running.server.process.commits < 40
            before = await running.user_view("ada")
            assert len(before["subscriptions"]) == 39
            await broker.stop()
        async with coordinator(tmp_path) as running:
            assert running.first_token is None, "the administrator's token is shown once"
            after = await running.user_view("ada")
            assert after == before | {"online": False}
            # The broker comes back with what it holds: nobody is disturbed, nothing is sent again.
            broker = await FakeBroker(running, "b1", online=[ADA], hosting=[ADA]).connect()
            await broker.hears(Beat)
            assert not [one for one in broker.heard if isinstance(one, Adopt | Release)]
            assert (await running.user_view("ada"))["online"]
            await broker.stop()
            # A broker that restarted holds nothing: it is told whom to serve.
            broker = await FakeBroker(running, "b1", incarnation="b1-2").connect()
            [state] = (await broker.hears(Adopt)).subscribers
            assert state.subscriber == ADA and len(state.subscriptions) == 39 and state.webhook == hook
            assert {one.cursor for one in state.subscriptions if one.subscription == "s1"} == {"1-39"}
            await broker.stop()

    asyncio.run(scenario())


def test_a_migration_is_made_before_it_breaks(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            await running.user("ada")
            source = await FakeBroker(running, "b1").connect()
            await running.place("ada")
            await source.say(SessionOpened(ADA))
            await source.say(Changed(1, ADA, added=[frontend()]))
            await source.hears(Stored)
            target = await FakeBroker(running, "b2").connect()
            asked = await running.admin.post("/v1/migrations", json={"subscriber": "ada", "target": "b2"})
            assert asked.status_code == 202, asked.text
            prepare = await target.hears(Prepare)
            assert prepare.state.subscriptions == [frontend()]
            assert not [one for one in source.heard if isinstance(one, HandOver | Release)]
            await target.say(Prepared(prepare.migration))
            told = await source.hears(HandOver)
            assert (told.broker, told.address, told.subscriber) == ("b2", "ws://b2", "ada")
            verifier = running.server.api.verifier
            assert verifier.claims(told.token, time.time()) is None, "it opens nothing but its target"
            claims = verifier.claims(told.token, time.time(), audience="b2")
            assert claims is not None and claims.migration == prepare.migration
            assert claims.expires_s is not None and claims.expires_s <= time.time() + 60
            assert (await running.user_view("ada"))["broker"] == "b1"
            await target.say(SessionOpened(ADA, prepare.migration))
            released = await source.hears(Release)
            assert (released.subscriber, released.migration) == ("ada", prepare.migration)
            assert (await running.user_view("ada"))["broker"] == "b2"
            await source.say(Released(ADA, prepare.migration))
            assert (await running.until("/v1/migrations", lambda found: not found["migrations"]))["waiting"] == 0
            for broker in (source, target):
                await broker.stop()

    asyncio.run(scenario())


def test_a_target_that_cannot_prepare_leaves_everything_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, prepare_s=0.3) as running:
            await running.user("ada")
            source = await FakeBroker(running, "b1").connect()
            await running.place("ada")
            await source.say(SessionOpened(ADA))
            target = await FakeBroker(running, "b2").connect()
            await running.admin.post("/v1/migrations", json={"subscriber": "ada", "target": "b2"})
            await target.say(PrepareFailed((await target.hears(Prepare)).migration, "not_ready", "no room"))
            await target.hears(Abandon)
            await running.admin.post("/v1/migrations", json={"subscriber": "ada", "target": "b2"})
            await target.hears(Prepare)
            await target.hears(Abandon)  # it said nothing in time
            assert (await running.user_view("ada"))["broker"] == "b1"
            refused = await running.admin.post("/v1/migrations", json={"subscriber": "ada", "target": "b1"})
            assert refused.status_code == 409 and "there already" in refused.json()["error"]["message"]
            for broker in (source, target):
                await broker.stop()

    asyncio.run(scenario())


def test_a_dead_brokers_subscribers_are_adopted_by_another_and_it_is_not_trusted_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, probation_s=60) as running:
            first = await FakeBroker(running, "b1").connect()
            for name in ("ada", "bob", "eve"):
                await running.user(name)
                await running.place(name)
            for number, name in enumerate(("ada", "bob", "eve")):
                await first.say(Changed(number, SubscriberId(name), added=[frontend()]))
            while (await first.hears(Stored)).upto < 2:
                pass
            second = await FakeBroker(running, "b2").connect()
            await first.stop()
            adopted: set[str] = set()
            while len(adopted) < 3:
                adopted |= {state.subscriber for state in (await second.hears(Adopt)).subscribers}
            assert (await running.user_view("ada"))["broker"] == "b2"
            await running.until("/v1/brokers/b1", lambda found: found["state"] == "dead")
            # It was only asleep, and comes back with everybody: it is told to let go, and to take nobody new.
            back = FakeBroker(running, "b1", hosting=[ADA])
            await back.connect(register=False)
            await back.say(Register(back.id, **back.about))
            assert not (await back.hears(Registered)).accepting
            assert (await back.hears(Release)).subscriber == "ada"
            assert (await running.admin.get("/v1/brokers/b1")).json()["state"] == "probation"
            for broker in (back, second):
                await broker.stop()

    asyncio.run(scenario())


def test_a_silent_broker_is_suspect_then_dead_though_its_link_stands(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            silent = await FakeBroker(running, "b1").connect(beat=False)
            await running.until("/v1/brokers/b1", lambda found: found["state"] == "suspect")
            await running.until("/v1/brokers/b1", lambda found: found["state"] == "dead")
            assert "register again" in (await silent.is_closed())[1]
            await silent.stop()

    asyncio.run(scenario())


def test_a_drained_broker_loses_everybody_and_the_drain_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            first = await FakeBroker(running, "b1").connect()
            for name in ("ada", "bob"):
                await running.user(name)
                await running.place(name)
            drained = await running.admin.post("/v1/brokers/b1/drain", json={"on": True})
            assert drained.json() == {"draining": True, "subscribers": 2}
            told = await first.hears(Accepting)
            assert told.draining and not told.accepting
            in_use = await running.admin.delete("/v1/brokers/b1")
            assert in_use.status_code == 409
            await first.stop()
        async with coordinator(tmp_path) as running:
            first = await FakeBroker(running, "b1", hosting=["ada", "bob"]).connect()
            assert (await first.hears(Accepting)).draining
            second = await FakeBroker(running, "b2").connect()
            for _ in range(2):  # offline: prepared is all there is to confirm
                await second.say(Prepared((await second.hears(Prepare)).migration))
            for _ in range(2):
                release = await first.hears(Release)
                await first.say(Released(release.subscriber, release.migration))
            await running.until("/v1/brokers/b1", lambda found: not found["subscribers"] + found["migrations_out"])
            assert (await running.admin.delete("/v1/brokers/b1")).status_code == 202
            assert "dismissed" in (await first.is_closed())[1]
            await running.until("/v1/brokers", lambda found: [one["broker"] for one in found["brokers"]] == ["b2"])
            for broker in (first, second):
                await broker.stop()

    asyncio.run(scenario())


def test_brokers_that_are_not_back_after_a_restart_get_a_grace_period(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            broker = await FakeBroker(running, "b1").connect()
            await running.user("ada")
            await running.place("ada")
            await broker.say(Changed(1, ADA, added=[frontend()]))
            await broker.hears(Stored)
            await broker.stop()
        async with coordinator(tmp_path, grace_s=1.5) as running:
            other = await FakeBroker(running, "b2").connect()
            assert (await running.admin.get("/v1/brokers/b1")).json()["state"] == "suspect"
            started_s = time.monotonic()
            await other.hears(Adopt)
            assert time.monotonic() - started_s > 0.8
            await other.stop()

    asyncio.run(scenario())


def test_who_logs_in_elsewhere_by_itself_is_adopted_there_and_released_here(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            await running.user("ada")
            home = await FakeBroker(running, "b1").connect()
            await running.place("ada")
            await home.say(Changed(1, ADA, added=[frontend()]))
            await home.hears(Stored)
            other = await FakeBroker(running, "b2").connect()
            await other.say(StateRequest(ADA))
            assert (await other.hears(Adopt)).subscribers[0].subscriptions == [frontend()]
            assert not [one for one in home.heard if isinstance(one, Release)]
            await other.say(SessionOpened(ADA))
            assert (await home.hears(Release)).subscriber == "ada"
            await running.until("/v1/users/ada", lambda found: found["broker"] == "b2" and found["online"])
            for broker in (home, other):
                await broker.stop()

    asyncio.run(scenario())


def test_status_shows_loads_and_how_even_they_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            one, two = await FakeBroker(running, "b1").connect(), await FakeBroker(running, "b2").connect()
            await one.say(LoadReport(100.0, 200.0, {frontend().subscription: 100.0}, delivery_s_p95=0.01))
            await two.say(LoadReport(0.0, 100.0, {}))
            found = await running.until("/v1/status", lambda found: found["load_bytes_per_s"] == 400)
            assert [broker["load_bytes_per_s"] for broker in found["brokers"]] == [300, 100]
            assert found["cov"] == pytest.approx(0.5)
            metrics = (await running.client(None).get("/metrics")).text
            assert 'tocsin_coordinator_broker_load_bytes_per_second{broker="b1"} 300.0' in metrics
            assert 'tocsin_coordinator_brokers{state="alive"} 2.0' in metrics
            for broker in (one, two):
                await broker.stop()

    asyncio.run(scenario())


def test_a_chosen_placement_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            assert (await running.admin.get("/v1/settings")).json()["placement"] == "nearest"
            changed = await running.admin.put("/v1/settings", json={"placement": "round-robin"})
            assert changed.json() == {"placement": "round-robin", "replacement": "least-loaded"}
            assert (await running.admin.put("/v1/settings", json={"placement": "best"})).status_code == 400
        async with coordinator(tmp_path) as running:
            assert (await running.admin.get("/v1/settings")).json()["placement"] == "round-robin"

    asyncio.run(scenario())


def test_nothing_is_said_before_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails holds everything back, says so on /readyz, and goes on when it can."""
    broken = True
    commit = CoordinatorStore.commit

    def failing(self: CoordinatorStore, effects: Iterable[StoredEffect]) -> None:
        if broken:
            raise sa.exc.OperationalError("INSERT", {}, OSError("disk full"))
        commit(self, effects)

    async def scenario() -> None:
        nonlocal broken
        async with coordinator(tmp_path) as running:
            monkeypatch.setattr(CoordinatorStore, "commit", failing)
            asking = asyncio.create_task(running.admin.post("/v1/users", json={"user": "ada"}))
            async with asyncio.timeout(5):
                while (await running.admin.get("/readyz")).status_code != 503:
                    await asyncio.sleep(0.02)
            assert not asking.done()
            broken = False
            assert (await asking).status_code == 201
            assert (await running.admin.get("/readyz")).status_code == 200

    asyncio.run(scenario())


def test_logic_that_breaks_begins_again_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            await running.user("ada")
            broker = await FakeBroker(running, "b1").connect()
            core = running.server.process.core
            assert core is not None

            def broken(*_: Any) -> list[Any]:
                raise AssertionError("a broken invariant")

            monkeypatch.setattr(core, "handle", broken)
            assert "register again" in (await broker.is_closed())[1]
            await running.until("/v1/users/ada", lambda found: running.server.process.core is not core)
            assert (await running.user_view("ada"))["user"] == "ada"
            await broker.stop()

    asyncio.run(scenario())


def test_a_store_that_cannot_be_read_when_it_begins_again_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable = True
    load = CoordinatorStore.load

    def failing(self: CoordinatorStore) -> StoredState:
        if unreadable:
            raise sa.exc.OperationalError("SELECT", {}, OSError("database is locked"))
        return load(self)

    def broken(*_: Any) -> list[Any]:
        raise AssertionError("a broken invariant")

    async def scenario() -> None:
        nonlocal unreadable
        async with coordinator(tmp_path) as running:
            monkeypatch.setattr("tocsin.runtime.coordinator.process.retry_delay_s", lambda failures, **bounds: 0.05)
            await running.user("ada")
            monkeypatch.setattr(CoordinatorStore, "load", failing)
            monkeypatch.setattr(running.server.process.core, "handle", broken)
            said = await running.until("/readyz", lambda found: not found["ready"])
            assert said["reasons"] == ["the store cannot be read: OperationalError"]
            refused = await running.admin.post("/v1/users", json={"user": "bob"})
            assert refused.status_code == 503, "whoever asks is told to come again, and does not wait"
            unreadable = False
            await running.until("/readyz", lambda found: found["ready"])
            assert (await running.admin.post("/v1/users", json={"user": "bob"})).status_code == 201
            assert (await running.user_view("ada"))["user"] == "ada"

    asyncio.run(scenario())


@pytest.mark.parametrize("breaks", ["_do", "watch", "_commit"])
def test_a_loop_that_breaks_ends_the_process_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    """Whoever watches over it starts it again; one that stayed up and did nothing would be left alone."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("unforeseen")

    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            monkeypatch.setattr(running.server.process, breaks, broken)
            async with asyncio.timeout(10):
                asking = running.admin.post("/v1/users", json={"user": "ada"})
                await asyncio.gather(asking, return_exceptions=True)  # answered, or the connection is closed
                await running.server.process.ended.wait()

    with pytest.raises(TocsinError, match="ZeroDivisionError: unforeseen"):
        asyncio.run(scenario())


def test_a_second_coordinator_on_the_same_folder_is_refused_and_on_the_same_store_takes_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = f"sqlite:///{tmp_path / 'shared.sqlite'}"
        with pytest.raises(TocsinError, match="taken over"):
            async with coordinator(tmp_path / "one", store=store) as first:
                await first.user("ada")
                with pytest.raises(TocsinError, match="another coordinator is running"):
                    async with coordinator(tmp_path / "one", store=store):
                        pass
                async with coordinator(tmp_path / "two", store=store) as second:
                    assert (await second.user_view("ada"))["user"] == "ada"
                    refused = await first.admin.post("/v1/users", json={"user": "bob"})
                    assert refused.status_code == 503

    asyncio.run(scenario())


def test_secrets_lie_in_files_of_the_owner_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path / "state"):
            pass

    asyncio.run(scenario())
    folder = tmp_path / "state"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("admin-token", "signing-key.pem"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_an_administrator_who_lost_the_token_gets_another_by_removing_its_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            first = running.first_token
        async with coordinator(tmp_path) as running:
            assert running.first_token is None
        (tmp_path / "admin-token").unlink()
        async with coordinator(tmp_path) as running:
            assert running.first_token not in (None, first)
            assert (await running.admin.get("/v1/status")).status_code == 200

    asyncio.run(scenario())
