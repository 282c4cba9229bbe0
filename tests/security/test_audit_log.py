"""The audit log: user, action, object, endpoint and outcome as JSON lines, bounded, without secrets."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.runtime.broker.running_broker import broker_with_emulated_cluster, token
from tests.runtime.coordinator.harness import coordinator
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.http import audit
from tocsin.runtime.http.audit import AuditLog, open_audit_log
from tocsin.runtime.http.settings import load_settings
from tocsin.wire.errors import TocsinError

FIELDS = ("user", "action", "object", "endpoint", "outcome")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def told(path: Path) -> list[tuple[Any, ...]]:
    return [tuple(line[name] for name in FIELDS) for line in lines(path)]


def test_coordinator_records_changes_and_refusals(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "audit.jsonl"

    async def scenario() -> list[str]:
        async with coordinator(tmp_path / "state", audit=str(log)) as running:
            user = (await running.admin.post("/v1/users", json={"user": "ann"})).json()["token"]
            await running.admin.get("/v1/brokers")
            await running.client(user).get("/v1/brokers", params={"access_token": "in-a-query"})
            await running.client("forged").delete("/v1/users/ann")
            made = (await running.admin.post("/v1/tokens", json={"subject": "bob", "scopes": ["read"]})).json()["token"]
            await running.admin.post("/v1/revocations", json={"users": ["bob"]})
            await running.client(user).delete("/v1/users/ann")
            return [user, made, running.token, "in-a-query"]

    secrets = asyncio.run(scenario())
    administrator = "first-administrator"
    assert told(log) == [
        (administrator, "register_user", "/v1/users", "POST /v1/users", "ok"),
        ("ann", "list_brokers", "/v1/brokers", "GET /v1/brokers", "forbidden"),
        (None, "delete", "/v1/users/ann", "DELETE /v1/users/ann", "unauthenticated"),
        (administrator, "create_token", "bob", "POST /v1/tokens", "ok"),
        (administrator, "revoke", "bob", "POST /v1/revocations", "ok"),
        ("ann", "delete_user", "/v1/users/ann", "DELETE /v1/users/{user}", "ok"),
    ]
    text = log.read_text(encoding="utf-8")
    assert not any(secret in text for secret in secrets)
    assert log.stat().st_mode & 0o077 == 0, "only the server's user may read it"
    assert all(line["part"] == "coordinator" and line["at"].endswith("Z") for line in lines(log))


def test_broker_records_logins_and_subscriptions(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"

    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path, audit=str(log)) as (broker, _):
            async with broker.session("ann") as ann:
                held = await ann.subscribe("fire")
                await ann.ask("ping")
                await ann.ask("subscribe", channel="Nothing", parameters={})
                await ann.ask("unsubscribe", subscription=held["subscription"])
            async with broker.connection() as stranger:
                assert (await stranger.ask("login", token="forged"))["type"] == "refused"
            headers = {"Authorization": f"Bearer {token('bob', 'subscribe:Other')}"}
            async with httpx.AsyncClient(base_url=broker.url, headers=headers) as bob:
                body = {"channel": "Reports", "parameters": {"kind": "fire"}}
                assert (await bob.post("/v1/subscriptions", json=body)).status_code == 403

    asyncio.run(scenario())
    recorded = told(log)
    assert [line[:3] + line[4:] for line in recorded if line[3] == "session"] == [
        ("ann", "login", "session", "ok"),
        ("ann", "subscribe", "Reports", "ok"),
        ("ann", "subscribe", "Nothing", "unknown_channel"),
        ("ann", "unsubscribe", recorded[3][2], "ok"),
        (None, "login", "session", "unauthenticated"),
    ]
    assert ("bob", "subscribe", "Reports", "POST /v1/subscriptions", "forbidden") in recorded


def test_log_is_bounded_by_rotation(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, "test", limit_bytes=2_000, files=3)
    for number in range(200):
        log.record("ann", "subscribe", f"object {number} " + "x" * 500, "session", "ok")
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(file.stat().st_size <= 2_000 for file in files)
    assert lines(path)[-1]["object"].startswith("object 199 "), "long texts are cut, and the newest line is last"
    again = AuditLog(path, "test", limit_bytes=2_000, files=3)
    again.record("ann", "login", "session", "session", "ok")
    again.close()
    assert lines(path)[-1]["action"] == "login"


def test_lines_that_come_during_the_last_write_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "test", limit_bytes=1 << 20, files=2)
    is_writing, may_end, write = threading.Event(), threading.Event(), log._write_waiting

    def slow() -> None:
        write()
        is_writing.set()
        may_end.wait(60)

    monkeypatch.setattr(log, "_write_waiting", slow)
    log.record("ann", "subscribe", "first", "session", "ok")
    assert is_writing.wait(60)
    log.record("ann", "subscribe", "last", "session", "ok")
    closing = threading.Thread(target=log.close)
    closing.start()
    while not log._closing:
        pass
    may_end.set()
    closing.join()
    assert [line["object"] for line in lines(tmp_path / "audit.jsonl")] == ["first", "last"]


def test_slow_disk_delays_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_WAITING", 50)
    log = AuditLog(tmp_path / "audit.jsonl", "test", limit_bytes=1 << 20, files=2)
    released, write = threading.Event(), log._write_waiting

    def stalled() -> None:
        released.wait(60)
        write()

    monkeypatch.setattr(log, "_write_waiting", stalled)
    began_s = time.monotonic()
    for number in range(200):
        log.record("ann", "subscribe", str(number), "session", "ok")
    assert time.monotonic() - began_s < 30, "recording does not wait for the disk, which stalls for a minute"
    released.set()
    log.close()
    *_, last = lines(tmp_path / "audit.jsonl")
    assert last["action"] == "lines lost" and last["lines"] >= 100


def test_process_without_a_writable_audit_log_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = load_settings(BrokerSettings, {"keys": __file__, "audit": str(tmp_path / "file" / "audit.jsonl")}, {})
    with pytest.raises(TocsinError, match="audit: cannot write"):
        open_audit_log(settings, "broker")
