"""Publishing over HTTP and WebSocket: records are stored or refused, and the answer names every refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.cluster.server.conftest import RunningServer, StartServer

pytestmark = pytest.mark.spark
RECORDS = "/v1/datasets/Reports/records"


@pytest.fixture(scope="module")
def publisher(server: RunningServer) -> httpx.Client:
    return server.client(server.token_for("publish:Reports"))


def test_valid_records_are_stored_and_invalid_ones_named(publisher: httpx.Client) -> None:
    records = [
        {"report_id": "p1", "kind": "fire", "severity": 3},
        {"report_id": "p2", "severity": "very"},
        {"kind": "fire"},
        {"report_id": "p1", "kind": "fire"},
    ]
    answer = publisher.post(RECORDS, json=records)
    assert answer.status_code == 200
    reply = answer.json()
    assert (reply["accepted"], reply["duplicates"], reply["refused_total"]) == (1, 1, 2)
    assert [(refusal["index"], refusal["field"]) for refusal in reply["refused"]] == [(1, "severity"), (2, "report_id")]


def test_request_without_any_valid_record_is_refused(publisher: httpx.Client) -> None:
    answer = publisher.post(RECORDS, json=[{"severity": 1}, 5])
    assert answer.status_code == 400
    reply = answer.json()
    assert reply["error"]["code"] == "bad_records" and "record 0, field report_id" in reply["error"]["message"]
    assert reply["accepted"] == 0 and len(reply["refused"]) == 2


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/x-ndjson", '{"report_id": "f1"}\n{"report_id": "f2"}\n'),
        ("application/jsonl", '{"report_id": "f3"}\n{"report_id": "f4"}'),
        ("application/json; charset=utf-8", '[{"report_id": "f5"}, {"report_id": "f6"}]'),
        (
            "application/cloudevents-batch+json",
            json.dumps(
                [
                    {"specversion": "1.0", "id": name, "source": "s", "type": "t", "data": {"report_id": name}}
                    for name in ("f7", "f8")
                ]
            ),
        ),
    ],
)
def test_records_are_accepted_in_every_form(publisher: httpx.Client, content_type: str, body: str) -> None:
    answer = publisher.post(RECORDS, content=body, headers={"Content-Type": content_type})
    assert (answer.status_code, answer.json()["accepted"]) == (200, 2)


def test_cloudevent_is_one_record(publisher: httpx.Client) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {"report_id": "ce1"}}
    headers = {"Content-Type": "application/cloudevents+json"}
    assert publisher.post(RECORDS, content=json.dumps(event), headers=headers).json()["accepted"] == 1


def test_unknown_content_type_is_refused_with_the_known_ones(publisher: httpx.Client) -> None:
    answer = publisher.post(RECORDS, content="a,b", headers={"Content-Type": "text/csv"})
    assert answer.status_code == 400 and "application/x-ndjson" in answer.json()["error"]["message"]
    answer = publisher.post(RECORDS, content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 400


def test_repeated_idempotency_key_stores_once_and_repeats_the_answer(publisher: httpx.Client) -> None:
    headers = {"Idempotency-Key": "batch-1"}
    first = publisher.post(RECORDS, json=[{"report_id": "i1"}], headers=headers).json()
    again = publisher.post(RECORDS, json=[{"report_id": "i1"}], headers=headers).json()
    assert first["accepted"] == again["accepted"] == 1
    assert (first["replayed"], again["replayed"]) == (False, True)
    other = publisher.post(RECORDS, json=[{"report_id": "i2"}], headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_conflict")


def test_too_large_body_is_refused_while_it_is_read(server: RunningServer, publisher: httpx.Client) -> None:
    limit_bytes = server.server.settings.cluster.limits.body_bytes
    announced = publisher.post(RECORDS, content=b" " * (limit_bytes + 1))
    assert (announced.status_code, announced.json()["error"]["code"]) == (413, "too_large")
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1 << 20
            yield b" " * (1 << 20)

    try:
        answer = publisher.post(RECORDS, content=endless())
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # the server may close the connection in the middle of the body
    assert sent < 100 << 20


def test_too_large_record_is_refused(publisher: httpx.Client) -> None:
    answer = publisher.post(RECORDS, json=[{"report_id": "x" * 70_000}])
    assert answer.status_code == 413 and "record bytes" in answer.json()["error"]["message"]


def test_records_for_an_unknown_dataset_are_refused(server: RunningServer) -> None:
    answer = server.admin.post("/v1/datasets/Unknown/records", json=[])
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_dataset")


def test_full_backlog_makes_publishers_wait(start_server: StartServer) -> None:
    server = start_server(backlog_bytes=2_000)
    server.admin.post("/v1/applications", json={"text": "CREATE STREAM DATASET D (text STRING);"})
    watch = server.server.process.watch
    assert watch is not None
    watch.start = lambda dataset: None  # type: ignore[method-assign]
    for _ in range(2):
        answer = server.admin.post("/v1/datasets/D/records", json=[{"text": "x" * 1_500}])
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "backlogged")
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert 'status="429"' in server.admin.get("/metrics").text
    server.stop()


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def send(self, message: str | bytes) -> None:
        self._connection.send(message)

    def receive(self) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(self._connection.recv(30))
        return reply


@contextmanager
def socket_to(server: RunningServer, token: str, path: str = "/v1/datasets/Reports/stream") -> Iterator[Socket]:
    headers = {"Authorization": f"Bearer {token}"}
    with connect(server.url.replace("http", "ws") + path, additional_headers=headers) as connection:
        yield Socket(connection)


def test_stream_answers_each_message_in_order(server: RunningServer) -> None:
    with socket_to(server, server.token) as socket:
        for index in range(50):
            socket.send(json.dumps({"id": index, "records": [{"report_id": f"ws{index}"}]}))
        answers = [socket.receive() for _ in range(50)]
    assert [answer["id"] for answer in answers] == list(range(50))
    assert all(answer["status"] == 200 and answer["accepted"] == 1 for answer in answers)


def test_stream_accepts_lines_and_arrays_and_refuses_broken_json(server: RunningServer) -> None:
    with socket_to(server, server.token) as socket:
        socket.send('{"report_id": "l1"}\n{"report_id": "l2"}')
        assert socket.receive()["accepted"] == 2
        socket.send(b'[{"report_id": "l3"}]')
        assert socket.receive()["accepted"] == 1
        socket.send("[broken")
        broken = socket.receive()
        assert broken["status"] == 400 and broken["error"]["code"] == "bad_records"
        socket.send('{"id": "k", "idempotency_key": "ws-key", "records": [{"report_id": "l4"}]}')
        assert socket.receive()["accepted"] == 1
        socket.send('{"id": "k", "idempotency_key": "ws-key", "records": [{"report_id": "l4"}]}')
        assert socket.receive()["replayed"] is True


@pytest.mark.parametrize(("path", "status"), [("Reports", 403), ("Unknown", 404)])
def test_stream_without_permission_is_refused_at_the_handshake(server: RunningServer, path: str, status: int) -> None:
    token = server.token if status == 404 else server.token_for("publish:Places")
    with pytest.raises(InvalidStatus) as refused, socket_to(server, token, f"/v1/datasets/{path}/stream"):
        pass
    assert refused.value.response.status_code == status
    assert b'"error"' in (refused.value.response.body or b"")


def test_publishing_short_cut_takes_only_requests_to_publish(server: RunningServer, publisher: httpx.Client) -> None:
    assert publisher.get(RECORDS).status_code == 405
    assert publisher.post(RECORDS + "/").status_code == 404
    assert publisher.post("/v1/datasets/a%2Fb/records").status_code == 404
    assert publisher.post("/v1/datasets/Re%70orts/records", json=[{"report_id": "short"}]).status_code == 200
    nowhere = server.client(server.token_for("publish:*")).post("/v1/datasets/Nowhere/records", json=[])
    assert nowhere.status_code == 404 and "Nowhere" in nowhere.json()["error"]["message"]
    assert publisher.get("/v1/openapi.json").json()["paths"]["/v1/datasets/{name}/records"]["post"]["requestBody"]
