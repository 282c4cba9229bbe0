"""Bound parameters and own records at a real data cluster: only the user itself, or a broker that proves the user."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.server.conftest import RunningServer, StartServer, start_server
from tests.runtime.broker.running_broker import SIGNER, running_broker, token, until
from tests.runtime.coordinator.harness import coordinator
from tocsin.cluster.server.tokens import digest_of
from tocsin.model.ids import SubscriberId
from tocsin.runtime.http.credentials import BROKERS, CLUSTER
from tocsin.runtime.http.revocations import Revocations

__all__ = ["start_server"]
pytestmark = pytest.mark.spark

APPLICATION = """
CREATE KEYED DATASET Positions (user_id STRING, lat DOUBLE) KEY (user_id) OWNED BY user_id;
CREATE CONTINUOUS CHANNEL MyMoves (user STRING DEFAULT CURRENT_USER ONLY, least DOUBLE) AS
  SELECT p.user_id, p.lat FROM NEW Positions p WHERE p.user_id = :user AND p.lat >= :least;
CREATE CONTINUOUS CHANNEL Anyones (user STRING, least DOUBLE) AS
  SELECT p.user_id, p.lat FROM NEW Positions p WHERE p.user_id = :user AND p.lat >= :least;
"""


@pytest.fixture(scope="module")
def bound(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_text(json.dumps(SIGNER.jwks()), encoding="utf-8")
    server = start_server(keys=str(keys), heartbeat_s=0.5)
    assert server.admin.post("/v1/applications", json={"text": APPLICATION}).status_code == 200
    return server


def outcome(answer: httpx.Response) -> str:
    """The id of the subscription, or the code of the refusal."""
    body = answer.json()
    return str(body[0]["id"] if isinstance(body, list) else body["error"]["code"])


def subscribe(client: httpx.Client, channel: str = "MyMoves", users: list[str] | None = None, **values: Any) -> str:
    body = {"channel": channel, "parameters": {"least": 1, **values}}
    return outcome(client.post("/v1/subscriptions", json=body if users is None else body | {"users": users}))


def test_user_subscribes_only_for_itself(bound: RunningServer) -> None:
    ann, eve = (bound.client(token(name)) for name in ("ann", "eve"))
    identity = subscribe(ann)
    assert len(identity) == 32
    assert subscribe(ann, user="ann") == identity, "the id is the digest of the canonical parameters"
    assert subscribe(bound.admin, user="ann") == identity, "an administrator acts for every user"
    assert subscribe(bound.admin) == "bad_parameter", "an administrator spells the user"
    assert subscribe(eve, user="ann") == "foreign_user"
    assert subscribe(eve) not in (identity, "foreign_user")
    assert subscribe(bound.client(bound.token_for("subscribe"))) == "unproven_user", "this token names no user"
    assert len(subscribe(eve, "Anyones", user="ann")) == 32


def test_broker_subscribes_only_for_users_that_it_has_proved(bound: RunningServer) -> None:
    broker, other = (bound.client(bound.token_for(f"broker:{name}")) for name in ("b1", "b2"))
    assert subscribe(broker, users=["bob"]) == "unproven_user"
    assert subscribe(broker, user="bob") == "unproven_user", "an old broker names no users"
    for wrong in (
        token("bob", audience="b2"),
        token("b2", "none", audience=CLUSTER, users=["bob"]),
        token("bob", "read"),
        token("bob", lifetime_s=-60),
        "x",
    ):
        answer = broker.post("/v1/brokers/b1/users", json={"tokens": [wrong]})
        assert (answer.status_code, answer.json()) == (200, {"users": []}), wrong
    assert other.post("/v1/brokers/b1/users", json={"tokens": [token("bob")]}).status_code == 403
    proofs = [token("bob", audience=BROKERS), token("b1", "none", audience=CLUSTER, users=["cid", "dan"])]
    assert broker.post("/v1/brokers/b1/users", json={"tokens": proofs}).json() == {"users": ["bob", "cid", "dan"]}
    assert subscribe(broker, users=["bob"]) == subscribe(bound.client(token("bob")))
    assert subscribe(broker, users=["bob"], user="ann") == "foreign_user"
    assert subscribe(other, users=["bob"]) == "unproven_user"


def test_broker_stores_records_only_of_users_that_it_has_proved(bound: RunningServer) -> None:
    broker = bound.client(bound.token_for("broker:b3"))
    records = [{"user": name, "record": {"lat": 1}} for name in ("fay", "gus")]
    broker.post("/v1/brokers/b3/users", json={"tokens": [token("fay")]})
    answer = broker.post("/v1/datasets/Positions/own-records", json=records).json()
    assert (answer["stored"], [refusal["code"] for refusal in answer["refused"]]) == (1, ["unproven_user"])


def test_token_permits_only_the_channels_and_datasets_that_it_names(bound: RunningServer) -> None:
    narrow = bound.client(token("kim", "subscribe:Any*", "publish:Pos*", most_subscriptions=2))
    identity = subscribe(narrow, "Anyones", user="x")
    assert len(identity) == 32
    assert subscribe(narrow) == "forbidden"
    wide = bound.client(token("kim"))
    other = subscribe(wide)
    pull = {"channel": "MyMoves", "subscription": other}
    assert wide.get("/v1/results", params=pull).status_code == 200
    assert narrow.get("/v1/results", params=pull).status_code == 403
    assert subscribe(narrow, "Anyones", user="y") == "too_large", "two subscriptions of this user are held already"
    record = [{"user_id": "kim", "lat": 0.5}]
    assert narrow.post("/v1/datasets/Positions/records", json=record).status_code in (200, 202)
    assert wide.post("/v1/datasets/Positions/records", json=record).status_code == 403


def test_revoked_token_loses_its_stream_at_the_data_cluster(bound: RunningServer) -> None:
    keys = bound.server.context.keys
    assert keys is not None and keys._path is not None
    document = json.loads(keys._path.read_text())
    secret = bound.token_for("subscribe")
    lea, identity = token("lea"), digest_of(secret)[:12]
    streams = {lea: "direct-user-lea", secret: f"direct-{identity}"}
    opened = [
        bound.client(caller).stream("GET", f"/v1/brokers/{broker}/announcements") for caller, broker in streams.items()
    ]
    with opened[0] as signed, opened[1] as own:
        assert (signed.status_code, own.status_code) == (200, 200)
        document["revoked"] = Revocations.of([], {"lea": time.time()}).to_json()
        keys._path.write_text(json.dumps(document))
        assert bound.admin.delete(f"/v1/tokens/{identity}").status_code == 200
        for stream in (signed, own):
            ended_s = time.monotonic() + 10
            with suppress(httpx.RemoteProtocolError, httpx.ReadError):
                for _ in stream.iter_raw():
                    assert time.monotonic() < ended_s, "the stream goes on after the revocation"
    assert bound.client(lea).get("/v1/subscriptions/" + "0" * 32).status_code == 401


def test_binding_is_shown_and_a_new_binding_ends_old_subscriptions(bound: RunningServer) -> None:
    described = {entry["name"]: entry["parameters"] for entry in bound.admin.get("/v1/channels").json()["channels"]}
    assert described["MyMoves"][0] == {"name": "user", "type": "STRING", "bound": "current_user"}
    assert described["Anyones"][0] == {"name": "user", "type": "STRING"}
    channel = "CHANNEL Later (user STRING) AS SELECT p.* FROM NEW Positions p WHERE p.user_id = :user;"
    bound.admin.post("/v1/applications", json={"text": f"CREATE CONTINUOUS {channel}"})
    eve = bound.client(token("eve"))
    held = outcome(eve.post("/v1/subscriptions", json={"channel": "Later", "parameters": {"user": "ann"}}))
    replaced = channel.replace("STRING", "STRING DEFAULT CURRENT_USER ONLY")
    bound.admin.post("/v1/applications", json={"text": f"CREATE OR REPLACE CONTINUOUS {replaced}"})
    assert eve.get(f"/v1/subscriptions/{held}").status_code == 404


def test_subscriber_of_a_broker_receives_its_own_results_only(bound: RunningServer, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(bound.token_for("broker:live"), encoding="utf-8")

    async def scenario() -> None:
        async with (
            running_broker(tmp_path, bound.url, id="live", token_file=str(secret)) as broker,
            broker.session("hal") as hal,
            broker.session("ivy") as ivy,
        ):
            for subscriber in (hal, ivy):
                answer = await subscriber.ask("subscribe", channel="MyMoves", parameters={"least": 0})
                assert answer["type"] == "subscribed", answer
            assert answer["held"]["parameters"] == {"user": "ivy", "least": 0}
            refused = await ivy.ask("subscribe", channel="MyMoves", parameters={"least": 0, "user": "hal"})
            assert (refused["type"], refused["code"]) == ("refused", "foreign_user")
            for subscriber, lat in ((hal, 1), (ivy, 2)):
                assert (await subscriber.ask("update", dataset="Positions", record={"lat": lat}))["type"] == "updated"
            async with asyncio.timeout(60):
                assert (await hal.push("result"))["result"] == {"user_id": "hal", "lat": 1.0}
                assert (await ivy.push("result"))["result"] == {"user_id": "ivy", "lat": 2.0}

    asyncio.run(scenario())


def test_restarted_broker_serves_an_offline_user_with_a_voucher(bound: RunningServer, tmp_path: Path) -> None:
    """After a restart the broker has no token of the user; the coordinator vouches for the users it assigns."""
    keys, secret = bound.server.context.keys, tmp_path / "token"
    assert keys is not None and keys._path is not None
    path = keys._path

    async def scenario() -> None:
        patient: dict[str, Any] = {"heartbeat_s": 1.0, "suspect_s": 60.0, "dead_s": 90.0}
        async with coordinator(tmp_path / "coordinator", **patient) as running:
            document = json.loads(path.read_text())
            document["keys"] += (await running.client(None).get("/v1/keys")).json()["keys"]
            path.write_text(json.dumps(document))
            secret.write_text(await running.token_for("broker:away", subject="away"), encoding="utf-8")
            client = bound.client(secret.read_text())
            await until(lambda: client.get("/v1/brokers/away/holds").status_code == 200, 30)
            options = {"id": "away", "coordinator": running.url, "token_file": str(secret)}
            user = await running.user("nil")
            async with running_broker(tmp_path, bound.url, **options) as broker:
                await until(lambda: broker.core.linked and broker.core.accepting, 60)
                placed = (await user.post("/v1/users/nil/broker", json={})).json()
                async with broker.connection() as nil:
                    assert (await nil.ask("login", token=placed["token"]))["type"] == "logged_in"
                    answer = await nil.ask("subscribe", channel="MyMoves", parameters={"least": 0})
                    assert (answer["type"], answer["stored"]) == ("subscribed", True)
                    identity = answer["held"]["subscription"]
            client.post("/v1/subscriptions/delete", json={"channel": "MyMoves", "subscriptions": [identity]})
            bound.on_loop(bound.server.context.proven._until_s.clear)
            async with running_broker(tmp_path, bound.url, **options) as broker:
                await until(lambda: identity in broker.core.state.backends, 60)
                assert "nil" in broker.core.state.subscribers, "the user is offline and served"
                assert broker.server.process.user_tokens.of(SubscriberId("nil")) is None

    asyncio.run(scenario())
