"""Records of subscribers at the data cluster: stored for their owner only, and only at a broker's request."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from tests.cluster.server.conftest import RunningServer, StartServer, until
from tests.cluster.server.test_malformed import bodies, is_refusal
from tocsin.model.ids import BrokerId
from tocsin.runtime.http.credentials import Claims

pytestmark = pytest.mark.spark

OWNED = (
    "CREATE KEYED DATASET Homes (user_id STRING, lat DOUBLE, note STRING, at TIMESTAMP) KEY (user_id) OWNED BY user_id;"
)
HOMES = "/v1/datasets/homes/own-records"


def apply(server: RunningServer, text: str) -> dict[str, str]:
    answer = server.admin.post("/v1/applications", json={"text": text})
    assert answer.status_code == 200, answer.text
    return {change["name"]: change["action"] for change in answer.json()["changes"]}


@pytest.fixture(scope="module")
def broker(server: RunningServer) -> httpx.Client:
    """A client with the token of a broker that has proved its users. `tests/security` shows the proofs themselves."""
    apply(server, OWNED)
    for user in ("ann", "bob", "eve", "zoe"):
        claims = Claims(user, frozenset({"subscribe"}), None)
        server.on_loop(partial(server.server.context.proven.add, BrokerId("b1"), claims))
    return server.client(server.token_for("broker:b1"))


def own(owner: str, **record: Any) -> dict[str, Any]:
    return {"user": owner, "record": record}


def recent(server: RunningServer, dataset: str = "Homes") -> Callable[[], list[dict[str, Any]]]:
    """A function that returns the records that the dataset has accepted since this call."""
    ring = server.server.process.cluster.gateway(dataset).recent
    _, start = ring.since(0)
    return lambda: [json.loads(line) for body in ring.since(start)[0] for line in body.split(b"\n")]


def test_broker_stores_each_users_own_record(server: RunningServer, broker: httpx.Client) -> None:
    accepted = recent(server)
    answer = broker.post(HOMES, json=[own("ann", lat=1.5), own("bob", user_id="bob", lat=2)])
    assert (answer.status_code, answer.json()) == (200, {"stored": 2, "refused": []})
    assert accepted() == [{"user_id": "ann", "lat": 1.5}, {"user_id": "bob", "lat": 2.0}]
    until(lambda: server.admin.get("/v1/datasets/Homes").json()["rows"] >= 2)
    assert 'tocsin_records_accepted_total{dataset="Homes"} 2.0' in server.admin.get("/metrics").text


def test_record_of_another_user_is_refused_and_the_others_are_stored(
    server: RunningServer, broker: httpx.Client
) -> None:
    accepted = recent(server)
    records = [
        own("ann", user_id="bob", lat=1),
        own("eve", lat=2),
        own("ann", lat="north"),
        own("ann", user_id=None),
        own("ann", user_id=["ann"]),
        own("ann", user="ann"),
        own("zoe", lat=3),
    ]
    reply = broker.post(HOMES, json=records).json()
    assert reply["stored"] == 2
    assert [(refusal["index"], refusal["code"]) for refusal in reply["refused"]] == [
        (0, "forbidden"),
        (2, "bad_records"),
        (3, "forbidden"),
        (4, "forbidden"),
        (5, "bad_records"),
    ]
    assert "user_id must be 'ann'" in reply["refused"][0]["message"]
    assert reply["refused"][1]["message"].startswith("lat: ")
    assert [record["user_id"] for record in accepted()] == ["eve", "zoe"]


@pytest.mark.parametrize(
    "record",
    [
        b'{"user_id": "ann", "user_id": "bob"}',
        b'{"user_id": "bob", "user\\u005fid": "ann", "lat": 1}',
        b'{"user_id": "ann\\u0000"}',
        b'{"USER_ID": "bob"}',
        b'{"user_id": "Ann"}',
    ],
)
def test_no_spelling_of_a_record_writes_another_key(server: RunningServer, broker: httpx.Client, record: bytes) -> None:
    accepted = recent(server)
    broker.post(HOMES, content=b'[{"user": "ann", "record": %b}]' % record)
    assert {stored["user_id"] for stored in accepted()} <= {"ann"}


def test_oversized_record_does_not_fail_the_others(server: RunningServer, broker: httpx.Client) -> None:
    accepted = recent(server)
    reply = broker.post(HOMES, json=[own("ann", lat=1), own("bob", note="x" * 70_000), own("eve", lat=2)]).json()
    assert reply["stored"] == 2
    assert [(refusal["index"], refusal["code"]) for refusal in reply["refused"]] == [(1, "too_large")]
    assert sorted(record["user_id"] for record in accepted()) == ["ann", "eve"]


def test_only_a_broker_may_store_records_of_users(server: RunningServer, broker: httpx.Client) -> None:
    accepted = recent(server)
    for scope in ("subscribe", "read", "register", "publish:*"):
        answer = server.client(server.token_for(scope)).post(HOMES, json=[own("bob", lat=1)])
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), scope
    assert server.client(None).post(HOMES, json=[own("bob", lat=1)]).status_code == 401
    assert accepted() == []
    any_broker = server.client(server.token_for("broker:*"))
    assert any_broker.post(f"{HOMES}?broker=b1", json=[own("bob", lat=1)]).json()["stored"] == 1
    [refused] = any_broker.post(f"{HOMES}?broker=b2", json=[own("bob", lat=1)]).json()["refused"]
    assert refused["code"] == "unproven_user"


@pytest.mark.parametrize(
    ("dataset", "status", "code"),
    [("Places", 409, "not_a_feed_target"), ("Reports", 409, "not_a_feed_target"), ("Unknown", 404, "unknown_dataset")],
)
def test_dataset_without_owner_takes_no_records_of_users(
    broker: httpx.Client, dataset: str, status: int, code: str
) -> None:
    answer = broker.post(f"/v1/datasets/{dataset}/own-records", json=[own("ann", lat=1)])
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_request_with_too_many_records_is_refused(broker: httpx.Client) -> None:
    answer = broker.post(HOMES, json=[own(f"p{number}") for number in range(1_001)])
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_malformed_request_is_refused_with_a_code(broker: httpx.Client) -> None:
    for body in bodies(5):
        is_refusal(broker.post(HOMES, content=body), body)


def test_owner_is_added_in_place_and_survives_a_restart(start_server: StartServer) -> None:
    server, rooms = start_server(), "/v1/datasets/Rooms/own-records"
    root = server.server.settings.cluster.root
    # Two servers share one Spark session here, and a query is named after its dataset.
    owned = OWNED.replace("Homes", "Rooms")
    unowned = owned.replace(" OWNED BY user_id", "")
    assert apply(server, unowned) == {"Rooms": "created"}
    server.admin.post("/v1/datasets/Rooms/records", json=[{"user_id": "ann", "lat": 1}])
    until(lambda: server.admin.get("/v1/datasets/Rooms").json()["rows"] == 1)
    assert server.admin.post(rooms, json=[own("ann", lat=2)]).status_code == 409
    assert apply(server, owned) == {"Rooms": "changed"}
    assert apply(server, owned) == {"Rooms": "unchanged"}
    described = server.admin.get("/v1/datasets/Rooms").json()
    assert (described["owned_by"], described["rows"]) == ("user_id", 1), "the records stay"
    assert server.admin.post(rooms, json=[own("ann", lat=2)]).json()["stored"] == 1
    token = server.token
    server.stop()
    again = start_server(root=root)
    admin = again.client(token)
    assert admin.get("/v1/datasets/Rooms").json()["owned_by"] == "user_id"
    assert admin.post("/v1/applications", json={"text": unowned}).json()["changes"][0]["action"] == "changed"
    assert admin.post(rooms, json=[own("ann", lat=3)]).status_code == 409
    again.stop()


def test_openapi_document_describes_the_body(server: RunningServer) -> None:
    described = server.admin.get("/v1/openapi.json").json()["paths"]["/v1/datasets/{name}/own-records"]["post"]
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["items"]["properties"]) == {"user", "record"}
