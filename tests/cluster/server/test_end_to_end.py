"""From a publisher's request to a broker's results, over HTTP, on a real Spark."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.cluster.server.conftest import RunningServer

pytestmark = pytest.mark.spark


def events(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """(event, data, id) of a stream of server-sent events."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields.get("event", "message"), json.loads(fields["data"]), fields.get("id")
            fields = {}


def next_execution(stream: Iterator[tuple[str, dict[str, Any], str | None]]) -> tuple[dict[str, Any], str | None]:
    for kind, data, identity in stream:
        if kind == "execution":
            return data, identity
    raise AssertionError("the stream ended")


def publish(client: httpx.Client, *records: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/datasets/Reports/records", json=list(records))
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def test_record_travels_from_publisher_to_announced_broker(server: RunningServer) -> None:
    broker = server.client(server.token_for("broker:b1"))
    publisher = server.client(server.token_for("publish:Reports"))
    [held] = broker.post("/v1/subscriptions", json={"channel": "ReportsOfKind", "parameters": {"kind": "flood"}}).json()
    with broker.stream("GET", "/v1/brokers/b1/announcements?after=0") as stream:
        received = events(stream)
        assert next(received)[0] == "ready"
        reply = publish(
            publisher,
            {"report_id": "e1", "kind": "flood", "severity": 4, "seen_at": "2026-11-15T18:00:00Z"},
            {"report_id": "e2", "kind": "fire", "severity": 5},
        )
        assert reply["accepted"] == 2
        announced, identity = next_execution(received)
    assert announced["channel"] == "ReportsOfKind"
    assert announced["subscriptions"] == [
        {"id": held["id"], "results": 1, "bytes": announced["subscriptions"][0]["bytes"]}
    ]

    request = {"channel": "ReportsOfKind", "subscriptions": {held["id"]: held["cursor"]}}
    lines = broker.post("/v1/results", json=request, headers={"Accept": "application/x-ndjson"})
    [line] = [json.loads(text) for text in lines.text.splitlines()]
    assert line["result"] == {"report_id": "e1", "severity": 4, "kind": "flood"}
    arrow = broker.post("/v1/results", json=request, headers={"Accept": "application/vnd.apache.arrow.stream"})
    table = pa.ipc.open_stream(io.BytesIO(arrow.content)).read_all()
    assert table.column_names == ["subscription", "cursor", "bytes", "report_id", "severity", "kind"]
    assert table.to_pylist() == [
        {"subscription": held["id"], "cursor": line["cursor"], "bytes": line["bytes"], **line["result"]}
    ]

    # The broker disconnects, misses an execution, and resumes both the announcements and the results.
    publish(publisher, {"report_id": "e3", "kind": "flood", "severity": 1})
    with broker.stream("GET", "/v1/brokers/b1/announcements", headers={"Last-Event-ID": str(identity)}) as stream:
        again, _ = next_execution(events(stream))
    assert again["sequence"] > announced["sequence"]
    request = {"channel": "ReportsOfKind", "subscriptions": {held["id"]: line["cursor"]}}
    lines = broker.post("/v1/results", json=request)
    assert [json.loads(text)["result"]["report_id"] for text in lines.text.splitlines()] == ["e3"]
    assert "Tocsin-Gap" not in lines.headers

    # One request for several channels answers those whose results are in memory, and that the broker may see.
    unknown, old = {"0" * 32: held["cursor"]}, {held["id"]: "1-5"}
    requests = [request, {**request, "subscriptions": unknown}, {**request, "subscriptions": old}, request]
    joint = broker.post("/v1/results/together", json={"requests": requests}).text.splitlines()
    answered = {"channel": "ReportsOfKind", "cursor": lines.headers["Tocsin-Cursor"], "lines": 1}
    left_out = {"channel": "ReportsOfKind"}
    result = json.loads(lines.text)
    assert [json.loads(text) for text in joint] == [answered, result, left_out, left_out, answered, result]
    stranger = server.client(server.token_for("broker:b9"))
    joint = stranger.post("/v1/results/together", json={"requests": [request]}).text.splitlines()
    assert [json.loads(text) for text in joint] == [left_out], "another broker holds the subscription"
