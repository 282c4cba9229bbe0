"""Requests need a valid token, and the token needs the scope of the route."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.types import Receive, Scope, Send

from tests.cluster.server.conftest import RunningServer, StartServer
from tocsin.cluster.catalog import tables
from tocsin.cluster.server.routes import ClusterContext, authentication, make_app, make_routes
from tocsin.cluster.server.server import KEYS_FILE
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.database.database import Database
from tocsin.database.formats import StoredFormat
from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.stack.supervisor import free_ports
from tocsin.wire.errors import TocsinError

pytestmark = pytest.mark.spark


def routes(server: RunningServer) -> list[tuple[str, str]]:
    """(method, path) of every route under /v1 of the OpenAPI document, with a value for each name."""
    described = []
    for template, methods in make_routes(server.server.context).openapi()["paths"].items():
        path = re.sub(r"\{\w+\}", "Reports", template.replace("{identity}", "0" * 32))
        described += [(method.upper(), path) for method in methods if path.startswith("/v1")]
    assert len(described) >= 20, described
    return described


def body_for(path: str) -> dict[str, object] | None:
    known: dict[str, dict[str, object]] = {
        "/v1/applications": {"text": ""},
        "/v1/subscriptions": {"channel": "ReportsOfKind", "parameters": []},
        "/v1/subscriptions/delete": {"channel": "ReportsOfKind", "subscriptions": []},
        "/v1/results": {"channel": "ReportsOfKind", "subscriptions": {}},
        "/v1/results/together": {"requests": []},
        "/v1/tokens": {"name": "x", "scopes": ["read"]},
    }
    return known.get(path)


def test_every_route_refuses_requests_without_a_valid_token(server: RunningServer) -> None:
    known = routes(server)
    for client in (server.client(None), server.client("tocsin_" + "x" * 43), server.client("x")):
        for method, path in known:
            answer = client.request(method, path, json=body_for(path))
            assert answer.status_code == 401, (method, path)
            assert answer.json()["error"]["code"] == "unauthenticated"
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_every_route_refuses_a_token_of_another_scope(server: RunningServer) -> None:
    client = server.client(server.token_for("publish:SomethingElse"))
    for method, path in routes(server):
        query = {"channel": "ReportsOfKind", "subscription": "0" * 32} if method == "GET" else {}
        answer = client.request(method, path, params=query, json=body_for(path))
        assert answer.status_code == 403, (method, path, answer.text)
        assert answer.json()["error"]["code"] == "forbidden"


@pytest.mark.parametrize(
    ("scope", "allowed", "forbidden"),
    [
        ("read", "/v1/channels", "/v1/tokens"),
        ("read", "/v1/rates?channel=Counted", "/v1/brokers/b1/announcements"),
        ("broker:b1", "/v1/subscriptions?broker=b1", "/v1/subscriptions?broker=b2"),
        ("subscribe", "/v1/results?channel=Counted&subscription=", "/v1/datasets"),
    ],
)
def test_scope_opens_its_own_routes_only(server: RunningServer, scope: str, allowed: str, forbidden: str) -> None:
    client = server.client(server.token_for(scope))
    assert client.get(allowed).status_code in (200, 404)
    assert client.get(forbidden).status_code == 403


def test_author_may_declare_and_drop_but_not_administer(server: RunningServer) -> None:
    author = server.client(server.token_for("author"))
    text = "CREATE STREAM DATASET Drafts (id STRING);"
    assert author.post("/v1/applications", json={"text": text}).status_code == 200
    assert author.post("/v1/applications", json={"text": "DROP DATASET Drafts;"}, params={"dry_run": True}).is_success
    assert author.delete("/v1/datasets/Drafts").status_code == 200
    for method, path in (("GET", "/v1/tokens"), ("POST", "/v1/channels/Counted/execute"), ("GET", "/v1/subscriptions")):
        assert author.request(method, path).status_code == 403, path
    for scopes in (["read"], ["subscribe"], ["publish:*"], ["broker:b1"]):
        other = server.client(server.token_for(*scopes))
        assert other.post("/v1/applications", json={"text": text}).status_code == 403
        assert other.delete("/v1/channels/Counted").status_code == 403


def test_expired_token_is_refused(server: RunningServer) -> None:
    token = server.token_for("read", days=1e-9)
    answer = server.client(token).get("/v1/channels")
    assert answer.status_code == 401 and "expired" in answer.json()["error"]["message"]


def test_revoked_token_is_refused(server: RunningServer) -> None:
    made = server.admin.post("/v1/tokens", json={"name": "guest", "scopes": ["read"]}).json()
    client = server.client(made["token"])
    assert client.get("/v1/channels").status_code == 200
    listed = server.admin.get("/v1/tokens")
    assert made["id"] in listed.text and made["token"] not in listed.text
    assert server.admin.delete(f"/v1/tokens/{made['id']}").status_code == 200
    assert client.get("/v1/channels").status_code == 401
    assert server.admin.delete(f"/v1/tokens/{made['id']}").status_code == 404


def test_token_in_the_query_is_accepted_for_event_streams_only(server: RunningServer) -> None:
    client, query = server.client(None), {"access_token": server.token}
    assert client.get("/v1/channels", params=query).status_code == 401
    path, headers = "/v1/brokers/b/announcements", {"Accept": "text/event-stream"}
    with client.stream("GET", path, params=query, headers=headers) as stream:
        assert stream.status_code == 200
    with client.stream("GET", path, params=query) as stream:
        assert stream.status_code == 401


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "", "scopes": ["read"]},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "scopes": ["read"], "days": -1},
    ],
)
def test_token_request_with_wrong_values_is_refused(server: RunningServer, wrong: dict[str, object]) -> None:
    assert server.admin.post("/v1/tokens", json=wrong).status_code == 400


def test_health_needs_no_token_and_metrics_name_every_part(server: RunningServer) -> None:
    anonymous = server.client(None)
    assert anonymous.get("/metrics").status_code == 401
    assert anonymous.get("/healthz").json() == {"alive": True}
    assert anonymous.get("/readyz").json() == {"ready": True, "reasons": []}
    metrics = server.client(server.token_for("read")).get("/metrics").text
    for name in (
        "tocsin_backlog_bytes",
        "tocsin_dataset_version",
        "tocsin_executions_total",
        "tocsin_executions_missed_total",
        "tocsin_subscriptions",
        "tocsin_announcements_sequence",
        "tocsin_http_requests_total",
    ):
        assert f"\n{name}{{" in metrics or f"\n{name} " in metrics, name


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_open_metrics_need_a_token_beyond_loopback(server: RunningServer, host: str) -> None:
    settings = ClusterProcessSettings(host=host, insecure=True, open_metrics=True)
    context = ClusterContext(server.server.process, server.server.metrics, settings)
    context.tokens = server.server.context.tokens
    transport = httpx.ASGITransport(make_app(context))

    async def status(token: str | None) -> int:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.get("/metrics", headers=headers)).status_code

    assert asyncio.run(status(None)) == (200 if host == "127.0.0.1" else 401)
    assert asyncio.run(status(server.token_for("publish:*"))) == (200 if host == "127.0.0.1" else 403)
    assert asyncio.run(status(server.token_for("read"))) == 200


def test_every_error_has_the_same_form(server: RunningServer) -> None:
    for answer, status in (
        (server.admin.get("/v1/nowhere"), 404),
        (server.admin.get("/nowhere"), 404),
        (server.admin.put("/v1/channels"), 405),
        (server.admin.get("/v1/channels/Unknown"), 404),
        (server.admin.get("/v1/executions?limit=many"), 400),
    ):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"code", "message"}


def test_openapi_document_describes_the_routes(server: RunningServer) -> None:
    described = server.admin.get("/v1/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    assert "/v1/datasets/{name}/records" in described["paths"]
    schema = described["paths"]["/v1/subscriptions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) == {"channel", "parameters"}


def test_signed_token_gets_not_ready_while_keys_are_unreachable(start_server: StartServer, tmp_path: Path) -> None:
    signer = Signer(Ed25519PrivateKey.generate())
    token = signer.sign("ada", ["admin"], now_s=time.time(), identity="t", lifetime_s=None)
    settings = {"root": tmp_path, "keys": f"http://127.0.0.1:{free_ports(1)[0]}/v1/keys"}
    server = start_server(**settings)
    answer = server.client(token).get("/v1/channels")
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "not_ready"
    assert server.client("tocsin_" + "x" * 43).get("/v1/channels").status_code == 401
    server.stop()

    # The keys that the data cluster fetched last are used at the next start.
    (tmp_path / "state" / KEYS_FILE).write_bytes(json.dumps(signer.jwks()).encode())
    server = start_server(**settings)
    assert server.client(token).get("/v1/channels").status_code == 200
    foreign = Signer(Ed25519PrivateKey.generate()).sign("eve", ["admin"], now_s=0.0, identity="e", lifetime_s=None)
    assert server.client(foreign).get("/v1/channels").status_code == 503


def test_catalog_on_a_full_disk_is_explained_with_503(tmp_path: Path) -> None:
    """SQLite itself refuses the write; the answer says why and when to try again."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.sqlite'}", StoredFormat("catalog", tables.schema))

    async def write(_scope: Scope, _receive: Receive, _send: Send) -> None:
        with database.write() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")  # the present size: no page can be added
            values = {"name": "x", "value": "y" * 1_000_000}
            connection.execute(tables.facts.insert().values(**values))

    async def ask() -> None:
        await authentication._explaining(write)({"type": "http", "path": "/v1/subscriptions"}, None, None)  # type: ignore[arg-type]

    with pytest.raises(TocsinError, match="database or disk is full") as raised:
        asyncio.run(ask())
    assert raised.value.code.status == 503 and raised.value.retry_after_s
    database.close()
