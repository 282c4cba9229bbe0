"""Subscriptions, results and announcements over HTTP: typed values, cursors, gaps, brokers that come and go."""

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
from tocsin.cluster.server.routes import announcement_routes
from tocsin.model.subscription import fingerprint

pytestmark = pytest.mark.spark
ARROW = {"Accept": "application/vnd.apache.arrow.stream"}


def subscribe(client: httpx.Client, kind: str, broker: str | None = None) -> dict[str, Any]:
    wanted = {"channel": "ReportsOfKind", "parameters": {"kind": kind}, "broker": broker}
    answer = client.post("/v1/subscriptions", json=wanted)
    assert answer.status_code == 200, answer.text
    held: dict[str, Any] = answer.json()[0]
    return held


def run_with(server: RunningServer, *records: dict[str, Any]) -> None:
    """Publish and have the channel execute them, when this returns."""
    publish(server.admin, *records)
    until(lambda: server.admin.get("/v1/datasets/Reports").json()["backlog_bytes"] == 0)
    assert server.admin.post("/v1/channels/ReportsOfKind/execute").status_code == 200


def pull(client: httpx.Client, held: dict[str, Any], cursor: str | None = None) -> list[dict[str, Any]]:
    wanted = {"channel": "ReportsOfKind", "subscriptions": {held["id"]: cursor or held["cursor"]}}
    answer = client.post("/v1/results", json=wanted)
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
def test_values_of_the_wrong_type_are_refused(server: RunningServer, parameters: Any, expected: str) -> None:
    answer = server.admin.post("/v1/subscriptions", json={"channel": "ReportsOfKind", "parameters": parameters})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_parameter")
    assert expected in answer.json()["error"]["message"]


def test_hostile_strings_are_just_data(server: RunningServer) -> None:
    hostile = [
        "'; DROP TABLE Reports; --",
        "\"quoted\" `ticked` ''",
        "nul \u0000 inside",
        "snow ☃ 🚒 \u202e",
        "${kind} :kind \\",
        "",
    ]
    wanted = {"channel": "ReportsOfKind", "parameters": [{"kind": kind} for kind in hostile]}
    held = server.admin.post("/v1/subscriptions", json=wanted).json()
    assert len({one["id"] for one in held}) == len(hostile)
    run_with(server, *({"report_id": f"h{index}", "kind": kind} for index, kind in enumerate(hostile)))
    for index, one in enumerate(held):
        [line] = pull(server.admin, one)
        assert line["result"] == {"report_id": f"h{index}", "severity": None, "kind": hostile[index]}
    assert server.admin.get("/v1/datasets/Reports").status_code == 200


def test_identical_subscriptions_are_one_held_by_several_brokers(server: RunningServer) -> None:
    first, second = server.client(server.token_for("broker:x1")), server.client(server.token_for("broker:x2"))
    one, other = subscribe(first, "shared"), subscribe(second, "shared")
    assert one["id"] == other["id"] and (one["created"], other["created"]) == (True, False)
    seen = server.admin.get(f"/v1/subscriptions/{one['id']}").json()
    assert (seen["channel"], seen["parameters"], seen["brokers"]) == ("ReportsOfKind", ["shared"], ["x1", "x2"])
    assert first.get(f"/v1/subscriptions/{one['id']}").json()["brokers"] == ["x1"], "not who else is interested"
    assert first.delete(f"/v1/subscriptions/{one['id']}").json() == {"released": 1}
    assert first.delete(f"/v1/subscriptions/{one['id']}").status_code == 404
    assert second.get(f"/v1/subscriptions/{one['id']}").status_code == 200
    many = {"channel": "ReportsOfKind", "subscriptions": [one["id"], "0" * 32]}
    assert second.post("/v1/subscriptions/delete", json=many).json() == {"released": 1}
    assert server.admin.get(f"/v1/subscriptions/{one['id']}").status_code == 404


def test_a_broker_can_tell_that_both_sides_hold_the_same(server: RunningServer) -> None:
    broker = server.client(server.token_for("broker:agreeing"))
    ids = [subscribe(broker, f"agreed {number}")["id"] for number in range(3)]
    assert broker.get("/v1/brokers/agreeing/holds").json() == {"subscriptions": 3, "fingerprint": fingerprint(ids)}
    broker.delete(f"/v1/subscriptions/{ids[0]}")
    assert broker.get("/v1/brokers/agreeing/holds").json() == {"subscriptions": 2, "fingerprint": fingerprint(ids[1:])}
    assert broker.get("/v1/brokers/another/holds").status_code == 403
    nothing = {"subscriptions": 0, "fingerprint": fingerprint([])}
    assert server.admin.get("/v1/brokers/another/holds").json() == nothing


