"""A real data cluster in the coordinator's live watch: taps of its datasets, its channels and its state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.server.conftest import RunningServer, StartServer
from tests.runtime.coordinator.harness import coordinator, watching
from tocsin.model.trace import Kind
from tocsin.runtime.coordinator.server import KEY_FILE
from tocsin.runtime.http.credentials import Signer

CITY = """
CREATE STREAM DATASET Reports (id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE) KEY (id) RETAIN 1 DAY;
CREATE KEYED DATASET People (name STRING, lat DOUBLE, lon DOUBLE) KEY (name);
CREATE STATIC DATASET Shelters FROM 'shelters.csv';
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.id FROM NEW Reports r WHERE r.kind = :kind;
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State folder of the coordinator whose tokens the data cluster trusts."""
    return tmp_path_factory.mktemp("coordinator")


@pytest.fixture(scope="module")
def city(start_server: StartServer, state: Path, tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    folder = tmp_path_factory.mktemp("city")
    (folder / "shelters.csv").write_text(
        "code,name,lat,lon\ns1,School,60.1,24.9\ns2,Hall,60.2,25.0\n", encoding="utf-8"
    )
    keys = folder / "keys.json"
    keys.write_text(json.dumps(Signer.load_or_create(state / KEY_FILE).jwks()), encoding="utf-8")
    running = start_server(heartbeat_s=0.5, keys=str(keys))
    answer = running.admin.post("/v1/applications", json={"text": CITY, "folder": str(folder)})
    assert answer.status_code == 200, answer.text
    return running


@contextmanager
def tapping(server: RunningServer, name: str) -> Iterator[Iterator[tuple[str, list[dict[str, Any]]]]]:
    with server.admin.stream("GET", f"/v1/datasets/{name}/tap") as answer:
        assert answer.status_code == 200, answer.read()
        yield _events(answer)


def _events(answer: httpx.Response) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    event = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            event = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield event, json.loads(line.removeprefix("data: "))


def publish(server: RunningServer, dataset: str, *records: dict[str, Any]) -> None:
    server.admin.post(f"/v1/datasets/{dataset}/records", json=list(records)).raise_for_status()


@pytest.mark.spark
def test_tap_opens_with_present_records_and_continues_with_new_ones(city: RunningServer) -> None:
    publish(city, "People", {"name": "ada", "lat": 1.0, "lon": 1.0}, {"name": "ada", "lat": 2.0, "lon": 2.0})
    with tapping(city, "people") as events:
        assert next(events) == ("opening", [{"name": "ada", "lat": 2.0, "lon": 2.0}])
        publish(city, "People", {"name": "bob", "lat": 3.0, "lon": 3.0})
        assert next(events) == ("records", [{"name": "bob", "lat": 3.0, "lon": 3.0}])
    with tapping(city, "Shelters") as events:
        event, rows = next(events)
        assert event == "opening" and [row["name"] for row in rows] == ["School", "Hall"]
        assert "_tocsin_version" not in rows[0]
    assert city.admin.get("/v1/datasets/Nothing/tap").status_code == 404
    publisher = city.client(city.token_for("publish:People"))
    assert publisher.get("/v1/datasets/People/tap").status_code == 403


@pytest.mark.spark
def test_watch_shows_places_positions_channels_and_events_of_the_cluster(city: RunningServer, state: Path) -> None:
    publish(city, "People", {"name": "ada", "lat": 60.15, "lon": 24.95})

    async def scenario() -> None:
        async with coordinator(state, cluster=city.url) as running, watching(running) as reader:
            place = await reader.until(Kind.PLACE, note="Hall")
            assert (place.lat, place.lon, place.detail) == (60.2, 25.0, {"dataset": "Shelters", "code": "s2"})
            await reader.until(Kind.POSITION, subscriber="ada", lat=60.15)
            cluster = await reader.until(Kind.CLUSTER)
            assert cluster.detail is not None and cluster.detail["ready"] is True
            assert cluster.detail["spark"]["master"] == "local[2]"
            channel = await reader.until(Kind.CHANNEL, channel="OfKind")
            assert channel.detail is not None and "query" not in channel.detail
            record = {"id": "r1", "kind": "fire", "severity": 4, "lat": 60.16, "lon": 24.96}
            await asyncio.to_thread(publish, city, "Reports", record)
            fire = await reader.until(Kind.EVENT, note="fire")
            assert fire.detail == {"dataset": "Reports", "severity": 4, "id": "r1"}
            async with watching(running) as later:
                await later.until(Kind.TICK)
                kinds = {row.kind for row in later.rows}
                assert {"place", "position", "channel", "cluster", "event"} <= kinds, "a picture has all of them"
            relayed = await running.admin.get("/v1/cluster/channels/OfKind")
            assert relayed.status_code == 200 and relayed.json()["name"] == "OfKind"
            missing = await running.admin.get("/v1/cluster/channels/Nothing")
            assert missing.status_code == 404 and missing.json()["error"]["code"] == "unknown_channel"
            refused = await running.admin.get("/v1/cluster/subscriptions", params={"limit": 0})
            assert refused.status_code == 400, "the query and the refusal are passed on"
            unprivileged = running.client(await running.token_for("register"))
            assert (await unprivileged.get("/v1/cluster/datasets")).status_code == 403

    asyncio.run(scenario())


@pytest.mark.spark
def test_datasets_tap_command_prints_records(city: RunningServer) -> None:
    from typer.testing import CliRunner

    from tocsin.cli.main import make_app

    publish(city, "Reports", {"id": "printed", "kind": "flood", "lat": 1.0, "lon": 2.0})
    common = ["--url", city.url, "--token", city.token]
    shown = CliRunner().invoke(make_app(), ["datasets", "tap", "Reports", "--count", "1", *common])
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()  # the server logs to the same output
    [record] = [line for line in lines if line.startswith("{") and '"event"' not in line]
    assert set(json.loads(record)) >= {"id", "kind", "lat", "lon"}
    listed = CliRunner().invoke(make_app(), ["datasets", *common, "--json"])
    assert {dataset["name"] for dataset in json.loads(listed.stdout.splitlines()[-1])["datasets"]} == {
        "Reports",
        "People",
        "Shelters",
    }
