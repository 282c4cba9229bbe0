"""Updates through a broker process: every encoding and REST, batches, and a data cluster that fails."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.runtime.broker.running_broker import ConnectedSubscriber, broker_with_emulated_cluster, token
from tests.runtime.broker.test_rest import rest


async def update(subscriber: ConnectedSubscriber, dataset: str = "Places", **record: object) -> str:
    """The type of the answer, or the code of the refusal."""
    answer = await subscriber.ask("update", dataset=dataset, record=record)
    return str(answer.get("code", answer["type"]))


@pytest.mark.parametrize("protocol", ["tocsin.json", "tocsin.msgpack", "cloudevents.json"])
def test_update_over_a_connection_reaches_the_data_cluster(tmp_path: Path, protocol: str) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster):
            cluster.own_records["Places"] = {}
            async with broker.session("ann", protocol=protocol) as ann:
                assert await update(ann, lat=60.5, lon=24, note='"ü"') == "updated"
                assert broker.core.state.places == {"ann": (60.5, 24.0)}
                assert await update(ann, bad=1) == "bad_records"
                assert await update(ann, "Unknown", lat=1) == "unknown_dataset"
                assert await update(ann, note="x" * 5_000) == "too_large"
            assert cluster.own_records["Places"] == {"ann": {"lat": 60.5, "lon": 24, "note": '"ü"'}}

    asyncio.run(scenario())


def test_rest_call_updates_the_callers_own_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster), rest(broker) as ann:
            cluster.own_records["Places"] = {}
            stored = await ann.put("/v1/me/datasets/Places", json={"lat": 1})
            assert (stored.status_code, stored.json()["type"]) == (200, "updated")
            assert cluster.own_records["Places"] == {"ann": {"lat": 1}}
            for path, body, status, code in (
                ("Places", b'{"bad": 1}', 400, "bad_records"),
                ("Places", b"[]", 400, "bad_request"),
                ("Unknown", b"{}", 404, "unknown_dataset"),
                ("Places", b'{"note": "%b"}' % (b"x" * 5_000), 413, "too_large"),
            ):
                refused = await ann.put(f"/v1/me/datasets/{path}", content=body)
                assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
            async with httpx.AsyncClient(base_url=broker.url) as stranger:
                assert (await stranger.put("/v1/me/datasets/Places", json={"lat": 2})).status_code == 401
                assert (await stranger.get("/metrics")).status_code == 401
                headers = {"Authorization": f"Bearer {token('prometheus', 'read')}"}
                metrics = (await stranger.get("/metrics", headers=headers)).text
            assert "tocsin_broker_updates_stored_total 1.0" in metrics
            assert "tocsin_broker_updates_refused_total 3.0" in metrics
            assert "tocsin_broker_updates_pending 0.0" in metrics

    asyncio.run(scenario())


def test_updates_of_a_crowd_share_few_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster), AsyncExitStack() as sessions:
            cluster.own_records["Places"] = {}
            crowd = [await sessions.enter_async_context(broker.session(f"p{number}")) for number in range(40)]
            records = [{"bad" if number == 7 else "n": number} for number in range(40)]
            answers = await asyncio.gather(
                *(update(person, "Places", **record) for person, record in zip(crowd, records, strict=True))
            )
            assert [number for number, answer in enumerate(answers) if answer != "updated"] == [7]
            expected = {f"p{number}": {"n": number} for number in range(40) if number != 7}
            assert cluster.own_records["Places"] == expected
            assert cluster.requests.count("store") < 20

    asyncio.run(scenario())


def test_update_during_an_outage_is_refused_and_later_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster), broker.session("ann") as ann:
            cluster.own_records["Places"] = {}
            cluster.away = True
            refused = await ann.ask("update", dataset="Places", record={"lat": 1})
            assert (refused["type"], refused["code"], refused["retry_after_s"]) == ("refused", "not_ready", 2.0)
            cluster.away = False
            assert await update(ann, lat=2) == "updated"
            assert cluster.own_records["Places"] == {"ann": {"lat": 2}}

    asyncio.run(scenario())
