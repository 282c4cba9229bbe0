"""The coordinator balances real brokers while results flow, and every subscriber gets every result."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.end_to_end.conftest import Network, take, until
from tocsin.client import Subscription

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SUBSCRIBERS = 18
ALPHA = 0.15


def test_subscribers_of_one_broker_are_spread_until_loads_are_even(network: Network) -> None:
    async def scenario() -> None:
        crowded, *others = network.stack.brokers
        for broker in others:
            network.coordinator.post(f"/v1/brokers/{broker}/drain", json={"on": True}).raise_for_status()
        kinds = [next(network.kinds) for _ in range(6)]
        async with AsyncExitStack() as stack:
            subscribers = [await stack.enter_async_context(network.subscriber()) for _ in range(SUBSCRIBERS)]
            subscriptions = [
                await subscriber.subscribe("OfKind", {"kind": kinds[number % 6]})
                for number, subscriber in enumerate(subscribers)
            ]
            assert {await subscriber.connected() for subscriber in subscribers} == {crowded}
            for broker in others:
                network.coordinator.post(f"/v1/brokers/{broker}/drain", json={"on": False}).raise_for_status()
            stop = asyncio.Event()
            publishing = asyncio.create_task(_publish(network, kinds, stop))
            await until(lambda: _cov(network) > 1.0, 60)
            # β = 0 balances at any load; a short rest_s lets subscribers move that an earlier test moved.
            settings = {"on": True, "period_s": 1.0, "alpha": ALPHA, "beta_bytes_per_s": 0.0, "rest_s": 5.0}
            network.coordinator.put("/v1/balance", json=settings).raise_for_status()
            try:
                # The first coordinator on a machine compiles the policies before it plans, which takes time.
                await until(lambda: _cov(network) < ALPHA and _settled(network), 150)
            finally:
                network.coordinator.put("/v1/balance", json={"on": False}).raise_for_status()
                stop.set()
                published = await publishing
            assert len({await subscriber.connected() for subscriber in subscribers}) == 3
            for number, subscription in enumerate(subscriptions):
                await _check_all_received(subscription, kinds[number % 6], published)

    network.run(scenario(), 280)


async def _publish(network: Network, kinds: list[str], stop: asyncio.Event) -> int:
    """Publish records until `stop` is set; return the number of records of each kind."""
    sent = 0
    while not stop.is_set():
        await asyncio.gather(*(network.publish(kind, str(sent)) for kind in kinds))
        sent += 1
        await asyncio.sleep(0.3)
    return sent


async def _check_all_received(subscription: Subscription[Any], kind: str, count: int) -> None:
    results = await take(subscription, count)
    assert [result.value["id"] for result in results] == [f"{kind}-{number}" for number in range(count)]


def _status(network: Network) -> dict[str, Any]:
    status: dict[str, Any] = network.coordinator.get("/v1/status").json()
    return status


def _cov(network: Network) -> float:
    """The cov of the load model at the measured rates. Reported loads are moving averages and follow later."""
    plan = network.coordinator.post("/v1/plans", params={"dry_run": True}, json={"policy": "drain"})
    return float(plan.raise_for_status().json()["before"]["cov"])


def _settled(network: Network) -> bool:
    status = _status(network)
    return bool(status["migrations"] == status["moves_waiting"] == 0)
