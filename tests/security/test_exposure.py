"""What other users of the machine and of its network can see: files, tokens in addresses, metrics, long event ids."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.runtime.broker.running_broker import broker_with_emulated_cluster, row, token
from tests.runtime.broker.test_rest import rest
from tocsin.runtime.broker.routes import stream
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.bounded_protocols import HEAD_BYTES
from tocsin.runtime.http.listening import restrict_new_files
from tocsin.runtime.http.settings import load_settings
from tocsin.wire.errors import TocsinError


def open_to_others(folder: Path) -> list[str]:
    """Files and folders that users other than the owner may read."""
    paths = [folder, *folder.rglob("*")]
    return [str(path) for path in paths if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]


def test_server_process_keeps_its_files_from_other_users(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "coordinator"
    command = [sys.executable, "-c", "import os; os.umask(0o022); from tocsin.cli.main import main; main()"]
    command += ["coordinator", "--state", str(folder), "--port", "0", "--json", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["address"]
            assert {"coordinator.sqlite", "signing-key.pem", "admin-token"} <= {path.name for path in folder.iterdir()}
            assert open_to_others(tmp_path / "data") == []
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(("inherited", "kept"), [(0o022, 0o077), (0o000, 0o077), (0o027, 0o027), (0o077, 0o077)])
def test_strict_umask_of_the_operator_is_kept(inherited: int, kept: int) -> None:
    before = os.umask(inherited)
    try:
        restrict_new_files()
        assert os.umask(0) == kept
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("address", "fits"),
    [
        ("http://cluster.example:8571", False),
        ("http://10.0.0.5:8571", False),
        ("ftp://127.0.0.1", False),
        ("http://127.0.0.1:8571", True),
        ("https://cluster.example", True),
    ],
)
def test_coordinator_sends_no_token_unencrypted_over_a_network(address: str, fits: bool) -> None:
    if fits:
        assert load_settings(CoordinatorSettings, {"cluster": address}, {}).cluster == address
    else:
        with pytest.raises(TocsinError, match="cluster"):
            load_settings(CoordinatorSettings, {"cluster": address}, {})
    assert load_settings(CoordinatorSettings, {"cluster": "http://10.0.0.5", "insecure": True}, {}).insecure


def test_token_in_an_address_opens_event_streams_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        query = {"access_token": token("ann")}
        async with (
            broker_with_emulated_cluster(tmp_path) as (broker, _),
            httpx.AsyncClient(base_url=broker.url) as client,
        ):
            for path in ("/v1/ping", "/v1/subscriptions", "/v1/webhook", "/metrics"):
                assert (await client.get(path, params=query)).status_code == 401, path
            assert (await client.post("/v1/logout", params=query)).status_code == 401
            headers = {"Accept": "text/event-stream"}
            async with client.stream("GET", "/v1/stream", params=query, headers=headers) as answer:
                assert answer.status_code == 200

    asyncio.run(scenario())


def test_ids_of_a_stream_with_many_subscriptions_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SHORT_ID", 3)
    monkeypatch.setattr(stream, "MOST_SUBSCRIPTIONS", 10)

    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster), rest(broker) as ann:
            held = []
            for number in range(10):
                body = {"channel": "Reports", "parameters": {"kind": str(number)}}
                held.append((await ann.post("/v1/subscriptions", json=body)).json()["held"]["subscription"])
            cluster.execute("Reports", {held[0]: [row(number) for number in range(5)]})
            results: list[tuple[bool, int]] = []
            last_id = ""
            async with asyncio.timeout(20), ann.stream("GET", "/v1/stream") as answer:
                has_id = False
                async for line in answer.aiter_lines():
                    if line.startswith("id: "):
                        has_id, last_id = True, line.removeprefix("id: ")
                    elif line.startswith("data: ") and '"n":' in line:
                        results.append((has_id, json.loads(line[6:])["result"]["n"]))
                    elif not line:
                        has_id = False
                    if len(results) == 5:
                        break
            assert [number for _, number in results] == list(range(5))
            assert results[-1][0] and not all(with_id for with_id, _ in results)
            cluster.execute("Reports", {held[1]: [row(5)]})
            async with (
                asyncio.timeout(20),
                ann.stream("GET", "/v1/stream", headers={"Last-Event-ID": last_id}) as answer,
            ):
                async for line in answer.aiter_lines():
                    if line.startswith("data: ") and '"n":' in line:
                        assert json.loads(line[6:])["result"]["n"] == 5  # nothing before it comes again
                        break
            body = {"channel": "Reports", "parameters": {"kind": "one more"}}
            await ann.post("/v1/subscriptions", json=body)
            refused = await ann.get("/v1/stream")
            assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")

    asyncio.run(scenario())


def test_longest_id_of_a_stream_fits_into_a_header() -> None:
    longest_cursor = 16 + 10 + 8
    """Bytes of a digest, and of the largest epoch and offset as variable-length numbers."""
    assert stream.MOST_SUBSCRIPTIONS * longest_cursor * 4 / 3 + 2 <= stream._LONGEST_ID < HEAD_BYTES
