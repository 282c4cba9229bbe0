"""Tokens name channels and datasets, and the most subscriptions of their user; the broker keeps to it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.runtime.broker.running_broker import broker_with_emulated_cluster, row, token
from tests.runtime.coordinator.harness import coordinator
from tocsin.model.permission import may_subscribe, permits
from tocsin.runtime.http.callers import Caller, is_scope


@pytest.mark.parametrize(
    ("scope", "permitted", "refused"),
    [
        ("subscribe", ["Reports", "x"], []),
        ("subscribe:*", ["Reports", "x"], []),
        ("subscribe:Rep*", ["Reports", "REP", "reports"], ["Re", "xReports", "Other"]),
        ("subscribe:Reports", ["Reports", "reports"], ["Reports2", "Report"]),
        ("publish:*", [], ["Reports"]),
        ("broker:*", [], ["Reports"]),
    ],
)
def test_scope_permits_the_channels_that_it_names(scope: str, permitted: list[str], refused: list[str]) -> None:
    assert is_scope(scope)
    assert all(permits([scope], "subscribe", name) for name in permitted)
    assert not any(permits([scope], "subscribe", name) for name in refused)
    assert may_subscribe([scope]) == scope.startswith("subscribe")


def test_malformed_scopes_are_no_scopes() -> None:
    for text in ("subscribe:", "subscribe:*x", "subscribe:a*b", "subscribe:a b", "subscribes", "publish", "publish:"):
        assert not is_scope(text), text


def test_publisher_is_kept_to_the_datasets_of_its_token() -> None:
    publisher = Caller("1", "meter", frozenset({"publish:Meter*", "publish:Log"}))
    assert publisher.may_publish("MeterReadings") and publisher.may_publish("log")
    assert not publisher.may_publish("Logs") and not publisher.may_publish("Reports")
    assert not publisher.may_subscribe_to("MeterReadings")


def test_broker_refuses_channels_that_the_token_does_not_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, _), AsyncExitStack() as stack:
            narrow = token("ann", "subscribe:Other*")
            subscriber = await stack.enter_async_context(broker.connection())
            assert (await subscriber.ask("login", token=narrow))["type"] == "logged_in"
            refused = await subscriber.ask("subscribe", channel="Reports", parameters={"kind": "fire"})
            assert (refused["type"], refused["code"]) == ("refused", "forbidden")
            headers = {"Authorization": f"Bearer {narrow}"}
            rest = await stack.enter_async_context(httpx.AsyncClient(base_url=broker.url, headers=headers))
            body = {"channel": "reports", "parameters": {"kind": "fire"}}
            assert (await rest.post("/v1/subscriptions", json=body)).status_code == 403
            other = await stack.enter_async_context(broker.connection())
            for scope in ("read", "publish:*", "broker:b1"):
                answer = await other.ask("login", token=token("bob", scope))
                assert (answer["type"], answer["code"]) == ("refused", "forbidden")
                other = await stack.enter_async_context(broker.connection())

    asyncio.run(scenario())


def test_session_gets_no_results_that_its_token_does_not_permit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster):
            async with broker.session("ann") as ann:
                held = await ann.subscribe("fire")
                cluster.execute("Reports", {held["subscription"]: [row(1)]})
                assert await ann.results(1) == [1]
            async with broker.connection() as ann:
                await ann.ask("login", token=token("ann", "subscribe:Other"), resume={})
                cluster.execute("Reports", {held["subscription"]: [row(2)]})
                await ann.ask("ping")
            async with broker.session("ann") as ann:
                cluster.execute("Reports", {held["subscription"]: [row(3)]})
                received = await ann.results(3)
                assert received == [1, 2, 3], "the results waited for a token that permits them"

    asyncio.run(scenario())


def test_token_limits_the_subscriptions_of_its_user(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, _), broker.connection() as ann:
            await ann.ask("login", token=token("ann", most_subscriptions=2))
            for kind in ("fire", "flood"):
                await ann.subscribe(kind)
            refused = await ann.ask("subscribe", channel="Reports", parameters={"kind": "storm"})
            assert (refused["type"], refused["code"]) == ("refused", "too_large")

    asyncio.run(scenario())


def test_coordinator_writes_the_limit_into_users_tokens(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, user_subscriptions=7) as running:
            registered = (await running.admin.post("/v1/users", json={"user": "ann"})).json()["token"]
            body = {"subject": "bob", "scopes": ["subscribe:Alerts*"], "most_subscriptions": 3}
            made = (await running.admin.post("/v1/tokens", json=body)).json()["token"]
            again = (await running.client(made).post("/v1/users", json={"user": "bob"})).json()["token"]
            limits = []
            for text in (registered, made, again):
                claims = await running.server.context.claims(text)
                assert claims is not None
                limits.append((claims.most_subscriptions, sorted(claims.scopes)))
            assert limits == [(7, ["subscribe"]), (3, ["subscribe:Alerts*"]), (3, ["subscribe:Alerts*"])]

    asyncio.run(scenario())
