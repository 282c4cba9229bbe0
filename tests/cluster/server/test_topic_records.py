"""Messages of recorded topics at the data cluster: the rights, the cursor, and messages that are no record."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from tests.cluster.server.conftest import RunningServer
from tocsin.model.ids import TopicName
from tocsin.wire import recording as wire

pytestmark = pytest.mark.spark

DATASET = "CREATE STREAM DATASET Readings (room STRING, position STRING);"
PATH = "/v1/datasets/readings/topic-records"


@pytest.fixture(scope="module")
def home(server: RunningServer) -> httpx.Client:
    """A broker that may also publish to the dataset: the end-to-end tests show the coordinator's grants."""
    answer = server.admin.post("/v1/applications", json={"text": DATASET + "CREATE TOPIC t RECORD INTO Readings;"})
    assert [change["action"] for change in answer.json()["changes"]] == ["created", "left to the coordinator"]
    return server.client(server.token_for("broker:b1", "publish:Readings"))


def send(client: httpx.Client, *messages: bytes, grant: str = "", **more: Any) -> httpx.Response:
    named = [(f"1-{number}", data) for number, data in enumerate(messages, 1)]
    return client.post(PATH, content=wire.encode(wire.TopicRecords("r1", TopicName("t"), grant, named, **more)))


def answered(response: httpx.Response) -> wire.TopicRecordsAnswer:
    assert response.status_code == 200, response.text
    return wire.decode_answer(response.content)


def test_batch_is_stored_once_and_moves_the_cursor(server: RunningServer, home: httpx.Client) -> None:
    assert answered(send(home)).upto == 0
    first = answered(send(home, b'{"room": "a"}', b"nonsense", b'{"wrong": 1}', after=0, upto=3))
    assert (first.upto, first.accepted, first.refused) == (3, 1, 2)
    assert first.reason is not None and "message 1-2" in first.reason
    again = answered(send(home, b'{"room": "a"}', after=0, upto=1))
    assert (again.upto, again.accepted) == (3, 0)
    assert answered(send(home)).upto == 3


def test_volatile_batch_is_recognised_by_its_key(home: httpx.Client) -> None:
    for _ in range(2):
        assert answered(send(home, b'{"room": "v"}', key="r1:1-1:1-1")).accepted == 1
    conflict = send(home, b'{"room": "w"}', key="r1:1-1:1-1")
    assert (conflict.status_code, conflict.json()["error"]["code"]) == (422, "idempotency_conflict")


def test_only_a_broker_with_a_grant_may_record(server: RunningServer, home: httpx.Client) -> None:
    for scopes in (("broker:b1",), ("publish:Readings",), ("broker:b1", "publish:Others")):
        refused = send(server.client(server.token_for(*scopes)), b'{"room": "x"}', key="k", grant="forged")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden"), scopes


def test_malformed_requests_are_refused(home: httpx.Client) -> None:
    assert home.post(PATH, content=b"\xc1").status_code == 400
    assert home.post(PATH, content=msgspec.msgpack.encode({"recording": "r"})).status_code == 400
    assert send(home, after=5, upto=3).status_code == 400
    assert home.post("/v1/datasets/nothing/topic-records", content=b"").status_code == 404
