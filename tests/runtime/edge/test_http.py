"""The HTTP API of a root: readings, statements, refusals, and results in the outbox."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.runtime.edge.edge_root import RunningRoot, running_root
from tocsin.model.edge import EdgeNodeId
from tocsin.runtime.edge.codecs import encode_generation
from tocsin.wire.edge_link import LinkBroken, NodeMessage
from tocsin.wire.errors import TocsinError

STREAM = "CREATE EDGE STREAM Readings (meter STRING, ts TIMESTAMP, kwh DOUBLE) TIME ts;"
QUERY = (
    "CREATE EDGE QUERY PerMeter INTO Uses AS SELECT meter, window.start AS since, SUM(kwh) AS total "
    "FROM Readings GROUP BY meter, WINDOW(ts, '10 seconds') ORDER BY since, meter;"
)
FIRST = {"meter": "m1", "ts": "2026-01-01T00:00:01Z", "kwh": 1.5}
SECOND = {"meter": "m1", "ts": "2026-01-01T00:00:02", "kwh": 0.25}
LATER = {"meter": "m1", "ts": "2026-01-01T01:00:12+01:00", "kwh": 4.0}
WINDOW = {"meter": "m1", "since": "2026-01-01T00:00:00Z", "total": 1.75}


def with_root(folder: Path, check: Callable[[RunningRoot], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with running_root(folder, **settings) as root:
            await check(root)

    asyncio.run(run())


async def rows_in_outbox(root: RunningRoot) -> list[Any]:
    entries = (await root.client.get("/v1/edge/results")).json()["entries"]
    return [row for entry in entries for row in entry["rows"]]


def test_readings_are_acknowledged_once_and_windows_reach_the_outbox(tmp_path: Path) -> None:
    async def check(root: RunningRoot) -> None:
        await root.apply(STREAM + QUERY)
        first = await root.publish([FIRST, SECOND], **{"Tocsin-Publisher": "p", "Tocsin-Number": "1"})
        assert first.json() == {"stored_through": 1, "durable_through": 0}
        again = await root.publish([FIRST, SECOND], **{"Tocsin-Publisher": "p", "Tocsin-Number": "1"})
        assert again.json()["stored_through"] == 1
        await root.publish([LATER], **{"Tocsin-Publisher": "p", "Tocsin-Number": "2"})
        status = await root.until(lambda status: status["outbox"] == 1)
        [query] = status["queries"]
        assert (query["dataset"], query["rows"], query["floor"]) == ("Uses", 1, 1_767_225_612_000_000)
        assert await rows_in_outbox(root) == [WINDOW]
        await asyncio.sleep(0.7)  # the floor travels with the next answer to a beat
        latest = await root.publish([LATER], **{"Tocsin-Publisher": "p", "Tocsin-Number": "3"})
        assert latest.json() == {"stored_through": 3, "durable_through": 1}

    with_root(tmp_path, check)


def test_node_without_its_disk_requests_the_batches_that_are_not_durable(tmp_path: Path) -> None:
    """The publisher did not notice the restart, and continues with its next number."""

    async def publish(root: RunningRoot, number: int, readings: list[dict[str, Any]]) -> httpx.Response:
        headers = {"Tocsin-Publisher": "p", "Tocsin-Number": str(number), "Tocsin-Durable": "0"}
        return await root.publish(readings, **headers)

    async def before(root: RunningRoot) -> None:
        await root.apply(STREAM + QUERY)
        for number, reading in ((1, FIRST), (2, SECOND)):
            assert (await publish(root, number, [reading])).is_success

    async def after(root: RunningRoot) -> None:
        reply = await publish(root, 3, [LATER])
        assert reply.status_code == 409 and reply.json()["stored_through"] == 0, reply.text
        for number, reading in ((1, FIRST), (2, SECOND), (3, LATER)):
            assert (await publish(root, number, [reading])).is_success
        await root.until(lambda status: status["outbox"] == 1)
        assert await rows_in_outbox(root) == [WINDOW]

    with_root(tmp_path, before)
    shutil.rmtree(tmp_path / "data" / "log")
    with_root(tmp_path, after)


def test_restarted_root_continues_with_its_log_floors_and_queries(tmp_path: Path) -> None:
    async def before(root: RunningRoot) -> None:
        await root.apply(STREAM + QUERY)
        await root.publish([FIRST])
        await root.publish([LATER])
        await root.until(lambda status: status["outbox"] == 1)

    async def after(root: RunningRoot) -> None:
        await root.publish([{**LATER, "kwh": 0.5}])
        await root.end()
        await root.until(lambda status: status["outbox"] == 2)
        assert [row["total"] for row in await rows_in_outbox(root)] == [1.5, 4.5]

    with_root(tmp_path, before)
    with_root(tmp_path, after)


def test_arrow_readings_are_accepted(tmp_path: Path) -> None:
    async def check(root: RunningRoot) -> None:
        await root.apply(STREAM + QUERY)
        table = pa.table(
            {"kwh": [1.0, 2.0], "ts": ["2026-01-01T00:00:01Z", "2026-01-01T00:00:12Z"], "meter": ["a", "a"]}
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
        path = "/v1/streams/Readings/readings"
        reply = await root.client.post(path, content=sink.getvalue().to_pybytes(), headers=headers)
        assert reply.json()["stored_through"] == 1
        await root.until(lambda status: status["outbox"] == 1)
        assert [row["total"] for row in await rows_in_outbox(root)] == [1.0]
        assert (await root.client.post(path, content=b"no arrow", headers=headers)).status_code == 400

    with_root(tmp_path, check)


def test_wrong_readings_are_refused_with_a_reason(tmp_path: Path) -> None:
    async def check(root: RunningRoot) -> None:
        await root.apply(STREAM)
        for readings, reason in (
            ([{**FIRST, "kwh": "much"}], "kwh"),
            ([{**FIRST, "kw": 1}], "kw"),
            ([{**FIRST, "ts": "yesterday"}], "ts"),
            ([1], "object"),
        ):
            reply = await root.publish(readings)  # type: ignore[arg-type]
            assert reply.status_code == 400 and reason in reply.json()["error"]["message"], reply.text
        unknown = await root.client.post("/v1/streams/Nothing/readings", json=[])
        assert unknown.status_code == 404 and "Nothing" in unknown.text
        for headers in ({"Tocsin-Number": "1"}, {"Tocsin-Publisher": "~root", "Tocsin-Number": "1"},
                        {"Tocsin-Publisher": "p", "Tocsin-Number": "0"},
                        {"Tocsin-Publisher": "p", "Tocsin-Number": "1" * 5_000},
                        {"Tocsin-Publisher": "p", "Tocsin-Number": "1", "Tocsin-Durable": "-1"}):  # fmt: skip
            assert (await root.publish([FIRST], **headers)).status_code == 400
        assert (await root.status())["nodes"][0]["raw_bytes"] == 0

    with_root(tmp_path, check)


def test_wrong_statements_are_refused_with_their_code(tmp_path: Path) -> None:
    async def check(root: RunningRoot) -> None:
        for text, code in (
            ("CREATE EDGE QUERY Q AS SELECT meter FROM Readings", "UNKNOWN_STREAM"),
            (STREAM + "CREATE EDGE QUERY Q AS SELECT meter FROM Readings", "UNORDERED"),
            ("CREATE EDGE QUERY Q AS SELECT SUM(kwh) AS s FROM Readings", "UNBOUNDED"),
            ("CREATE TABLE t (a INT)", "SYNTAX"),
        ):
            reply = await root.apply(text)
            assert reply.status_code == 400 and reply.json()["error"]["message"].startswith(code), reply.text
        assert (await root.client.delete("/v1/edge/queries/Q")).status_code == 404
        await root.apply(QUERY)
        assert (await root.apply(QUERY)).status_code == 409
        assert (await root.client.delete("/v1/edge/queries/PerMeter")).is_success
        assert (await root.status())["queries"] == []

    with_root(tmp_path, check)


def test_secret_of_the_tree_opens_everything_but_health(tmp_path: Path) -> None:
    async def check(root: RunningRoot) -> None:
        async with httpx.AsyncClient(base_url=root.server.address) as stranger:
            assert (await stranger.get("/healthz")).json()["ok"] is True
            for path in ("/v1/edge", "/metrics", "/v1/edge/results"):
                assert (await stranger.get(path)).status_code == 401
                wrong = await stranger.get(path, headers={"Authorization": "Bearer wrong"})
                assert wrong.status_code == 401
        metrics = (await root.client.get("/metrics")).text
        assert "tocsin_edge_generation 1.0" in metrics and "tocsin_edge_nodes_alive 1.0" in metrics

    with_root(tmp_path, check, audit=str(tmp_path / "audit"))
    audited = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert {(line["endpoint"], line["outcome"]) for line in audited} == {
        ("GET /v1/edge", "unauthenticated"),
        ("GET /v1/edge/results", "unauthenticated"),
    }


def test_impossible_transfer_is_refused(tmp_path: Path) -> None:
    async def check(root: RunningRoot) -> None:
        await root.apply(STREAM + QUERY)
        await root.until(lambda status: bool(status["nodes"][0]["operators"]))
        operators = (await root.status())["nodes"][0]["operators"]
        for order, status in (
            ({"operators": operators[:1], "destination": "elsewhere"}, 409),
            ({"operators": ["nothing"], "destination": "root"}, 404),
            ({"operators": [], "destination": "root"}, 404),
        ):
            assert (await root.client.post("/v1/edge/transfers", json=order)).status_code == status

    with_root(tmp_path, check)


def test_second_node_on_one_folder_is_refused(tmp_path: Path) -> None:
    async def check(root: RunningRoot) -> None:
        with pytest.raises(TocsinError, match="another process writes this log"):
            async with running_root(tmp_path):
                pass

    with_root(tmp_path, check)


def test_repeated_generation_leaves_the_connections_of_a_node_alone(tmp_path: Path) -> None:
    async def check(root: RunningRoot) -> None:
        await root.apply(STREAM + QUERY)
        node = root.server.node
        assert node.generation is not None
        peers, generations = node.peers, node.generations
        node.receive(encode_generation(node.generation))
        assert node.peers is peers and node.generations == generations

    with_root(tmp_path, check)


def test_broken_link_is_reported_until_the_next_generation(tmp_path: Path) -> None:
    """The first report is lost if the control connection broke at the same moment."""

    async def check(root: RunningRoot) -> None:
        node = root.server.node
        assert node.generation is not None
        number = node.generation.number
        reported = asyncio.Event()

        def lose(message: NodeMessage) -> None:
            if isinstance(message, LinkBroken):
                lost.append(message)
                if len(lost) == 3:
                    reported.set()

        lost: list[LinkBroken] = []
        send, node._control.send = node._control.send, lose  # type: ignore[method-assign]
        node._on_link_lost(number, EdgeNodeId("leaf"), "the cable was pulled")
        async with asyncio.timeout(10):
            await reported.wait()
        node._control.send = send  # type: ignore[method-assign]
        assert set(lost) == {LinkBroken(number, "leaf")}
        await root.apply(STREAM)
        assert not node._broken

    with_root(tmp_path, check)


def test_small_body_with_huge_columns_is_refused(tmp_path: Path) -> None:
    """A dictionary with one long value, and a million readings that refer to it."""

    async def check(root: RunningRoot) -> None:
        await root.apply(STREAM)
        rows = 1_000_000
        meters = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), ["m" * 100_000])
        table = pa.table({"meter": meters, "ts": pa.array([0] * rows, pa.timestamp("us")), "kwh": pa.nulls(rows)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        body = sink.getvalue().to_pybytes()
        assert len(body) < 1 << 20
        headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
        reply = await root.client.post("/v1/streams/Readings/readings", content=body, headers=headers)
        assert reply.status_code == 413, reply.text
        names = pa.array([f"m{number}" for number in range(20_000)])
        usual = table.set_column(0, "meter", pa.DictionaryArray.from_arrays(pa.array(range(20_000)), names).take(
            pa.array([number % 20_000 for number in range(rows)])
        ))  # fmt: skip
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, usual.schema) as writer:
            writer.write_table(usual)
        reply = await root.client.post(
            "/v1/streams/Readings/readings", content=sink.getvalue().to_pybytes(), headers=headers
        )
        assert reply.is_success, "many readings with names from a dictionary"
        assert (await root.publish([FIRST])).is_success

    with_root(tmp_path, check)