def test_what_a_listening_broker_holds_is_let_go_by_itself_alone(server: RunningServer) -> None:
    broker = server.client(server.token_for("broker:alive"))
    held = subscribe(broker, "needed")
    wanted = {"channel": "ReportsOfKind", "subscriptions": [held["id"]], "broker": "alive", "unless_listening": True}
    address = server.url.replace("http", "ws") + "/v1/brokers/alive/announcements"
    headers = {"Authorization": broker.headers["authorization"]}
    with connect(address, additional_headers=headers) as socket:
        socket.recv()
        refused = server.admin.post("/v1/subscriptions/delete", json=wanted)
        assert refused.status_code == 409 and "alive" in refused.json()["error"]["message"]
    let_go = until(lambda: (said := server.admin.post("/v1/subscriptions/delete", json=wanted)).is_success and said)
    assert let_go.json() == {"released": 1}


def test_subscriptions_are_listed_in_pages(server: RunningServer) -> None:
    wanted = {"channel": "Counted", "parameters": [{"least": least} for least in range(25)], "broker": "pages"}
    held = server.admin.post("/v1/subscriptions", json=wanted).json()
    seen: list[str] = []
    after: int | None = 0
    while after is not None:
        page = server.admin.get("/v1/subscriptions", params={"broker": "pages", "after": after, "limit": 10}).json()
        seen += [one["id"] for one in page["subscriptions"]]
        after = page["next"]
    assert seen == [one["id"] for one in held]
    rates = server.admin.get("/v1/rates", params={"channel": "Counted"}).json()["rates"]
    assert len(rates) == 25 and rates[0]["bytes_per_s"] == 0
    lines = server.admin.get("/v1/rates", params={"channel": "Counted"}, headers={"Accept": "application/x-ndjson"})
    assert len(lines.text.splitlines()) == 25


def test_too_many_at_once_is_refused(server: RunningServer) -> None:
    wanted = {"channel": "Counted", "parameters": [{"least": 1}] * 100_001}
    assert server.admin.post("/v1/subscriptions", json=wanted).status_code == 413


def test_rates_and_executions_follow_what_ran(server: RunningServer) -> None:
    held = subscribe(server.admin, "rated")
    run_with(server, {"report_id": "rate1", "kind": "rated"})
    rates = server.admin.get("/v1/rates", params={"channel": "ReportsOfKind"}).json()["rates"]
    assert next(rate["bytes_per_s"] for rate in rates if rate["subscription"] == held["id"]) > 0
    [latest] = server.admin.get("/v1/executions", params={"channel": "ReportsOfKind", "limit": 1}).json()["executions"]
    assert latest["results"] >= 1 and latest["channel"] == "ReportsOfKind"
    channel = server.admin.get("/v1/channels/ReportsOfKind").json()
    assert channel["executions"] >= 1 and channel["failures"] == 0 and channel["last_duration_s"] > 0
    assert [column["name"] for column in channel["columns"]] == ["report_id", "severity", "kind"]


def test_results_are_read_from_a_cursor_on_and_end_at_one(server: RunningServer) -> None:
    held = subscribe(server.admin, "cursor")
    run_with(server, *({"report_id": f"c{index}", "kind": "cursor"} for index in range(5)))
    lines = pull(server.admin, held)
    assert len(lines) == 5 and len({line["cursor"] for line in lines}) == 5
    assert pull(server.admin, held, lines[2]["cursor"]) == lines[3:]
    query = {"channel": "ReportsOfKind", "subscription": held["id"], "after": held["cursor"]}
    answer = server.admin.get("/v1/results", params=query)
    assert pull(server.admin, held, answer.headers["Tocsin-Cursor"]) == []


def test_an_answer_without_results_still_has_its_columns(server: RunningServer) -> None:
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
def test_what_cannot_be_read_is_refused(
    server: RunningServer, subscription: str | None, cursor: str | None, status: int, code: str
) -> None:
    held = subscribe(server.admin, "refused")
    wanted = {"channel": "ReportsOfKind", "subscriptions": {subscription or held["id"]: cursor}}
    answer = server.admin.post("/v1/results", json=wanted)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_cursor_of_another_epoch_is_told_as_a_gap(server: RunningServer) -> None:
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


