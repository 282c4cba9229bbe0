"""Dead letters over REST and on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cluster.server.conftest import RunningServer, until
from tocsin.cli.main import make_app

pytestmark = pytest.mark.spark

CHANNEL = """CREATE OR REPLACE CONTINUOUS CHANNEL Local AS
  SELECT r.report_id, from_utc_timestamp(r.seen_at, {zone}) AS there FROM NEW Reports r;"""


def command(server: RunningServer, *arguments: str) -> Any:
    environment = {"TOCSIN_URL": server.url, "TOCSIN_TOKEN": server.token}
    outcome = CliRunner().invoke(make_app(), ["dead-letters", *arguments, "--json"], env=environment)
    return json.loads(outcome.stdout.splitlines()[-1])


def letters(server: RunningServer) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = server.admin.get("/v1/dead-letters?channel=local").json()["dead_letters"]
    return listed


def test_dead_letter_is_listed_replayed_and_discarded(server: RunningServer) -> None:
    server.admin.post("/v1/applications", json={"text": CHANNEL.format(zone="r.kind")}).raise_for_status()
    [held] = server.admin.post("/v1/subscriptions", json={"channel": "Local", "parameters": {}, "broker": "b"}).json()
    records = [{"report_id": kind, "kind": kind, "seen_at": "2026-11-15T18:00:00Z"} for kind in ("UTC", "Mars", "Moon")]
    server.admin.post("/v1/datasets/Reports/records", json=records).raise_for_status()
    until(lambda: len(letters(server)) == 2)
    mars, moon = letters(server)
    assert mars["record"]["report_id"] == "Mars" and "Mars" in mars["reason"] and mars["dataset"] == "Reports"
    assert server.admin.get("/v1/channels/Local").json()["dead_letters"] == 2
    assert 'tocsin_dead_letters{channel="Local"} 2.0' in server.admin.get("/metrics").text
    reader = server.client(server.token_for("read"))
    body = {"channel": "Local", "ids": [mars["id"]]}
    assert reader.post("/v1/dead-letters/replay", json=body).status_code == 403
    assert server.admin.post("/v1/dead-letters/replay", json=body).json()["error"]["code"] == "bad_records"
    assert [letter["id"] for letter in command(server, "list")["dead_letters"]] == [mars["id"], moon["id"]]
    server.admin.post("/v1/applications", json={"text": CHANNEL.format(zone="'UTC'")}).raise_for_status()
    assert command(server, "replay", "Local", "--id", str(mars["id"])) == {"replayed": 1}
    assert command(server, "discard", "Local") == {"discarded": 1}
    assert letters(server) == []
    lines = server.admin.get(f"/v1/results?channel=Local&subscription={held['id']}").text.splitlines()
    assert [json.loads(line)["result"]["report_id"] for line in lines] == ["Mars"]
