"""The process that drives channels: overruns, failures and failed queries delay results, but lose none."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.server.conftest import RunningServer, StartServer, until
from tests.cluster.server.test_end_to_end import publish
from tocsin.cluster.server import process as cluster_process
from tocsin.cluster.spark.session import Session

pytestmark = pytest.mark.spark

APPLICATION = """
CREATE STREAM DATASET Reports (report_id STRING, kind STRING) KEY (report_id) RETAIN 7 DAYS;
CREATE REPETITIVE CHANNEL EachSecond (kind STRING) EVERY 1 SECOND AS
  SELECT r.report_id FROM NEW Reports r WHERE r.kind = :kind;
CREATE CONTINUOUS CHANNEL AtOnce (kind STRING) AS
  SELECT r.report_id FROM NEW Reports r WHERE r.kind = :kind;
"""


@pytest.fixture
def driven(start_server: StartServer) -> Iterator[RunningServer]:
    running = start_server()
    applied = running.admin.post("/v1/applications", json={"text": APPLICATION})
    assert applied.status_code == 200, applied.text
    yield running
    running.stop()


def subscribe(server: RunningServer, channel: str) -> dict[str, Any]:
    held: dict[str, Any] = server.admin.post(
        "/v1/subscriptions", json={"channel": channel, "parameters": {"kind": "fire"}}
    ).json()[0]
    return held


def results(server: RunningServer, channel: str, held: dict[str, Any]) -> list[str]:
    query = {"channel": channel, "subscription": held["id"]}
    answer = server.admin.get("/v1/results", params=query, headers={"Accept": "application/x-ndjson"})
    return [json.loads(line)["result"]["report_id"] for line in answer.text.splitlines()]


def test_overrunning_execution_finishes_and_missed_ticks_are_counted(driven: RunningServer) -> None:
    held = subscribe(driven, "EachSecond")
    cluster = driven.server.process.cluster
    execute = cluster.execute
    slow = threading.Event()
    entered = threading.Event()
    at_once: list[int] = []

    def slowly(name: str) -> Any:
        at_once.append(1)
        try:
            if name == "EachSecond" and not slow.is_set():
                assert sum(at_once) <= 2
                entered.set()
                assert slow.wait(30)
            return execute(name)
        finally:
            at_once.pop()

    cluster.execute = slowly  # type: ignore[method-assign]
    assert entered.wait(30)
    publish(driven.admin, {"report_id": "o1", "kind": "fire"}, {"report_id": "o2", "kind": "fire"})
    time.sleep(2.5)  # an overrun takes real time: at least two more ticks pass
    slow.set()
    channel = until(
        lambda: (state := driven.admin.get("/v1/channels/EachSecond").json())["missed_ticks"] >= 2 and state
    )
    assert channel["failures"] == 0
    assert until(lambda: sorted(results(driven, "EachSecond", held)) == ["o1", "o2"])
    publish(driven.admin, {"report_id": "o3", "kind": "fire"})
    assert until(lambda: sorted(results(driven, "EachSecond", held)) == ["o1", "o2", "o3"]), (
        "the channel goes on after the overrun"
    )
    assert 'tocsin_executions_missed_total{channel="EachSecond"}' in driven.admin.get("/metrics").text


def test_failed_execution_is_counted_and_repeated(driven: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_process, "retry_delay_s", lambda failures: 0.05)
    held = subscribe(driven, "AtOnce")
    cluster = driven.server.process.cluster
    execute = cluster.execute
    failures = 0

    def fails_twice(name: str) -> Any:
        nonlocal failures
        if name == "AtOnce" and failures < 2:
            failures += 1
            raise RuntimeError("an executor was lost\nwith a long trace")
        return execute(name)

    cluster.execute = fails_twice  # type: ignore[method-assign]
    publish(driven.admin, {"report_id": "f1", "kind": "fire"})
    assert until(lambda: results(driven, "AtOnce", held) == ["f1"])
    channel = driven.admin.get("/v1/channels/AtOnce").json()
    assert channel["failures"] == 2 and channel["last_error"] == "an executor was lost"


def test_failed_query_is_restarted_and_readiness_shows_it(driven: RunningServer) -> None:
    held = subscribe(driven, "AtOnce")
    publish(driven.admin, {"report_id": "d1", "kind": "fire"})
    assert until(lambda: results(driven, "AtOnce", held) == ["d1"])
    writer = driven.server.process.cluster.dataset("Reports").writer
    add_small_batch = writer.add_small_batch

    def fails(frames: Any) -> None:
        raise RuntimeError("the disk is gone")

    writer.add_small_batch = fails  # type: ignore[method-assign]
    publish(driven.admin, {"report_id": "d2", "kind": "fire"})
    shown = until(lambda: (answer := driven.admin.get("/readyz")).status_code == 503 and answer.json())
    assert shown["reasons"] and "ingestion of Reports" in shown["reasons"][0]
    assert driven.admin.post("/v1/datasets/Reports/records", json=[{"report_id": "d3"}]).status_code == 200
    writer.add_small_batch = add_small_batch  # type: ignore[method-assign]
    assert until(lambda: results(driven, "AtOnce", held) == ["d1", "d2"], 120)
    assert until(lambda: driven.admin.get("/readyz").status_code == 200, 120)


def test_dropped_channel_stops_and_replaced_channel_continues(driven: RunningServer) -> None:
    assert driven.admin.delete("/v1/channels/EachSecond").status_code == 200
    assert driven.admin.get("/v1/channels/EachSecond").status_code == 404
    replaced = APPLICATION[APPLICATION.index("CREATE CONTINUOUS") :].replace("CREATE", "CREATE OR REPLACE")
    replaced = replaced.replace("r.report_id FROM", "r.report_id, r.kind FROM")
    held = subscribe(driven, "AtOnce")
    assert driven.admin.post("/v1/applications", json={"text": replaced}).status_code == 200
    publish(driven.admin, {"report_id": "r1", "kind": "fire"})
    assert until(lambda: results(driven, "AtOnce", held) == ["r1"])


def test_restart_continues_where_the_last_process_stopped(
    start_server: StartServer, tmp_path: Any, spark: Session
) -> None:
    first = start_server(tmp_path)
    first.admin.post("/v1/applications", json={"text": APPLICATION})
    held = subscribe(first, "AtOnce")
    publish(first.admin, {"report_id": "a", "kind": "fire"})
    token = first.token
    assert (tmp_path / "state" / "admin-token").stat().st_mode & 0o777 == 0o600
    first.stop()
    second = start_server(tmp_path)
    assert second.token == "", "the first token exists at the first start only"
    second.admin.headers["Authorization"] = f"Bearer {token}"
    publish(second.admin, {"report_id": "a", "kind": "fire"}, {"report_id": "b", "kind": "fire"})
    assert until(lambda: results(second, "AtOnce", held) == ["a", "b"])
