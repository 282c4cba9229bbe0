"""The coordinator evens out real brokers while results flow, and nobody misses any."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.end_to_end.conftest import Network, take, until
from tocsin.client import Subscription

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PEOPLE = 18
ALPHA = 0.15


def test_everybody_on_one_broker_is_spread_until_the_loads_are_even(network: Network) -> None:
    async def story() -> None:
        crowded, *others = network.stack.brokers
        for broker in others:
            network.coordinator.post(f"/v1/brokers/{broker}/drain", json={"on": True}).raise_for_status()
        kinds = [next(network.kinds) for _ in range(6)]
        async with AsyncExitStack() as stack:
            people = [await stack.enter_async_context(network.subscriber()) for _ in range(PEOPLE)]
            held = [await one.subscribe("OfKind", {"kind": kinds[n % 6]}) for n, one in enumerate(people)]
            assert {await one.connected() for one in people} == {crowded}
            for broker in others:
                network.coordinator.post(f"/v1/brokers/{broker}/drain", json={"on": False}).raise_for_status()
            enough = asyncio.Event()
            publishing = asyncio.create_task(_publish(network, kinds, enough))
            await until(lambda: _cov(network) > 1.0, 60)
            # Whatever the load; who was moved by an earlier test need not rest.
            changed = {"on": True, "period_s": 1.0, "alpha": ALPHA, "beta_bytes_per_s": 0.0, "rest_s": 5.0}
            network.coordinator.put("/v1/balance", json=changed).raise_for_status()
            try:
                # The first coordinator on a machine compiles its policies before it plans.
                await until(lambda: _cov(network) < ALPHA and _settled(network), 150)
            finally:
                network.coordinator.put("/v1/balance", json={"on": False}).raise_for_status()
                enough.set()
                published = await publishing
            assert len({await one.connected() for one in people}) == 3
            for number, subscription in enumerate(held):
                await _has_all(subscription, kinds[number % 6], published)

    network.run(story(), 280)


async def _publish(network: Network, kinds: list[str], enough: asyncio.Event) -> int:
    """One record of each kind at a time; returns how many of each."""
    sent = 0
    while not enough.is_set():
        await asyncio.gather(*(network.publish(kind, str(sent)) for kind in kinds))
        sent += 1
        await asyncio.sleep(0.3)
    return sent


async def _has_all(subscription: Subscription[Any], kind: str, count: int) -> None:
    results = await take(subscription, count)
    assert [one.value["id"] for one in results] == [f"{kind}-{number}" for number in range(count)]


def _status(network: Network) -> dict[str, Any]:
    said: dict[str, Any] = network.coordinator.get("/v1/status").json()
    return said


def _cov(network: Network) -> float:
    """As the model has it from the measured rates: reported loads follow as their moving averages do."""
    planned = network.coordinator.post("/v1/plans", params={"dry_run": True}, json={"policy": "drain"})
    return float(planned.raise_for_status().json()["before"]["cov"])


def _settled(network: Network) -> bool:
    said = _status(network)
    return bool(said["migrations"] == said["moves_waiting"] == 0)
