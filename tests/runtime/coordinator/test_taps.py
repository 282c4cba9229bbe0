"""Looking into a real data cluster: taps of its datasets, and what a coordinator shows of it to those who watch."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.server.conftest import RunningServer, StartServer
from tests.runtime.coordinator.harness import coordinator
from tests.runtime.coordinator.test_watching import watching
from tocsin.cluster.feed.tap import RecordRing, TapReader
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema
from tocsin.model.trace import Kind
from tocsin.runtime.coordinator.server import KEY_FILE
from tocsin.runtime.http.credentials import Signer

CITY = """
CREATE STREAM DATASET Reports (id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE) KEY (id) RETAIN 1 DAY;
CREATE KEYED DATASET People (name STRING, lat DOUBLE, lon DOUBLE) KEY (name);
CREATE STATIC DATASET Shelters FROM 'shelters.csv';
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.id FROM NEW Reports r WHERE r.kind = :kind;
"""


def reader(kind: DatasetKind, ring: RecordRing) -> TapReader:
    schema = Schema.of(id="STRING", n="INT")
    return TapReader(Dataset(DatasetName("D"), kind, schema, ("id",)), ring)


def lines(*records: tuple[str, int]) -> bytes:
    return b"\n".join(json.dumps({"id": name, "n": number}).encode() for name, number in records)


def numbers(records: list[bytes]) -> list[int]:
    return [json.loads(record)["n"] for record in records]


def test_a_stream_is_shown_from_its_last_records_on_and_the_newest_when_there_are_too_many() -> None:
    ring = RecordRing()
    for number in range(0, 300, 3):
        ring.add(lines(("a", number), ("b", number + 1), ("c", number + 2)))
    tap = reader(DatasetKind.STREAM, ring)
    assert numbers(tap.opening()) == list(range(100, 300))
    assert tap.news(5) == []
    ring.add(lines(*(("a", number) for number in range(300, 310))))
    ring.add(lines(("a", 310)))
    assert numbers(tap.news(5)) == [306, 307, 308, 309, 310]
    assert tap.news(5) == []


def test_of_keys_the_newest_record_is_shown_and_nobody_waits_for_ever() -> None:
    ring = RecordRing()
    ring.add(lines(("ada", 1), ("bob", 2), ("ada", 3)))
    tap = reader(DatasetKind.KEYED, ring)
    assert numbers(tap.opening()) == [3, 2]
    ring.add(lines(("ada", 4), ("bob", 5), ("eve", 6)))
    assert numbers(tap.news(1)) == [4]
    ring.add(lines(("ada", 7), ("bob", 8)))
    assert numbers(tap.news(1)) == [8], "who waits longest is told first, and the newest of it"
    assert numbers(tap.news(9)) == [6, 7]


def test_what_is_kept_for_lookers_is_bounded() -> None:
    ring = RecordRing(limit_bytes=100)
    for number in range(1000):
        ring.add(lines(("a", number)))
    tap = reader(DatasetKind.STREAM, ring)
    found = numbers(tap.opening())
    assert found == list(range(1000 - len(found), 1000)) and 1 < len(found) < 6
    ring.add(lines(*(("a", number) for number in range(100))))
    found = numbers(tap.news(1000))
    assert found == list(range(100 - len(found), 100)) and 1 < len(found) < 6, "a body beyond the limit is cut"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the coordinator whose tokens the data cluster trusts."""
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
    applied = running.admin.post("/v1/applications", json={"text": CITY, "folder": str(folder)})
    assert applied.status_code == 200, applied.text
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
def test_a_tap_opens_with_what_is_there_and_goes_on_with_what_comes(city: RunningServer) -> None:
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
    stranger = city.client(city.token_for("publish:People"))
    assert stranger.get("/v1/datasets/People/tap").status_code == 403


@pytest.mark.spark
def test_whoever_watches_the_coordinator_sees_the_city(city: RunningServer, state: Path) -> None:
    publish(city, "People", {"name": "ada", "lat": 60.15, "lon": 24.95})

    async def scenario() -> None:
        async with coordinator(state, cluster=city.url) as running, watching(running) as seen:
            place = await seen.until(Kind.PLACE, note="Hall")
            assert (place.lat, place.lon, place.detail) == (60.2, 25.0, {"dataset": "Shelters", "code": "s2"})
            await seen.until(Kind.POSITION, subscriber="ada", lat=60.15)
            cluster = await seen.until(Kind.CLUSTER)
            assert cluster.detail is not None and cluster.detail["ready"] is True
            assert cluster.detail["spark"]["master"] == "local[2]"
            channel = await seen.until(Kind.CHANNEL, channel="OfKind")
            assert channel.detail is not None and "query" not in channel.detail
            record = {"id": "r1", "kind": "fire", "severity": 4, "lat": 60.16, "lon": 24.96}
            await asyncio.to_thread(publish, city, "Reports", record)
            fire = await seen.until(Kind.EVENT, note="fire")
            assert fire.detail == {"dataset": "Reports", "severity": 4, "id": "r1"}
            async with watching(running) as later:
                await later.until(Kind.TICK)
                kinds = {row.kind for row in later.rows}
                assert {"place", "position", "channel", "cluster", "event"} <= kinds, "a picture has it all"
            relayed = await running.admin.get("/v1/cluster/channels/OfKind")
            assert relayed.status_code == 200 and relayed.json()["name"] == "OfKind"
            missing = await running.admin.get("/v1/cluster/channels/Nothing")
            assert missing.status_code == 404 and missing.json()["error"]["code"] == "unknown_channel"
            some = await running.admin.get("/v1/cluster/subscriptions", params={"limit": 0})
            assert some.status_code == 400, "the query is passed on, and so is the refusal"
            nobody = running.client(await running.token_for("register"))
            assert (await nobody.get("/v1/cluster/datasets")).status_code == 403, "the data cluster decides"

    asyncio.run(scenario())


@pytest.mark.spark
def test_the_command_prints_what_a_tap_shows(city: RunningServer) -> None:
    from typer.testing import CliRunner

    from tocsin.cli.main import make_app

    publish(city, "Reports", {"id": "printed", "kind": "flood", "lat": 1.0, "lon": 2.0})
    common = ["--url", city.url, "--token", city.token]
    shown = CliRunner().invoke(make_app(), ["datasets", "tap", "Reports", "--count", "1", *common])
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()  # the server logs beside it
    [record] = [line for line in lines if line.startswith("{") and '"event"' not in line]
    assert set(json.loads(record)) >= {"id", "kind", "lat", "lon"}
    listed = CliRunner().invoke(make_app(), ["datasets", *common, "--json"])
    assert {one["name"] for one in json.loads(listed.stdout.splitlines()[-1])["datasets"]} == {
        "Reports",
        "People",
        "Shelters",
    }


def test_lookers_and_publishers_do_not_disturb_each_other() -> None:
    ring = RecordRing(limit_bytes=10_000)
    stop = threading.Event()
    tap, seen = reader(DatasetKind.STREAM, ring), 0

    def publish_on() -> None:
        number = 0
        while not stop.is_set():
            ring.add(lines(("a", number)))
            number += 1

    publishing = threading.Thread(target=publish_on)
    publishing.start()
    last = -1
    while seen < 2_000:
        for number in numbers(tap.news(50)):
            assert number > last
            last, seen = number, seen + 1
    stop.set()
    publishing.join()
