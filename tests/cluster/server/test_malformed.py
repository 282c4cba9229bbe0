"""Malformed requests are refused with a code: never with a stack trace or a 5xx status."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest

from tests.cluster.server.conftest import RunningServer
from tests.cluster.server.test_authentication import body_for, routes

pytestmark = pytest.mark.spark

SHAPES: list[Any] = [
    None, True, 0, -1, 1e308, 2**70, "", "x", "\u0000", "☃", [], [[]], {}, {"a": 1}, [None], [{"a": [1]}],
    {"channel": None}, {"channel": "ReportsOfKind"}, {"channel": "ReportsOfKind", "parameters": 5},
    {"channel": "ReportsOfKind", "parameters": [5]}, {"channel": "ReportsOfKind", "parameters": {"kind": {"a": []}}},
    {"channel": "ReportsOfKind", "parameters": {"kind": "x"}, "broker": "a b"},
    {"channel": "ReportsOfKind", "parameters": {"kind": "x"}, "broker": ""},
    {"channel": "ReportsOfKind", "subscriptions": ["zz"]}, {"channel": "ReportsOfKind", "subscriptions": {"zz": 5}},
    {"requests": 5}, {"requests": [{"channel": "../..", "subscriptions": {"zz": "x"}}]},
    {"channel": "../..", "subscriptions": {}}, {"channel": "ReportsOfKind", "subscriptions": {"0" * 32: "1-1"}},
    {"text": 5}, {"text": "\u0000"}, {"text": "CREATE " * 1000}, {"text": "SELECT 1; ''' --"},
    {"text": "", "folder": "\u0000"},
    {"text": "CREATE STATIC DATASET S FROM 'x.csv';", "folder": "/nowhere/\u0000"},
    {"name": "x", "scopes": "admin"}, {"name": "x", "scopes": ["admin\n"]},
    {"name": "x", "scopes": ["read"], "days": 1e400},
]  # fmt: skip


def is_refusal(answer: httpx.Response, sent: object) -> None:
    assert answer.status_code < 500, (answer.request.method, answer.request.url, sent, answer.text)
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) >= {"code", "message"}, sent
        assert "Traceback" not in answer.text


def bodies(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    malformed = [json.dumps(shape).encode() for shape in SHAPES]
    malformed += [rng.randbytes(rng.randrange(200)) for _ in range(20)]
    malformed += [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'"\\ud800"',
        b"\xff\xfe",
        b"",
        b"[1,",
        b"nan",
        b'{"text": "\\ud800"}',
    ]
    for text in ('{"channel": "ReportsOfKind", "parameters": {"kind": "x"}}', '[{"report_id": "1", "severity": 1}]'):
        for _ in range(20):  # one byte changed
            mutated = bytearray(text.encode())
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
            malformed.append(bytes(mutated))
    return malformed


def test_malformed_body_is_refused_by_every_route(server: RunningServer) -> None:
    posts = [path for method, path in routes(server) if method == "POST" and "execute" not in path]
    assert len(posts) >= 6
    for path in posts:
        for body in bodies(len(path)):
            for content_type in ("application/json", "application/x-ndjson"):
                headers = {"Content-Type": content_type}
                is_refusal(server.admin.post(path, content=body, headers=headers), body[:200])


@pytest.mark.parametrize("content_type", ["application/cloudevents+json", "application/cloudevents-batch+json"])
def test_malformed_cloudevents_are_refused(server: RunningServer, content_type: str) -> None:
    for body in bodies(7):
        answer = server.admin.post("/v1/datasets/Reports/records", content=body, headers={"Content-Type": content_type})
        is_refusal(answer, body[:200])


ENDLESS = ("announcements", "tap")
"""Routes whose answers never end."""


def test_malformed_queries_and_paths_are_refused(server: RunningServer) -> None:
    values = ["", "x", "-1", "99999999999999999999999", "1e9", "\u0000", "'; --", "☃", "a" * 5_000, "../../etc/passwd"]
    for method, path in routes(server):
        if method == "GET" and not path.endswith(ENDLESS):
            for value in values:
                for name in ("channel", "subscription", "after", "limit", "broker"):
                    query = {"channel": "ReportsOfKind", "subscription": "0" * 32} | {name: value}
                    is_refusal(server.admin.get(path, params=query), (name, value))
        if method in ("GET", "DELETE") and not path.endswith(ENDLESS):
            for value in values[2:]:
                quoted = httpx.URL("http://x/" + value.replace("\u0000", "%00")).raw_path.decode()
                target = path.replace("Reports", "Unknown" + quoted.lstrip("/")).replace("0" * 32, quoted.lstrip("/"))
                is_refusal(server.admin.request(method, target), (method, target))


def test_malformed_headers_are_refused(server: RunningServer) -> None:
    for headers in (
        {"Idempotency-Key": ""},
        {"Idempotency-Key": "x" * 300},
        {"Idempotency-Key": "\u00ff\u00fe"},
        {"Accept": "image/png"},
        {"Authorization": "Basic xyz"},
        {"Authorization": "Bearer"},
        {"Last-Event-ID": "x"},
    ):
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        answer = server.admin.post("/v1/datasets/Reports/records", json=[{"report_id": "h"}], headers=encoded)  # type: ignore[arg-type]
        is_refusal(answer, headers)
        query = {"channel": "ReportsOfKind", "subscription": "0" * 32}
        is_refusal(server.admin.get("/v1/results", params=query, headers=encoded), headers)  # type: ignore[arg-type]


def test_server_still_works_after_malformed_requests(server: RunningServer) -> None:
    assert server.admin.post("/v1/datasets/Reports/records", json=[{"report_id": "alive"}]).json()["accepted"] == 1
    assert body_for("/v1/results") is not None
    assert server.admin.get("/readyz").status_code == 200
