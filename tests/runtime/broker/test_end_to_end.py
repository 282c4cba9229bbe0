"""Records from publisher to subscriber and from subscriber to dataset, with a real data cluster and a real broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.cluster.server.conftest import RunningServer, StartServer
from tests.cluster.server.test_end_to_end import publish
from tests.runtime.broker.running_broker import SIGNER, ConnectedSubscriber, running_broker, token

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
                    # The subscription itself stays for `unheld_s`.
                    while server.admin.get(f"/v1/subscriptions/{held['subscription']}").json()["brokers"]:
                        await asyncio.sleep(0.05)

    asyncio.run(scenario())


LOCATIONS = """
CREATE KEYED DATASET UserLocations (user_id STRING, lat DOUBLE, lon DOUBLE, at TIMESTAMP)
  KEY (user_id) OWNED BY user_id ORDER BY at;
CREATE KEYED DATASET Plain (user_id STRING, lat DOUBLE) KEY (user_id);
CREATE CONTINUOUS CHANNEL Moved (user STRING) AS
  SELECT u.user_id, u.lat FROM NEW UserLocations u WHERE u.user_id = :user;
"""


def test_subscriber_updates_its_own_record_and_no_other(start_server: StartServer, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(SIGNER.jwks()), encoding="utf-8")
    server = start_server(keys=str(keys))
    assert server.admin.post("/v1/applications", json={"text": LOCATIONS}).status_code == 200
    secret = tmp_path / "token"
    secret.write_text(server.token_for("broker:live"), encoding="utf-8")
    own, bobs = {"lat": 60.5, "lon": 24.5, "at": "2026-11-15T18:00:00Z"}, {"user_id": "bob", "lat": 0.0}
    ann_headers = {"Authorization": f"Bearer {token('ann')}"}

    async def scenario() -> None:
        async with (
            running_broker(tmp_path, server.url, id="live", token_file=str(secret)) as broker,
            broker.session("ann") as ann,
            broker.session("bob", protocol="tocsin.msgpack") as bob,
            httpx.AsyncClient(base_url=broker.url, headers=ann_headers) as rest,
            httpx.AsyncClient(base_url=server.url, headers=ann_headers) as cluster,
        ):
            for subscriber, name in ((ann, "ann"), (bob, "bob")):
                answer = await subscriber.ask("subscribe", channel="Moved", parameters={"user": name})
                assert answer["type"] == "subscribed", answer
            # ann tries to write bob's record.
            refused = await ann.ask("update", dataset="UserLocations", record=bobs)
            assert (refused["type"], refused["code"]) == ("refused", "forbidden")
            by_rest = await rest.put("/v1/me/datasets/UserLocations", json=bobs)
            assert (by_rest.status_code, by_rest.json()["error"]["code"]) == (403, "forbidden")
            for record in (bobs, own):
                direct = await cluster.post(
                    "/v1/datasets/UserLocations/own-records", json=[{"user": "bob", "record": record}]
                )
                assert (direct.status_code, direct.json()["error"]["code"]) == (403, "forbidden")
            published = await cluster.post("/v1/datasets/UserLocations/records", json=[bobs])
            assert published.status_code == 403
            # Each of them writes its own record.
            assert (await ann.ask("update", dataset="userlocations", record=own))["type"] == "updated"
            assert (await bob.ask("update", dataset="UserLocations", record=own | bobs))["type"] == "updated"
            async with asyncio.timeout(60):
                assert (await ann.push("result"))["result"] == {"user_id": "ann", "lat": 60.5}
                assert (await bob.push("result"))["result"] == {"user_id": "bob", "lat": 0.0}
            again = await rest.put("/v1/me/datasets/UserLocations", json=own | {"lat": 61, "user_id": "ann"})
            assert again.json()["type"] == "updated", again.text
            async with asyncio.timeout(60):
                assert (await ann.push("result"))["result"] == {"user_id": "ann", "lat": 61.0}
            wrong = await ann.ask("update", dataset="UserLocations", record={"latitude": 1})
            assert wrong["code"] == "bad_records" and "latitude" in wrong["message"]
            assert (await ann.ask("update", dataset="Nothing", record=own))["code"] == "unknown_dataset"
            assert (await ann.ask("update", dataset="Plain", record=own))["code"] == "not_a_feed_target"

    asyncio.run(scenario())
    server.stop()
