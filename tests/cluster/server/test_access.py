"""Nobody passes without a token, and nobody goes further than its scopes."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

from tests.cluster.server.conftest import RunningServer
from tocsin.cluster.server.routes import ClusterContext, make_app, make_routes
from tocsin.cluster.server.settings import ClusterProcessSettings

pytestmark = pytest.mark.spark


def routes(server: RunningServer) -> list[tuple[str, str]]:
    """(method, path) of everything the API describes under /v1, with something in the place of each name."""
    found = []
    for template, methods in make_routes(server.server.context).openapi()["paths"].items():
        path = re.sub(r"\{\w+\}", "Reports", template.replace("{identity}", "0" * 32))
        found += [(method.upper(), path) for method in methods if path.startswith("/v1")]
    assert len(found) >= 20, found
    return found


def body_for(path: str) -> dict[str, object] | None:
    known: dict[str, dict[str, object]] = {
        "/v1/applications": {"text": ""},
        "/v1/subscriptions": {"channel": "ReportsOfKind", "parameters": []},
        "/v1/subscriptions/delete": {"channel": "ReportsOfKind", "subscriptions": []},
        "/v1/results": {"channel": "ReportsOfKind", "subscriptions": {}},
        "/v1/tokens": {"name": "x", "scopes": ["read"]},
    }
    return known.get(path)


def test_every_route_is_closed_to_strangers(server: RunningServer) -> None:
    known = routes(server)
    for client in (server.client(None), server.client("tocsin_" + "x" * 43), server.client("x")):
        for method, path in known:
            answer = client.request(method, path, json=body_for(path))
            assert answer.status_code == 401, (method, path)
            assert answer.json()["error"]["code"] == "unauthenticated"
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_every_route_asks_for_a_scope(server: RunningServer) -> None:
    """A valid token that is good for something else opens none of them."""
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
def test_a_scope_opens_what_it_says(server: RunningServer, scope: str, allowed: str, forbidden: str) -> None:
    client = server.client(server.token_for(scope))
    assert client.get(allowed).status_code in (200, 404)
    assert client.get(forbidden).status_code == 403


def test_an_expired_token_is_nobodys(server: RunningServer) -> None:
    token = server.token_for("read", days=1e-9)
    answer = server.client(token).get("/v1/channels")
    assert answer.status_code == 401 and "expired" in answer.json()["error"]["message"]


def test_a_revoked_token_is_nobodys(server: RunningServer) -> None:
    made = server.admin.post("/v1/tokens", json={"name": "guest", "scopes": ["read"]}).json()
    client = server.client(made["token"])
    assert client.get("/v1/channels").status_code == 200
    listed = server.admin.get("/v1/tokens")
    assert made["id"] in listed.text and made["token"] not in listed.text
    assert server.admin.delete(f"/v1/tokens/{made['id']}").status_code == 200
    assert client.get("/v1/channels").status_code == 401
    assert server.admin.delete(f"/v1/tokens/{made['id']}").status_code == 404


def test_a_token_may_come_in_the_query_for_browsers(server: RunningServer) -> None:
    assert server.client(None).get("/v1/channels", params={"access_token": server.token}).status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "", "scopes": ["read"]},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "scopes": ["read"], "days": -1},
    ],
)
def test_a_token_that_makes_no_sense_is_refused(server: RunningServer, wrong: dict[str, object]) -> None:
    assert server.admin.post("/v1/tokens", json=wrong).status_code == 400


def test_health_is_open_and_metrics_are_on_loopback(server: RunningServer) -> None:
    stranger = server.client(None)
    assert stranger.get("/healthz").json() == {"alive": True}
    assert stranger.get("/readyz").json() == {"ready": True, "reasons": []}
    metrics = stranger.get("/metrics").text
    for name in (
        "tocsin_backlog_bytes", "tocsin_dataset_version", "tocsin_executions_total", "tocsin_executions_missed_total",
        "tocsin_subscriptions", "tocsin_announcements_sequence", "tocsin_http_requests_total",
    ):  # fmt: skip
        assert f"\n{name}{{" in metrics or f"\n{name} " in metrics, name


def test_metrics_need_a_token_beyond_loopback(server: RunningServer) -> None:
    context = ClusterContext(
        server.server.process, server.server.metrics, ClusterProcessSettings(host="0.0.0.0", insecure=True)
    )
    context.tokens = server.server.context.tokens
    transport = httpx.ASGITransport(make_app(context))

    async def status(token: str | None) -> int:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.get("/metrics", headers=headers)).status_code

    assert asyncio.run(status(None)) == 401
    assert asyncio.run(status(server.token_for("publish:*"))) == 403
    assert asyncio.run(status(server.token_for("read"))) == 200


def test_what_is_not_there_is_said_in_the_same_form(server: RunningServer) -> None:
    for answer, status in (
        (server.admin.get("/v1/nowhere"), 404),
        (server.admin.get("/nowhere"), 404),
        (server.admin.put("/v1/channels"), 405),
        (server.admin.get("/v1/channels/Nobody"), 404),
        (server.admin.get("/v1/executions?limit=many"), 400),
    ):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"code", "message"}


def test_the_api_describes_itself(server: RunningServer) -> None:
    described = server.admin.get("/v1/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    assert "/v1/datasets/{name}/records" in described["paths"]
    wanted = described["paths"]["/v1/subscriptions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(wanted["required"]) == {"channel", "parameters"}
