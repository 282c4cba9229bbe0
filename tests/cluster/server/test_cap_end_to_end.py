"""Alerts published by command and HTTP, and read as GeoJSON, CAP and Atom, through a real data cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from tests.cluster.cap.alerts import alert, area, at, info, reference
from tests.cluster.server.conftest import RunningServer, StartServer, until
from tocsin.cli.main import make_app
from tocsin.cluster.cap.alert import NAMESPACE, Alert, Circle
from tocsin.cluster.cap.reading import read_alert

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[3] / "examples" / "emergency"
APPLICATION = """
CREATE STREAM DATASET EmergencyReports (
  report_id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, message STRING, reported_at TIMESTAMP
) KEY (report_id) RETAIN 7 DAYS;
CREATE KEYED DATASET Warnings (
  alert_id STRING, msg_type STRING, event STRING, severity STRING, polygon STRING, lat DOUBLE, lon DOUBLE,
  references STRING, expires TIMESTAMP
) KEY (alert_id);
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.* FROM NEW EmergencyReports r WHERE r.kind = :kind;
CREATE CONTINUOUS CHANNEL OfEvent (event STRING) AS SELECT w.* FROM NEW Warnings w WHERE w.event = :event;
"""
CAP = {"Content-Type": "application/cap+xml"}


@pytest.fixture(scope="module")
def cluster(start_server: StartServer) -> RunningServer:
    running = start_server(heartbeat_s=0.5, cap_sender="alerts@city.example")
    applied = running.admin.post("/v1/applications", json={"text": APPLICATION})
    assert applied.status_code == 200, applied.text
    return running


def command(cluster: RunningServer, *arguments: str, text: bytes | None = None) -> Result:
    common = ["publish", "EmergencyReports", "--cap", "--url", cluster.url, "--token", cluster.token, "--json"]
    return CliRunner().invoke(make_app(), [*common, *arguments], input=text)


def subscribe(cluster: RunningServer, channel: str, **parameters: str) -> dict[str, Any]:
    answer = cluster.admin.post("/v1/subscriptions", json={"channel": channel, "parameters": parameters})
    held: dict[str, Any] = answer.json()[0]
    return held | {"channel": channel}


def executed(cluster: RunningServer, dataset: str, channel: str) -> None:
    until(lambda: cluster.admin.get(f"/v1/datasets/{dataset}").json()["backlog_bytes"] == 0)
    assert cluster.admin.post(f"/v1/channels/{channel}/execute").status_code == 200


def results(cluster: RunningServer, held: dict[str, Any], accept: str) -> Any:
    request = {"channel": held["channel"], "subscription": held["id"], "after": held["cursor"]}
    answer = cluster.admin.get("/v1/results", params=request, headers={"Accept": accept})
    assert answer.status_code == 200 and answer.headers["Content-Type"].startswith(accept.partition(",")[0]), (
        answer.text
    )
    return answer


def test_alert_published_by_command_is_delivered_in_every_form(cluster: RunningServer, tmp_path: Path) -> None:
    held = subscribe(cluster, "OfKind", kind="fire")
    bad = tmp_path / "bad.xml"
    bad.write_bytes(alert(info(), sent="2026-11-15T18:00:00Z"))
    sent = command(cluster, str(EXAMPLES / "alert.xml"), str(bad), str(EXAMPLES / "alert-cancel.xml"))
    assert sent.exit_code == 1
    assert json.loads(sent.stdout.splitlines()[-1]) == {"accepted": 2, "duplicates": 0, "refused": 1, "retries": 0}
    assert f"{bad}: no CAP 1.2 alert: line 5, <sent>: expected a date and time" in sent.stderr
    executed(cluster, "EmergencyReports", "OfKind")

    listing = results(cluster, held, "application/geo+json").json()
    assert listing["type"] == "FeatureCollection" and len(listing["features"]) == 2
    first, cancel = listing["features"]
    assert first["geometry"] == {"type": "Point", "coordinates": [24.9561, 60.1678]}, "longitude first"
    assert (first["properties"]["severity"], first["properties"]["report_id"]) == (4, "HEL-2026-0117")
    assert cancel["properties"]["message"].startswith("Cancelled: Warehouse fire")

    path = f"/v1/results/{held['id']}/{first['cursor']}"
    single = cluster.admin.get(path, headers={"Accept": "application/cap+xml"})
    assert single.headers["Content-Type"] == "application/cap+xml"
    made = read_alert(single.content)
    assert isinstance(made, Alert), made
    assert (made.identifier, made.sender) == (f"{held['id']}-{first['cursor']}", "alerts@city.example")
    assert made.infos[0].severity == "Severe" and made.infos[0].areas[0].circles == (Circle((60.1678, 24.9561), 0.0),)
    assert b"-00:00</sent>" in single.content
    assert cluster.admin.get(path, headers={"Accept": "application/geo+json"}).json() == first
    line = cluster.admin.get(path).json()
    assert (line["cursor"], line["result"]["report_id"]) == (first["cursor"], "HEL-2026-0117")

    feed = ElementTree.fromstring(results(cluster, held, "application/atom+xml").content)
    atom = "{http://www.w3.org/2005/Atom}"
    inside = feed.findall(f"{atom}entry/{atom}content/{{{NAMESPACE}}}alert")
    assert len(inside) == 2 and read_alert(ElementTree.tostring(inside[0])) == made
    links = [link.attrib["href"] for link in feed.findall(f"{atom}entry/{atom}link")]
    assert links[0] == path
    again = command(cluster, "-", text=(EXAMPLES / "alert.xml").read_bytes())
    assert again.exit_code == 0 and json.loads(again.stdout.splitlines()[-1])["duplicates"] == 1


def test_update_and_cancel_change_the_alert_in_a_keyed_dataset(cluster: RunningServer) -> None:
    held = subscribe(cluster, "OfEvent", event="flood")
    square = area("<polygon>60.1,24.9 60.2,24.9 60.2,25.0 60.1,25.0 60.1,24.9</polygon>")
    chain = [
        alert(info(square, event="flood")),
        alert(
            info(square, event="flood", severity="Minor"),
            identifier="A2",
            sent=at(5),
            msg_type="Update",
            references=reference("A1"),
        ),
        alert(identifier="A3", sent=at(9), msg_type="Cancel", references=reference("A2", 5)),
    ]
    seen = []
    for body in chain:
        answer = cluster.admin.post("/v1/datasets/Warnings/records", content=body, headers=CAP)
        assert (answer.status_code, answer.json()["accepted"]) == (200, 1), answer.text
        if body is chain[0]:
            continue
        executed(cluster, "Warnings", "OfEvent")
        [*_, latest] = results(cluster, held, "application/geo+json, */*").json()["features"]
        seen.append(latest)
    shown = [(item["properties"]["alert_id"], item["properties"]["msg_type"]) for item in seen]
    assert shown == [("A1", "Update"), ("A1", "Cancel")]
    assert seen[0]["geometry"]["type"] == "Polygon" and seen[0]["geometry"]["coordinates"][0][0] == [24.9, 60.1]
    cancel = read_alert(
        cluster.admin.get(f"/v1/results/{seen[1]['id']}", headers={"Accept": "application/cap+xml"}).content
    )
    assert isinstance(cancel, Alert) and cancel.msg_type == "Cancel" and cancel.references[0].identifier == "A2"
    assert cancel.infos[0].areas[0].polygons[0][0] == (60.1, 24.9) and cancel.infos[0].severity == "Minor"
    again = cluster.admin.post("/v1/datasets/Warnings/records", content=chain[0], headers=CAP).json()
    assert again["replayed"] is True


def test_unknown_reference_gives_a_notice_and_reused_identifier_is_refused(cluster: RunningServer) -> None:
    path = "/v1/datasets/EmergencyReports/records"
    update = alert(info(), identifier="N2", msg_type="Update", references=reference("N1", 1))
    reply = cluster.admin.post(path, content=update, headers={"Content-Type": "text/xml; charset=utf-8"}).json()
    assert reply["accepted"] == 1 and "EmergencyReports has not seen" in reply["notices"][0]
    other = cluster.admin.post(path, content=update.replace(b"fire", b"flood"), headers=CAP)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_conflict")
    drill = cluster.admin.post(path, content=alert(info(), status="Exercise"), headers=CAP)
    assert (drill.status_code, drill.json()["error"]["code"]) == (400, "bad_records")


@pytest.mark.parametrize(
    ("cursor", "status", "code"),
    [("999-5", 404, "not_found"), ("1-0", 404, "not_found"), ("nonsense", 400, "bad_cursor")],
)
def test_missing_result_is_not_found(cluster: RunningServer, cursor: str, status: int, code: str) -> None:
    held = subscribe(cluster, "OfKind", kind="nothing")
    answer = cluster.admin.get(f"/v1/results/{held['id']}/{cursor}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_caller_sees_only_results_of_its_own_subscriptions(cluster: RunningServer) -> None:
    held = subscribe(cluster, "OfKind", kind="fire")
    stranger = cluster.client(cluster.token_for("broker:stranger"))
    assert stranger.get(f"/v1/results/{held['id']}/1-5").status_code == 404
    assert cluster.admin.get(f"/v1/results/{'0' * 32}/1-5").status_code == 404


def test_listing_in_cap_is_refused_with_a_hint(cluster: RunningServer) -> None:
    held = subscribe(cluster, "OfKind", kind="fire")
    answer = cluster.admin.get(
        "/v1/results",
        params={"channel": "OfKind", "subscription": held["id"]},
        headers={"Accept": "application/cap+xml"},
    )
    assert answer.status_code == 400 and "a listing in CAP is an Atom feed" in answer.json()["error"]["message"]
