"""From a published record to a subscriber's WebSocket, with a real data cluster on Spark and a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cluster.server.conftest import RunningServer
from tests.cluster.server.test_end_to_end import publish
from tests.runtime.broker.running_broker import ConnectedSubscriber, running_broker

pytestmark = pytest.mark.spark


async def reports(subscriber: ConnectedSubscriber, count: int) -> list[str]:
    async with asyncio.timeout(60):
        return [(await subscriber.push("result"))["result"]["report_id"] for _ in range(count)]


def test_published_records_reach_only_their_subscribers(server: RunningServer, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(server.token_for("broker:live"), encoding="utf-8")

    async def scenario() -> None:
        async with running_broker(tmp_path, server.url, id="live", token_file=str(secret)) as broker:
            async with broker.session("ann") as ann, broker.session("bob", protocol="tocsin.msgpack") as bob:
                fire = {"channel": "reportsofkind", "parameters": {"kind": "live-fire"}}
                held = (await ann.ask("subscribe", **fire))["held"]
                other = (await bob.ask("subscribe", channel="ReportsOfKind", parameters={"kind": "live-flood"}))["held"]
                records = {"report_id": "f1", "kind": "live-fire"}, {"report_id": "w1", "kind": "live-flood"}
                await asyncio.to_thread(publish, server.admin, *records)
                assert await reports(ann, 1) == ["f1"] and await reports(bob, 1) == ["w1"]
                refused = await ann.ask("subscribe", channel="ReportsOfKind", parameters={"kind": 5})
                assert (refused["type"], refused["code"]) == ("refused", "bad_parameter")
                refused = await ann.ask("subscribe", channel="Nothing", parameters={})
                assert refused["code"] == "unknown_channel"
            await asyncio.to_thread(publish, server.admin, {"report_id": "f2", "kind": "live-fire"})
            await asyncio.to_thread(publish, server.admin, {"report_id": "f3", "kind": "live-fire"})
            async with broker.session("ann", resume={held["subscription"]: held["cursor"]}) as ann:
                # The cursor of the subscription: all results come again, in order, then the missed ones.
                assert await reports(ann, 3) == ["f1", "f2", "f3"]
                assert (await ann.push("recovered"))["recovered"] is True
                answer = await ann.ask("unsubscribe", subscription=held["subscription"])
                assert answer["type"] == "unsubscribed"
            async with broker.session("bob") as bob:
                await bob.ask("unsubscribe", subscription=other["subscription"])
                async with asyncio.timeout(10):
                    while server.admin.get(f"/v1/subscriptions/{held['subscription']}").status_code != 404:
                        await asyncio.sleep(0.05)

    asyncio.run(scenario())
