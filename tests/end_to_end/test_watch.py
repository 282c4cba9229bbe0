"""The live watch of a network of real processes: a subscriber joins and moves, an event and a position appear."""

from __future__ import annotations

import httpx
import pytest

from tests.end_to_end.conftest import Network
from tests.runtime.coordinator.harness import WatchReader
from tocsin.model.trace import Kind
from tocsin.runtime.http.event_streams import read_events

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_watch_shows_join_migration_event_and_position(network: Network) -> None:
    async def scenario() -> None:
        url, headers = network.stack.coordinator_url, {"Authorization": f"Bearer {network.token}"}
        async with (
            httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client,
            client.stream("GET", "/v1/watch") as answer,
        ):
            reader = WatchReader(read_events(answer.aiter_bytes()))
            await reader.until(Kind.TICK)
            brokers = {row.broker for row in reader.rows if row.kind == Kind.BROKER}
            assert brokers == set(network.stack.brokers)
            user, kind = next(network.users), next(network.kinds)
            async with network.subscriber(user) as subscriber:
                await subscriber.subscribe("OfKind", {"kind": kind})
                home = await subscriber.connected()
                assert (await reader.until(Kind.JOIN, subscriber=user)).broker == home
                target = network.others(home)[0]
                network.migrate(user, target)
                assert (await reader.until(Kind.MOVE, subscriber=user)).target == target
                moved = await reader.until(Kind.MOVED, subscriber=user)
                assert (moved.broker, moved.target) == (home, target)
                await network.publish(kind, "fire")
                event = await reader.until(Kind.EVENT, note=kind)
                assert (event.lat, event.lon) == (60.171, 24.941)
                await network.publisher.publish("People", [{"name": user, "lat": 60.2, "lon": 24.9}])
                assert (await reader.until(Kind.POSITION, subscriber=user)).lat == 60.2
            answer = await client.get(f"/v1/brokers/{target}/subscribers")
            assert user in {view["subscriber"] for view in answer.json()["subscribers"]}

    network.run(scenario(), 120)
