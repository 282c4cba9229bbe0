"""Watching a network of real processes: somebody joins, moves and is where the rows say, and the city is on the map."""

from __future__ import annotations

import httpx
import pytest

from tests.end_to_end.conftest import Network
from tests.runtime.coordinator.test_watching import Watched
from tocsin.model.trace import Kind
from tocsin.runtime.http.event_streams import read_events

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_life_in_a_real_network_is_watched(network: Network) -> None:
    async def story() -> None:
        url, headers = network.stack.coordinator_url, {"Authorization": f"Bearer {network.token}"}
        async with (
            httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client,
            client.stream("GET", "/v1/watch") as answer,
        ):
            seen = Watched(read_events(answer.aiter_bytes()))
            await seen.until(Kind.TICK)
            brokers = {row.broker for row in seen.rows if row.kind == Kind.BROKER}
            assert brokers == set(network.stack.brokers)
            user, kind = next(network.users), next(network.kinds)
            async with network.subscriber(user) as subscriber:
                await subscriber.subscribe("OfKind", {"kind": kind})
                home = await subscriber.connected()
                assert (await seen.until(Kind.JOIN, subscriber=user)).broker == home
                target = network.others(home)[0]
                network.migrate(user, target)
                assert (await seen.until(Kind.MOVE, subscriber=user)).target == target
                moved = await seen.until(Kind.MOVED, subscriber=user)
                assert (moved.broker, moved.target) == (home, target)
                await network.publish(kind, "fire")
                event = await seen.until(Kind.EVENT, note=kind)
                assert (event.lat, event.lon) == (60.171, 24.941)
                await network.publisher.publish("People", [{"name": user, "lat": 60.2, "lon": 24.9}])
                assert (await seen.until(Kind.POSITION, subscriber=user)).lat == 60.2
            said = await client.get(f"/v1/brokers/{target}/subscribers")
            assert user in {one["subscriber"] for one in said.json()["subscribers"]}

    network.run(story(), 120)