def test_a_cursor_into_what_retention_took_is_told_as_a_gap(server: RunningServer) -> None:
    held = subscribe(server.admin, "old")
    run_with(server, {"report_id": "old1", "kind": "old"})
    cluster = server.server.process.cluster
    epoch = cluster.channel("ReportsOfKind").epoch
    assert pull(server.admin, held)[0].get("gap") is None
    cluster.catalog.executions.expire(cluster.channel("ReportsOfKind").prepared.channel.name, cluster.now_s())
    [gap, *_] = pull(server.admin, held)
    assert gap["gap"] is True and gap["cursor"].startswith(f"{epoch}-")
    with server.admin.stream("GET", "/v1/brokers/late/announcements?after=0") as stream:
        kinds: list[str] = []
        for kind, _, _ in events(stream):
            kinds.append(kind)
            if kind == "gap":
                break
    assert kinds[-1] == "gap"
    # Whoever stands where an answer ended has missed nothing.
    answer = server.admin.get("/v1/results", params={"channel": "ReportsOfKind", "subscription": held["id"]})
    assert pull(server.admin, held, answer.headers["Tocsin-Cursor"]) == []


def test_a_broker_sees_the_results_of_its_own_subscriptions_only(server: RunningServer) -> None:
    mine, theirs = server.client(server.token_for("broker:m")), server.client(server.token_for("broker:t"))
    held = subscribe(mine, "private")
    wanted = {"channel": "ReportsOfKind", "subscriptions": {held["id"]: None}}
    assert mine.post("/v1/results", json=wanted).status_code == 200
    assert theirs.post("/v1/results", json=wanted).status_code == 404
    assert server.client(server.token_for("broker:*")).post("/v1/results", json=wanted).status_code == 200


def test_a_broker_whose_connection_dies_catches_up_over_a_socket(server: RunningServer) -> None:
    broker = server.client(server.token_for("broker:sock"))
    held = subscribe(broker, "socket")
    token = broker.headers["Authorization"].removeprefix("Bearer ")
    address = f"{server.url.replace('http', 'ws')}/v1/brokers/sock/announcements"

    def hear(after: int | None, wanted: str) -> dict[str, Any]:
        query = f"?access_token={token}" + ("" if after is None else f"&after={after}")
        with connect(address + query) as socket:
            while True:
                said: dict[str, Any] = json.loads(socket.recv(60))
                if said["type"] == wanted:
                    return said

    start = hear(None, "ready")["sequence"]
    for index in range(3):  # nobody is connected
        run_with(server, {"report_id": f"s{index}", "kind": "socket"})
    heard = []
    after = start
    for _ in range(3):
        said = hear(after, "execution")
        heard.append(said)
        after = said["sequence"]
    assert [one["subscriptions"][0]["id"] for one in heard] == [held["id"]] * 3
    assert hear(after, "progress")["sequence"] >= after, "silence is not a stall"


def test_executions_for_others_are_progress_with_the_position_of_the_channel(server: RunningServer) -> None:
    subscribe(server.admin, "others", "b-others")
    with server.admin.stream("GET", "/v1/brokers/b-quiet/announcements") as stream:
        heard = events(stream)
        start = next(heard)[1]["sequence"]
        run_with(server, {"report_id": "o1", "kind": "others"})
        for kind, data, identity in heard:
            assert kind == "progress"
            if data["sequence"] > start:
                assert identity == str(data["sequence"])
                now = subscribe(server.admin, "others", "b-others")["cursor"]
                assert data["channels"] == {"ReportsOfKind": now}, "a quiet broker's cursors keep up with the channel"
                break


def test_an_execution_with_much_news_comes_in_parts(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement_routes, "SUBSCRIPTIONS_AT_ONCE", 2)
    wanted = {
        "channel": "ReportsOfKind",
        "parameters": [{"kind": f"part{index}"} for index in range(5)],
        "broker": "parts",
    }
    server.admin.post("/v1/subscriptions", json=wanted)
    start = server.server.process.cluster.announcements.sequence
    run_with(server, *({"report_id": f"part{index}", "kind": f"part{index}"} for index in range(5)))
    with server.admin.stream("GET", f"/v1/brokers/parts/announcements?after={start}") as stream:
        heard = events(stream)
        parts = [next_execution(heard) for _ in range(3)]
    assert [(data["part"], data["parts"], len(data["subscriptions"])) for data, _ in parts] == [
        (1, 3, 2),
        (2, 3, 2),
        (3, 3, 1),
    ]
    assert [identity is not None for _, identity in parts] == [False, False, True], "resume repeats an unfinished one"


@pytest.mark.parametrize("last", ["now", "-1", "1e3", "9" * 30])
def test_a_sequence_that_is_none_is_refused(server: RunningServer, last: str) -> None:
    answer = server.admin.get("/v1/brokers/b/announcements", headers={"Last-Event-ID": last})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
