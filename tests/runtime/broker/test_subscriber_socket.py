"""Sessions over WebSocket, with a broker process and an emulated data cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from tests.runtime.broker.running_broker import broker_with_emulated_cluster, row, token, until


def test_identical_subscriptions_are_requested_and_fetched_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster):
            async with broker.session("ann") as ann, broker.session("bob") as bob:
                held, other = await ann.subscribe(), await bob.subscribe()
                assert held["subscription"] == other["subscription"]
                assert cluster.requests == ["subscribe"]
                await until(lambda: broker.core._fetches.idle)
                before = cluster.fetches
                cluster.execute("Reports", {held["subscription"]: [row(1), row(2)]})
                assert await ann.results(2) == await bob.results(2) == [1, 2]
                assert cluster.fetches == before + 1
                assert (await ann.ask("unsubscribe", subscription=held["subscription"]))["type"] == "unsubscribed"
                assert cluster.held["b1"] == {held["subscription"]}
                assert (await bob.ask("unsubscribe", subscription=held["subscription"]))["type"] == "unsubscribed"
                await until(lambda: not cluster.held["b1"])
            await until(lambda: broker.core.idle)

    asyncio.run(scenario())


def test_returning_subscriber_gets_missed_results_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster):
            async with broker.session("ann") as ann:
                held = await ann.subscribe()
                cluster.execute("Reports", {held["subscription"]: [row(1)]})
                cursor = (await ann.push("result"))["cursor"]
            for number in range(2, 6):
                cluster.execute("Reports", {held["subscription"]: [row(number)]})
            async with broker.session("ann", resume={held["subscription"]: cursor}) as ann:
                assert await ann.results(4) == [2, 3, 4, 5]
                recovered = await ann.push("recovered")
                assert recovered["recovered"] is True
                cluster.execute("Reports", {held["subscription"]: [row(6)]})
                assert await ann.results(1) == [6]

    asyncio.run(scenario())


def test_results_evicted_from_the_cache_come_from_the_data_cluster(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path, cache_bytes=2_000) as (broker, cluster):
            async with broker.session("bob") as bob, broker.session("ann") as ann:
                held = await ann.subscribe()
                await bob.subscribe()
                for number in range(20):
                    cluster.execute("Reports", {held["subscription"]: [row(number, 300)]})
                assert await bob.results(20) == await ann.results(20) == list(range(20))
            async with broker.session("ann", resume={held["subscription"]: held["cursor"]}) as ann:
                assert await ann.results(20) == list(range(20))
                assert (await ann.push("recovered"))["recovered"] is True

    asyncio.run(scenario())


def test_expired_results_are_a_gap_and_an_incomplete_recovery(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path, cache_bytes=1) as (broker, cluster):
            async with broker.session("ann") as ann:
                held = await ann.subscribe()
                await until(lambda: broker.core._fetches.idle)
            cluster.execute("Reports", {held["subscription"]: [row(1)]})
            await until(lambda: not broker.core.state.cache.used_bytes and cluster.fetches >= 2)
            cluster.expire("Reports")
            cluster.execute("Reports", {held["subscription"]: [row(2)]})
            async with broker.session("ann", resume={held["subscription"]: held["cursor"]}) as ann:
                assert (await ann.push("gap"))["subscription"] == held["subscription"]
                assert await ann.results(1) == [2]
                assert (await ann.push("recovered"))["recovered"] is False

    asyncio.run(scenario())


def test_results_wait_while_the_data_cluster_is_unreachable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster), broker.session("ann") as ann:
            held = await ann.subscribe()
            cluster.away = True
            await cluster.hang_up()
            for number in range(3):
                cluster.execute("Reports", {held["subscription"]: [row(number)]})
            await asyncio.sleep(0.3)
            cluster.away = False
            assert await ann.results(3) == [0, 1, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize("protocol", [None, "tocsin.json", "tocsin.msgpack", "cloudevents.json"])
def test_every_subprotocol_carries_every_message(tmp_path: Path, protocol: str | None) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path) as (broker, cluster),
            broker.session("ann", protocol=protocol) as ann,
        ):
            assert ann.socket.subprotocol == protocol
            held = await ann.subscribe()
            cluster.execute("Reports", {held["subscription"]: [row(7)]})
            result = await ann.push("result")
            assert result["result"] == {"n": 7, "text": ""} and result["channel"] == "Reports"
            answer = await ann.ask("ack", cursors={held["subscription"]: result["cursor"]})
            assert answer["type"] == "acked"
            listed = await ann.ask("list")
            assert listed["subscriptions"][0]["parameters"] == {"kind": "fire"}
            assert (await ann.ask("ping"))["at_s"] > 0

    asyncio.run(scenario())


def test_new_login_replaces_the_old_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path) as (broker, _),
            broker.session("ann") as old,
            broker.session("ann") as new,
        ):
            assert (await old.push("closing"))["code"] == "replaced"
            with pytest.raises(ConnectionClosed) as closed:
                await old.socket.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4001
            assert (await new.ask("ping"))["type"] == "pong"

    asyncio.run(scenario())


def test_session_ends_when_its_token_expires(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, _), broker.connection() as ann:
            short = token("ann", lifetime_s=1)
            assert (await ann.ask("login", token=short))["type"] == "logged_in"
            assert (await ann.push("closing"))["code"] == "expired"

    asyncio.run(scenario())


def test_idle_session_receives_progress(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path, progress_s=0.5) as (broker, cluster),
            broker.session("ann") as ann,
        ):
            held = await ann.subscribe()
            cluster.execute("Reports", {held["subscription"]: [row(1)]})
            cursor = (await ann.push("result"))["cursor"]
            while not (progress := await ann.push("progress"))["channels"]:
                pass
            assert int(progress["channels"]["Reports"].split("-")[1]) >= int(cursor.split("-")[1])

    asyncio.run(scenario())
