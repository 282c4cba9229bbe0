"""Bound parameters and own records at a real data cluster: only the user itself, or a broker that proves the user."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.server.conftest import RunningServer, StartServer, start_server
from tests.runtime.broker.running_broker import SIGNER, running_broker, token
from tocsin.runtime.http.credentials import BROKERS, CLUSTER

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
