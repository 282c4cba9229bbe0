"""Publishers and users that send slowly, too much, or without permission to the data cluster."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.cluster.server.conftest import RunningServer, server, start_server, until
from tocsin.cluster.server.publishers import LONGEST_PAUSE_S
from tocsin.cluster.server.routes import context as contexts
from tocsin.cluster.server.routes.announcements import STREAMS_EACH
from tocsin.cluster.server.routes.records import SOCKETS_EACH
from tocsin.model.ids import BrokerId
from tocsin.runtime.http import answers

pytestmark = pytest.mark.spark
__all__ = ["server", "start_server"]
RECORDS = "/v1/datasets/Reports/records"


class RawRequest:
    """A request whose body the test sends piece by piece."""

    def __init__(self, server: RunningServer, token: str, path: str, size_bytes: int) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {size_bytes}\r\n\r\n"
        self._socket.sendall(head.encode())

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def status(self) -> int:
        return int(self._socket.recv(65536).split(b" ", 2)[1])

    def is_closed(self) -> bool:
        """Whether the server closes the connection behind its answer, of which some bytes may still come."""
        try:
            while self._socket.recv(65536):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@contextmanager
def raw_request(server: RunningServer, token: str, path: str, size_bytes: int) -> Iterator[RawRequest]:
    request = RawRequest(server, token, path, size_bytes)
    try:
        yield request
    finally:
        request.close()


@pytest.mark.parametrize("path", ["/v1/subscriptions", "/v1/subscriptions/delete", "/v1/results", RECORDS])
def test_scope_is_checked_before_the_body_is_read(server: RunningServer, path: str) -> None:
    token = server.token_for("publish:Places")
    with raw_request(server, token, path, 60 << 20) as request:
        request.send(b"{")
        assert request.status() == 403


@pytest.mark.parametrize("path", ["/v1/subscriptions", "/v1/subscriptions/delete", "/v1/results"])
def test_body_of_a_user_is_smaller_than_that_of_a_broker(server: RunningServer, path: str) -> None:
    with raw_request(server, server.token_for("subscribe"), path, 2 << 20) as request:
        assert request.status() == 413


def test_stalled_bodies_of_one_publisher_leave_room_for_others(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "BODIES_BYTES", 4 << 20)
    monkeypatch.setattr(contexts, "SHARE_BYTES", 512 << 10)
    hostile = server.token_for("publish:*")
    honest = server.client(server.token_for("publish:*"))
    with ExitStack() as opened:
        for _ in range(32):
            request = opened.enter_context(raw_request(server, hostile, RECORDS, 250_000))
            request.send(b"[" + b" " * 200_000)
        until(lambda: server.server.context.bodies_bytes > 200_000)
        assert honest.post(RECORDS, json=[{"report_id": "room"}]).status_code == 200
        refused = server.client(hostile).post(RECORDS, content=b"[" + b" " * 400_000 + b"]")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "backlogged")
        assert server.server.context.bodies_bytes <= 512 << 10
    until(lambda: not server.server.context.bodies_bytes)
    assert server.client(hostile).post(RECORDS, json=[{"report_id": "room2"}]).status_code == 200


def test_body_beyond_the_share_is_refused_before_it_is_read(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not read it to its end either: it closes the connection."""
    monkeypatch.setattr(contexts, "SHARE_BYTES", 1 << 20)
    hostile = server.token_for("publish:*")
    with raw_request(server, hostile, RECORDS, 900_000) as first:
        first.send(b"[")
        until(lambda: server.server.context.bodies_bytes)
        with raw_request(server, hostile, RECORDS, 900_000) as second:
            assert second.status() == 429
            assert second.is_closed()
        assert server.server.context.bodies_bytes == 1
    until(lambda: not server.server.context.bodies_bytes)


