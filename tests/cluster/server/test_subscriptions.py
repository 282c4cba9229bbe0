"""Subscriptions, results and announcements over HTTP: typed values, cursors, gaps, reconnecting brokers."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import pyarrow as pa
import pytest
from websockets.sync.client import connect

from tests.cluster.server.conftest import RunningServer, until
from tests.cluster.server.test_end_to_end import events, next_execution, publish
from tocsin.cluster.server.routes import announcements as announcement_routes
from tocsin.model.subscription import fingerprint

pytestmark = pytest.mark.spark
ARROW = {"Accept": "application/vnd.apache.arrow.stream"}


def subscribe(client: httpx.Client, kind: str, broker: str | None = None) -> dict[str, Any]:
    request = {"channel": "ReportsOfKind", "parameters": {"kind": kind}, "broker": broker}
    answer = client.post("/v1/subscriptions", json=request)
    assert answer.status_code == 200, answer.text
    held: dict[str, Any] = answer.json()[0]
    return held


def run_with(server: RunningServer, *records: dict[str, Any]) -> None:
    """Publish records and execute the channel on them."""
    publish(server.admin, *records)
    until(lambda: server.admin.get("/v1/datasets/Reports").json()["backlog_bytes"] == 0)
    assert server.admin.post("/v1/channels/ReportsOfKind/execute").status_code == 200


def pull(client: httpx.Client, held: dict[str, Any], cursor: str | None = None) -> list[dict[str, Any]]:
    request = {"channel": "ReportsOfKind", "subscriptions": {held["id"]: cursor or held["cursor"]}}
    answer = client.post("/v1/results", json=request)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"kind": 5}, "kind"),
        ({}, "missing"),
        ({"kind": "fire", "more": 1}, "no such parameter"),
        ({"kind": None}, "kind"),
        ({"kind": ["fire"]}, "kind"),
        ([{"kind": "fire"}, {"kind": {}}], "kind"),
    ],
)
def test_parameter_value_of_a_wrong_type_is_refused(server: RunningServer, parameters: Any, expected: str) -> None:
    answer = server.admin.post("/v1/subscriptions", json={"channel": "ReportsOfKind", "parameters": parameters})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_parameter")
    assert expected in answer.json()["error"]["message"]


def test_hostile_strings_are_treated_as_data(server: RunningServer) -> None:
    hostile = [
        "'; DROP TABLE Reports; --",
        "\"quoted\" `ticked` ''",
        "nul \u0000 inside",
        "snow ☃ 🚒 \u202e",
        "${kind} :kind \\",
        "",
    ]
    request = {"channel": "ReportsOfKind", "parameters": [{"kind": kind} for kind in hostile]}
    held = server.admin.post("/v1/subscriptions", json=request).json()
    assert len({granted["id"] for granted in held}) == len(hostile)
    run_with(server, *({"report_id": f"h{index}", "kind": kind} for index, kind in enumerate(hostile)))
    for index, granted in enumerate(held):
        [line] = pull(server.admin, granted)
        assert line["result"] == {"report_id": f"h{index}", "severity": None, "kind": hostile[index]}
    assert server.admin.get("/v1/datasets/Reports").status_code == 200


def test_identical_subscriptions_are_one_with_several_holders(server: RunningServer) -> None:
    first, second = server.client(server.token_for("broker:x1")), server.client(server.token_for("broker:x2"))
    own, other = subscribe(first, "shared"), subscribe(second, "shared")
    assert own["id"] == other["id"] and (own["created"], other["created"]) == (True, False)
    seen = server.admin.get(f"/v1/subscriptions/{own['id']}").json()
    assert (seen["channel"], seen["parameters"], seen["brokers"]) == ("ReportsOfKind", ["shared"], ["x1", "x2"])
    assert first.get(f"/v1/subscriptions/{own['id']}").json()["brokers"] == ["x1"], "other holders are hidden"
    assert first.delete(f"/v1/subscriptions/{own['id']}").json() == {"released": 1}
    assert first.delete(f"/v1/subscriptions/{own['id']}").status_code == 404
    assert second.get(f"/v1/subscriptions/{own['id']}").status_code == 200
    many = {"channel": "ReportsOfKind", "subscriptions": [own["id"], "0" * 32]}
    assert second.post("/v1/subscriptions/delete", json=many).json() == {"released": 1}
    assert server.admin.get(f"/v1/subscriptions/{own['id']}").json()["brokers"] == [], "it ends after `unheld_s`"
    assert subscribe(second, "shared")["created"] is False


def test_fingerprint_shows_whether_both_sides_hold_the_same(server: RunningServer) -> None:
    broker = server.client(server.token_for("broker:agreeing"))
    ids = [subscribe(broker, f"agreed {number}")["id"] for number in range(3)]
    assert broker.get("/v1/brokers/agreeing/holds").json() == {"subscriptions": 3, "fingerprint": fingerprint(ids)}
    broker.delete(f"/v1/subscriptions/{ids[0]}")
    assert broker.get("/v1/brokers/agreeing/holds").json() == {"subscriptions": 2, "fingerprint": fingerprint(ids[1:])}
    assert broker.get("/v1/brokers/another/holds").status_code == 403
    nothing = {"subscriptions": 0, "fingerprint": fingerprint([])}
    assert server.admin.get("/v1/brokers/another/holds").json() == nothing


def test_subscriptions_of_a_listening_broker_are_not_released_by_others(server: RunningServer) -> None:
    broker = server.client(server.token_for("broker:alive"))
    held = subscribe(broker, "needed")
    request = {"channel": "ReportsOfKind", "subscriptions": [held["id"]], "broker": "alive", "unless_listening": True}
    address = server.url.replace("http", "ws") + "/v1/brokers/alive/announcements"
    headers = {"Authorization": broker.headers["authorization"]}
    with connect(address, additional_headers=headers) as socket:
        socket.recv()
        refused = server.admin.post("/v1/subscriptions/delete", json=request)
        assert refused.status_code == 409 and "alive" in refused.json()["error"]["message"]
    released = until(
        lambda: (reply := server.admin.post("/v1/subscriptions/delete", json=request)).is_success and reply
    )
    assert released.json() == {"released": 1}


def test_subscriptions_are_listed_in_pages(server: RunningServer) -> None:
    request = {"channel": "Counted", "parameters": [{"least": least} for least in range(25)], "broker": "pages"}
    held = server.admin.post("/v1/subscriptions", json=request).json()
    seen: list[str] = []
    after: int | None = 0
    while after is not None:
        page = server.admin.get("/v1/subscriptions", params={"broker": "pages", "after": after, "limit": 10}).json()
        seen += [item["id"] for item in page["subscriptions"]]
        after = page["next"]
    assert seen == [granted["id"] for granted in held]
    rates = server.admin.get("/v1/rates", params={"channel": "Counted"}).json()["rates"]
    assert len(rates) == 25 and rates[0]["bytes_per_s"] == 0
    lines = server.admin.get("/v1/rates", params={"channel": "Counted"}, headers={"Accept": "application/x-ndjson"})
    assert len(lines.text.splitlines()) == 25


def test_too_many_subscriptions_at_once_are_refused(server: RunningServer) -> None:
    request = {"channel": "Counted", "parameters": [{"least": 1}] * 100_001}
    assert server.admin.post("/v1/subscriptions", json=request).status_code == 413


def test_rates_and_executions_reflect_an_execution(server: RunningServer) -> None:
    held = subscribe(server.admin, "rated")
    run_with(server, {"report_id": "rate1", "kind": "rated"})
    rates = server.admin.get("/v1/rates", params={"channel": "ReportsOfKind"}).json()["rates"]
    assert next(rate["bytes_per_s"] for rate in rates if rate["subscription"] == held["id"]) > 0
    [latest] = server.admin.get("/v1/executions", params={"channel": "ReportsOfKind", "limit": 1}).json()["executions"]
    assert latest["results"] >= 1 and latest["channel"] == "ReportsOfKind"
    channel = server.admin.get("/v1/channels/ReportsOfKind").json()
    assert channel["executions"] >= 1 and channel["failures"] == 0 and channel["last_duration_s"] > 0
    assert [column["name"] for column in channel["columns"]] == ["report_id", "severity", "kind"]


def test_results_are_read_from_a_cursor_on(server: RunningServer) -> None:
    held = subscribe(server.admin, "cursor")
    run_with(server, *({"report_id": f"c{index}", "kind": "cursor"} for index in range(5)))
    lines = pull(server.admin, held)
    assert len(lines) == 5 and len({line["cursor"] for line in lines}) == 5
    assert pull(server.admin, held, lines[2]["cursor"]) == lines[3:]
    query = {"channel": "ReportsOfKind", "subscription": held["id"], "after": held["cursor"]}
    answer = server.admin.get("/v1/results", params=query)
    assert pull(server.admin, held, answer.headers["Tocsin-Cursor"]) == []


def test_answer_without_results_still_has_its_columns(server: RunningServer) -> None:
    held = subscribe(server.admin, "nothing yet")
    query = {"channel": "ReportsOfKind", "subscription": held["id"]}
    answer = server.admin.get("/v1/results", params=query, headers=ARROW)
    table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
    assert table.num_rows == 0
    assert table.column_names == ["subscription", "cursor", "bytes", "report_id", "severity", "kind"]


@pytest.mark.parametrize(
    ("subscription", "cursor", "status", "code"),
    [
        ("0" * 32, None, 404, "unknown_subscription"),
        ("not an id", None, 404, "unknown_subscription"),
        (None, "yesterday", 400, "bad_cursor"),
        (None, "1-99999999999999999999", 400, "bad_cursor"),
        (None, "-1--1", 400, "bad_cursor"),
    ],
)
def test_unknown_subscription_or_malformed_cursor_is_refused(
    server: RunningServer, subscription: str | None, cursor: str | None, status: int, code: str
) -> None:
    held = subscribe(server.admin, "refused")
    request = {"channel": "ReportsOfKind", "subscriptions": {subscription or held["id"]: cursor}}
    answer = server.admin.post("/v1/results", json=request)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_cursor_of_another_epoch_is_reported_as_a_gap(server: RunningServer) -> None:
    held = subscribe(server.admin, "gap")
    run_with(server, {"report_id": "gap1", "kind": "gap"})
    [gap, line] = pull(server.admin, held, "999999-0")
    assert gap["gap"] is True and gap["subscription"] == held["id"]
    assert line["result"]["report_id"] == "gap1"
    query = {"channel": "ReportsOfKind", "subscription": held["id"], "after": "999999-0"}
    answer = server.admin.get("/v1/results", params=query, headers=ARROW)
    assert answer.headers["Tocsin-Gap"] == "1"
    table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
    assert held["id"].encode() in table.schema.metadata[b"tocsin.gap"]


def test_cursor_before_the_retained_results_is_reported_as_a_gap(server: RunningServer) -> None:
    held = subscribe(server.admin, "old")
    run_with(server, {"report_id": "old1", "kind": "old"})
    cluster = server.server.process.cluster
    epoch = cluster.channel("ReportsOfKind").epoch
    assert pull(server.admin, held)[0].get("gap") is None
    name = cluster.channel("ReportsOfKind").name
    assert cluster.catalog.executions.expire(name, cluster.now_s())
    cluster.results.forget_latest(name)  # as upkeep does
    [gap, *_] = pull(server.admin, held)
    assert gap["gap"] is True and gap["cursor"].startswith(f"{epoch}-")
    with server.admin.stream("GET", "/v1/brokers/late/announcements?after=0") as stream:
        kinds: list[str] = []
        for kind, _, _ in events(stream):
            kinds.append(kind)
            if kind == "gap":
                break
    assert kinds[-1] == "gap"
    # There is no gap at the position where an answer ended.
    answer = server.admin.get("/v1/results", params={"channel": "ReportsOfKind", "subscription": held["id"]})
    assert pull(server.admin, held, answer.headers["Tocsin-Cursor"]) == []


def test_broker_sees_results_of_its_own_subscriptions_only(server: RunningServer) -> None:
    own, other = server.client(server.token_for("broker:m")), server.client(server.token_for("broker:t"))
    held = subscribe(own, "private")
    request = {"channel": "ReportsOfKind", "subscriptions": {held["id"]: None}}
    assert own.post("/v1/results", json=request).status_code == 200
    assert other.post("/v1/results", json=request).status_code == 404
    assert server.client(server.token_for("broker:*")).post("/v1/results", json=request).status_code == 200


def test_reconnecting_broker_catches_up_over_a_socket(server: RunningServer) -> None:
    broker = server.client(server.token_for("broker:sock"))
    held = subscribe(broker, "socket")
    token = broker.headers["Authorization"].removeprefix("Bearer ")
    address = f"{server.url.replace('http', 'ws')}/v1/brokers/sock/announcements"

    def receive(after: int | None, kind: str) -> dict[str, Any]:
        query = f"?access_token={token}" + ("" if after is None else f"&after={after}")
        with connect(address + query) as socket:
            while True:
                message: dict[str, Any] = json.loads(socket.recv(60))
                if message["type"] == kind:
                    return message

    start = receive(None, "ready")["sequence"]
    for index in range(3):  # the broker is not connected
        run_with(server, {"report_id": f"s{index}", "kind": "socket"})
    executions = []
    after = start
    for _ in range(3):
        execution = receive(after, "execution")
        executions.append(execution)
        after = execution["sequence"]
    assert [execution["subscriptions"][0]["id"] for execution in executions] == [held["id"]] * 3
    assert receive(after, "progress")["sequence"] >= after


def test_execution_for_other_brokers_is_announced_as_progress(server: RunningServer) -> None:
    subscribe(server.admin, "others", "b-others")
    with server.admin.stream("GET", "/v1/brokers/b-quiet/announcements") as stream:
        received = events(stream)
        start = next(received)[1]["sequence"]
        run_with(server, {"report_id": "o1", "kind": "others"})
        for kind, data, identity in received:
            assert kind == "progress"
            if data["sequence"] > start:
                assert identity == str(data["sequence"])
                now = subscribe(server.admin, "others", "b-others")["cursor"]
                assert data["channels"] == {"ReportsOfKind": now}, "cursors of a broker without results advance too"
                break


def test_large_execution_is_announced_in_parts(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement_routes, "SUBSCRIPTIONS_AT_ONCE", 2)
    request = {
        "channel": "ReportsOfKind",
        "parameters": [{"kind": f"part{index}"} for index in range(5)],
        "broker": "parts",
    }
    server.admin.post("/v1/subscriptions", json=request)
    start = server.server.process.cluster.announcements.sequence
    run_with(server, *({"report_id": f"part{index}", "kind": f"part{index}"} for index in range(5)))
    with server.admin.stream("GET", f"/v1/brokers/parts/announcements?after={start}") as stream:
        received = events(stream)
        parts = [next_execution(received) for _ in range(3)]
    assert [(data["part"], data["parts"], len(data["subscriptions"])) for data, _ in parts] == [
        (1, 3, 2),
        (2, 3, 2),
        (3, 3, 1),
    ]
    assert [identity is not None for _, identity in parts] == [False, False, True], (
        "only the last part can be resumed after"
    )


@pytest.mark.parametrize("last", ["now", "-1", "1e3", "9" * 30])
def test_malformed_sequence_number_is_refused(server: RunningServer, last: str) -> None:
    answer = server.admin.get("/v1/brokers/b/announcements", headers={"Last-Event-ID": last})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
