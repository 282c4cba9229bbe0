"""Tokens end: by revocation, by expiry, with their user and with their key; and no token makes a longer-lived one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import sqlalchemy as sa
import websockets
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.runtime.broker.running_broker import ConnectedSubscriber, RunningBroker, running_broker, token
from tests.runtime.coordinator.harness import FakeBroker, RunningCoordinator, coordinator
from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
from tocsin.cli.main import make_app
from tocsin.coordinator.effects import SendHandOver, StoreRevocation
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.runtime.coordinator.store import CoordinatorStore
from tocsin.runtime.http.credentials import BROKERS, Claims, Signer
from tocsin.runtime.http.trusted_keys import TrustedKeys
from tocsin.wire import topic_log
from tocsin.wire.link import REPLICATE

KNOWN_S = 5.0
"""A revocation must be known to brokers after this long."""


@asynccontextmanager
async def network(folder: Path, **settings: Any) -> AsyncIterator[tuple[RunningCoordinator, RunningBroker]]:
    """A real coordinator and a real broker; the data cluster is emulated."""
    # A busy machine must not make the only broker suspect.
    patient = {"heartbeat_s": 1.0, "suspect_s": 60.0, "dead_s": 90.0} | settings
    async with coordinator(folder / "coordinator", **patient) as running, EmulatedCluster("Reports") as cluster:
        secret = folder / "token"
        secret.write_text(await running.token_for("broker:b1", subject="b1"), encoding="utf-8")
        options = {"coordinator": running.url, "token_file": str(secret)}
        async with running_broker(folder, cluster.url, **options) as broker:
            await running.until("/v1/brokers", lambda view: [entry["state"] for entry in view["brokers"]] == ["alive"])
            yield running, broker


async def registered(running: RunningCoordinator, name: str) -> dict[str, Any]:
    return dict((await running.admin.post("/v1/users", json={"user": name})).json())


async def session_token(running: RunningCoordinator, user: str, token: str) -> dict[str, Any]:
    answer = await running.client(token).post(f"/v1/users/{user}/broker", json={})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@asynccontextmanager
async def session(broker: RunningBroker, token: str) -> AsyncIterator[ConnectedSubscriber]:
    async with broker.connection() as subscriber:
        answer = await subscriber.ask("login", token=token)
        assert answer["type"] == "logged_in", answer
        yield subscriber


async def closing_reason(subscriber: ConnectedSubscriber, limit_s: float = KNOWN_S) -> str:
    async with asyncio.timeout(limit_s):
        return str((await subscriber.push("closing"))["code"])


async def status_at(broker: RunningBroker, token: str) -> int:
    async with httpx.AsyncClient(base_url=broker.url, headers={"Authorization": f"Bearer {token}"}) as client:
        return (await client.get("/v1/ping")).status_code


@pytest.mark.parametrize("by", ["users", "tokens"])
def test_revocation_ends_sessions_and_streams_within_five_seconds(tmp_path: Path, by: str) -> None:
    async def scenario() -> None:
        async with network(tmp_path) as (running, broker):
            ann, bob = [await registered(running, name) for name in ("ann", "bob")]
            anns, bobs = [(await session_token(running, user["user"], user["token"]))["token"] for user in (ann, bob)]
            stream_token = (await session_token(running, "bob", bob["token"]))["token"]
            headers = {"Authorization": f"Bearer {stream_token}"}
            identity = jwt.decode(ann["token"], options={"verify_signature": False})["jti"]
            async with (
                session(broker, anns) as open_session,
                httpx.AsyncClient(base_url=broker.url, headers=headers, timeout=30) as client,
                client.stream("GET", "/v1/stream") as stream,
            ):
                assert stream.status_code == 200
                revoked = {"users": ["ann", "bob"]} if by == "users" else {"tokens": [identity]}
                assert (await running.admin.post("/v1/revocations", json=revoked)).status_code == 200
                assert (await running.client(ann["token"]).get("/v1/users/ann")).status_code == 401
                assert await closing_reason(open_session) == "revoked"
                if by == "users":
                    async with asyncio.timeout(KNOWN_S):
                        events = "".join([text async for text in stream.aiter_text()])
                    assert '"code":"revoked"' in events
            assert await status_at(broker, anns) == 401
            assert await status_at(broker, bobs) == (401 if by == "users" else 200)
            again = await registered(running, "ann")
            assert await status_at(broker, again["token"]) == 200, "a token made after the revocation is valid"

    asyncio.run(scenario())


def test_revocations_survive_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            token = (await registered(running, "ann"))["token"]
            await running.admin.post("/v1/revocations", json={"users": ["ann"], "tokens": ["t1"]})
            listed = (await running.admin.get("/v1/revocations")).json()["revocations"]
            assert [(entry["kind"], entry["name"]) for entry in listed] == [("token", "t1"), ("user", "ann")]
        async with coordinator(tmp_path) as running:
            assert (await running.client(token).get("/v1/users/ann")).status_code == 401
            published = (await running.client(None).get("/v1/keys")).text
            assert "ann" not in published and "t1" not in json.loads(published)["revoked"]["tokens"]

    asyncio.run(scenario())


def test_store_of_an_older_version_opens_and_takes_revocations(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    CoordinatorStore(url, "e1").close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE coordinator_revocations"))
    engine.dispose()
    store = CoordinatorStore(url, "e2")
    store.commit([StoreRevocation("user", "ann", 5.0)])
    assert store.load().revocations == (StoreRevocation("user", "ann", 5.0),)
    store.close()


def test_only_administrators_revoke_and_users_their_own_tokens(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            ann, eve = [await registered(running, name) for name in ("ann", "eve")]
            for body in ({"users": ["ann"]}, {"tokens": ["t1"]}, {"users": ["eve", "ann"]}):
                assert (await running.client(eve["token"]).post("/v1/revocations", json=body)).status_code == 403
            for path in ("/v1/revocations", "/v1/keys/rotate"):
                assert (await running.client(None).post(path, json={})).status_code == 401
            assert (await running.client(eve["token"]).post("/v1/keys/rotate", json={})).status_code == 403
            own = await running.client(ann["token"]).post("/v1/revocations", json={"users": ["ann"]})
            assert own.status_code == 200
            assert (await running.client(ann["token"]).get("/v1/users/ann")).status_code == 401

    asyncio.run(scenario())


def test_no_token_makes_one_that_lives_longer_or_may_do_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with network(tmp_path) as (running, _):
            short = await running.admin.post(
                "/v1/tokens", json={"subject": "ann", "scopes": ["subscribe:Rep*"], "days": 0.01}
            )
            token, ends_s = short.json()["token"], short.json()["expires_s"]
            made = (await running.client(token).post("/v1/users", json={"user": "ann"})).json()
            given = await session_token(running, "ann", made["token"])
            for other in (made, given):
                assert other["expires_s"] <= ends_s
                claims = jwt.decode(other["token"], options={"verify_signature": False, "verify_aud": False})
                assert (claims["scope"], claims["org"]) == ("subscribe:Rep*", short.json()["id"])

    asyncio.run(scenario())


def test_hand_over_keeps_the_rights_and_the_end_of_the_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            context, now_s = running.server.context, time.time()
            ends_s = float(int(now_s + 300))
            first, _ = context.sign("ann", ["subscribe:Rep*"], 300, audience=BROKERS, origin="o1", most_subscriptions=3)
            move = SendHandOver(BrokerId("b1"), 1, "m1", SubscriberId("ann"), BrokerId("b2"), "ws://b2", 5.0, first)
            token = running.server.process._sign(move)
            claims = context.verifier.claims(token, now_s, audience="b2")
            assert claims is not None and claims.expires_s is not None and claims.expires_s < now_s + 120
            assert claims.ends_s is not None and abs(claims.ends_s - ends_s) <= 1
            assert (set(claims.scopes), claims.origin, claims.most_subscriptions) == ({"subscribe:Rep*"}, "o1", 3)
            unknown = SendHandOver(BrokerId("b1"), 1, "m1", SubscriberId("eve"), BrokerId("b2"), "ws://b2", 5.0, first)
            claims = context.verifier.claims(running.server.process._sign(unknown), now_s, audience="b2")
            assert claims is not None and claims.ends_s is not None and claims.ends_s < now_s + 90_000

    asyncio.run(scenario())


def test_new_user_of_a_deleted_name_does_not_accept_old_tokens(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with network(tmp_path) as (running, broker):
            old = (await registered(running, "ann"))["token"]
            given = (await session_token(running, "ann", old))["token"]
            assert (await running.client(old).delete("/v1/users/ann")).status_code == 200
            async with asyncio.timeout(10):
                while (made := await running.admin.post("/v1/users", json={"user": "ann"})).status_code == 409:
                    await asyncio.sleep(0.05)
            new = made.json()["token"]
            assert (await running.client(old).get("/v1/users/ann")).status_code == 401
            async with asyncio.timeout(KNOWN_S):
                while await status_at(broker, given) != 401 or await status_at(broker, old) != 401:
                    await asyncio.sleep(0.1)
            assert (await running.client(new).get("/v1/users/ann")).status_code == 200
            assert await status_at(broker, new) == 200

    asyncio.run(scenario())


def test_session_token_is_good_at_brokers_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with network(tmp_path) as (running, broker):
            user = await registered(running, "ann")
            given = (await session_token(running, "ann", user["token"]))["token"]
            assert await status_at(broker, given) == 200
            for method, path in (
                ("GET", "/v1/users/ann"),
                ("DELETE", "/v1/users/ann"),
                ("POST", "/v1/users/ann/broker"),
            ):
                answer = await running.client(given).request(method, path)
                assert answer.status_code == 401, (method, path)
            keys = TrustedKeys(f"{running.url}/v1/keys")
            await keys.start()
            assert keys.known_claims(given, time.time()) is None, "the data cluster does not accept it"

    asyncio.run(scenario())


def test_keys_rotate_with_an_overlap_and_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with network(tmp_path) as (running, broker):
            user = await registered(running, "ann")
            old = (await session_token(running, "ann", user["token"]))["token"]
            rotated = await running.admin.post("/v1/keys/rotate", json={"overlap_days": 1})
            assert rotated.status_code == 200, rotated.text
            new = (await session_token(running, "ann", user["token"]))["token"]
            names = {jwt.get_unverified_header(token)["kid"] for token in (old, new)}
            assert len(names) == 2 and rotated.json()["key"] == jwt.get_unverified_header(new)["kid"]
            async with asyncio.timeout(KNOWN_S):  # a process that has just started reads the keys again every 2 s only
                while await status_at(broker, new) != 200:
                    await asyncio.sleep(0.1)
            assert await status_at(broker, old) == 200
            async with session(broker, new) as open_session:
                assert (await running.admin.post("/v1/keys/rotate", json={"overlap_days": 0})).status_code == 200
                assert await closing_reason(open_session) == "revoked", "the key of its token is gone"
            files = {path.name for path in (tmp_path / "coordinator").iterdir()}
            assert {"signing-key.pem", "retired-keys.json"} <= files
            assert "PRIVATE" not in (tmp_path / "coordinator" / "retired-keys.json").read_text()

    asyncio.run(scenario())


def test_rotated_keys_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            token = (await registered(running, "ann"))["token"]
            await running.admin.post("/v1/keys/rotate", json={})
        async with coordinator(tmp_path) as running:
            assert (await running.client(token).get("/v1/users/ann")).status_code == 200

    asyncio.run(scenario())


def test_revoked_and_expired_callers_lose_their_open_streams(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            context = running.server.context
            link = await FakeBroker(running, "b1").connect(await running.token_for("broker:b1", subject="b1"))
            short, _ = context.sign("eve", ["read"], 5.0)
            revoked, _ = context.sign("bob", ["read"], 600.0, identity="j1")
            async with asyncio.timeout(60):
                watching = [asyncio.create_task(watched(running, token)) for token in (short, revoked)]
                while len(context.open_requests) < 3 and not any(task.done() for task in watching):
                    await asyncio.sleep(0.02)
                await running.admin.post("/v1/revocations", json={"tokens": ["j1"], "users": ["b1"]})
                await asyncio.gather(*watching)
                code, _ = await link.wait_closed()
            assert code == 4401
            await link.stop()
            with pytest.raises(websockets.InvalidStatus, match="401"):
                await FakeBroker(running, "b1").connect(link.token)

    async def watched(running: RunningCoordinator, token: str) -> None:
        """Return when the server ends the stream."""
        async with running.client(token).stream("GET", "/v1/watch", timeout=30) as stream:
            assert stream.status_code == 200
            try:
                async for _ in stream.aiter_raw():
                    pass
            except (httpx.RemoteProtocolError, httpx.ReadError):
                pass  # a stream that breaks off has no proper end

    asyncio.run(scenario())


def test_token_revoked_for_its_user_has_no_gap_of_a_second(tmp_path: Path) -> None:
    """Tokens carry fractions of a second: one made right before the revocation is invalid, one right after is valid."""

    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            before = (await registered(running, "ann"))["token"]
            await running.admin.post("/v1/revocations", json={"users": ["ann"]})
            after = (await registered(running, "ann"))["token"]
            claims: list[Claims | None] = [await running.server.context.claims(token) for token in (before, after)]
            assert claims[0] is None and claims[1] is not None

    asyncio.run(scenario())


def test_commands_revoke_and_rotate(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            ann, bob = [await registered(running, name) for name in ("ann", "bob")]
            identity = jwt.decode(bob["token"], options={"verify_signature": False})["jti"]
            environment = {"TOCSIN_TOKEN": running.token, "TOCSIN_COORDINATOR_URL": running.url}

            def run(*arguments: str) -> Any:
                outcome = CliRunner().invoke(make_app(), ["token", *arguments, "--json"], env=environment)
                return json.loads(outcome.stdout.splitlines()[-1]) | {"exit": outcome.exit_code}

            revoked = await asyncio.to_thread(run, "revoke", "--user", "ann", "--jti", identity)
            assert revoked == {"revoked": 2, "exit": 0}
            for user in (ann, bob):
                assert (await running.client(user["token"]).get(f"/v1/users/{user['user']}")).status_code == 401
            before = running.server.context.signer.key_id
            rotated = await asyncio.to_thread(run, "rotate-keys", "--overlap-days", "2")
            assert (rotated["exit"], rotated["overlap_days"]) == (0, 2.0)
            assert rotated["key"] == running.server.context.signer.key_id != before
            assert (await asyncio.to_thread(run, "revoke"))["exit"] != 0, "a command without a name revokes nothing"

    asyncio.run(scenario())


def test_connection_of_another_broker_ends_with_its_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = {"coordinator": "http://127.0.0.1:9", "keys": str(tmp_path / "keys.json")}
        async with running_broker(tmp_path, "http://127.0.0.1:9", **settings) as broker:
            headers = {"Authorization": f"Bearer {token('b2', REPLICATE)}"}
            protocols = [Subprotocol("tocsin.msgpack")]
            address = broker.server.address + topic_log.PATH
            async with connect(address, subprotocols=protocols, additional_headers=headers) as stream:
                other = Signer(Ed25519PrivateKey.generate())
                (tmp_path / "keys.json").write_text(json.dumps(other.jwks()), encoding="utf-8")
                async with asyncio.timeout(5):
                    await stream.wait_closed()

    asyncio.run(scenario())