def test_publisher_of_refused_bodies_is_refused_before_its_body_is_read(server: RunningServer) -> None:
    hostile, honest = server.token_for("publish:*"), server.client(server.token_for("publish:*"))
    client = server.client(hostile)
    for _ in range(100):
        answer = client.post(RECORDS, content=b'[{"report_id": "first"},' + b"1," * 50_000 + b"1]")
        if answer.status_code == 429:
            break
        assert answer.status_code == 200 and answer.json()["refused_total"] == 50_001
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "backlogged")
    assert 1 <= int(answer.headers["Retry-After"]) <= LONGEST_PAUSE_S
    with raw_request(server, hostile, RECORDS, 1 << 20) as request:
        assert request.status() == 429
        assert request.is_closed()
    url = server.url.replace("http", "ws") + "/v1/datasets/Reports/stream"
    with connect(url, additional_headers={"Authorization": f"Bearer {hostile}"}) as stream:
        stream.send(json.dumps([{"report_id": "pause"}]))
        reply = json.loads(stream.recv(30))
        assert reply["status"] == 429 and reply["retry_after_s"] >= 1
    assert honest.post(RECORDS, json=[{"report_id": "pause"}]).status_code == 200


def test_publisher_of_single_wrong_records_gets_every_reason(server: RunningServer) -> None:
    client = server.client(server.token_for("publish:*"))
    for number in range(300):
        wrong = client.post(RECORDS, json=[{"report_id": f"w{number}", "severity": "high"}])
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "bad_records")
    assert client.post(RECORDS, json=[{"report_id": "mended"}]).status_code == 200


def test_body_that_stalls_is_refused(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "GRACE_S", 0.5)
    with raw_request(server, server.token, RECORDS, 1_000) as request:
        request.send(b"[")
        assert request.status() == 408
    assert not server.server.context.bodies_bytes


def test_user_without_a_broker_has_the_quota_of_a_subscriber(server: RunningServer) -> None:
    context = server.server.context
    object.__setattr__(context.settings, "direct_subscriptions", 5)
    try:
        user = server.client(server.token_for("subscribe"))

        def subscribe(kinds: list[str]) -> httpx.Response:
            body = {"channel": "ReportsOfKind", "parameters": [{"kind": kind} for kind in kinds]}
            return user.post("/v1/subscriptions", json=body)

        assert subscribe(["a", "b", "c"]).status_code == 200
        refused = subscribe(["d", "e", "f"])
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
        assert subscribe(["x" * 2_000]).status_code == 413
        assert subscribe(["d", "e"]).status_code == 200
        broker = server.client(server.token_for("broker:many"))
        body = {"channel": "ReportsOfKind", "broker": "many", "parameters": [{"kind": str(kind)} for kind in range(20)]}
        assert broker.post("/v1/subscriptions", json=body).status_code == 200
    finally:
        object.__setattr__(context.settings, "direct_subscriptions", 10_000)


def test_publisher_has_few_websockets_with_bounded_messages(server: RunningServer) -> None:
    url = server.url.replace("http", "ws") + "/v1/datasets/Reports/stream"
    headers = {"Authorization": f"Bearer {server.token_for('publish:*')}"}
    with ExitStack() as opened:
        sockets = [opened.enter_context(connect(url, additional_headers=headers)) for _ in range(SOCKETS_EACH)]
        with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=headers):
            pass
        assert refused.value.response.status_code == 429
        sockets[0].send(json.dumps([{"report_id": "few"}]))
        assert json.loads(sockets[0].recv(30))["accepted"] == 1
        with pytest.raises(Exception, match="1009"):
            sockets[0].send(b"[" + b" " * (3 << 20))  # the server may close before it has read everything
            sockets[0].recv(30)
    until(lambda: not any(server.server.context.publishing.values()))


def test_announcement_streams_of_one_broker_are_bounded(server: RunningServer) -> None:
    client = server.client(server.token_for("broker:greedy"))
    with ExitStack() as opened:
        path = "/v1/brokers/greedy/announcements"
        streams = [opened.enter_context(client.stream("GET", path)).iter_lines() for _ in range(STREAMS_EACH)]
        assert {next(lines) for lines in streams} == {"retry: 1000"}
        until(lambda: server.server.context.listening[BrokerId("greedy")] == STREAMS_EACH)
        assert client.get(path).status_code == 429
