"""The whole way of a record through real processes: HTTP request, data cluster, broker, client; at a steady rate."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.benchmarks.shared.harness import announce, temporary_folder

APPLICATION = """
CREATE STREAM DATASET Timed (id STRING, kind STRING, message STRING) KEY (id);
CREATE CONTINUOUS CHANNEL TimedOfKind (kind STRING) AS SELECT t.* FROM NEW Timed t WHERE t.kind = :kind;
"""
KINDS = ("fire", "flood", "storm", "crash")
CONNECTIONS = 20
"""Publishers: each waits for an answer before it sends its next record."""
LAST_S = 30.0
"""How long the last results may take."""


@dataclass(frozen=True, slots=True)
class WholeWay:
    p50_s: float
    p95_s: float
    records: int
    lost: int


async def measure_whole_way(rate_per_s: float, seconds: float, warm_up_s: float) -> WholeWay:
    """Start a network, and run `whole_way` on it."""
    from tocsin.runtime.stack.stack import Stack, StackSettings

    quiet = {"log-level": "error"}
    with temporary_folder() as name:
        stack = Stack(
            StackSettings(Path(name), brokers=1, free_ports=True, broker=quiet, coordinator=quiet, cluster=quiet)
        )
        try:
            announce("starting a data cluster, a coordinator and a broker")
            await stack.start()
            return await whole_way(stack, rate_per_s, seconds, warm_up_s)
        finally:
            await stack.stop()


async def whole_way(stack: Any, rate_per_s: float, seconds: float, warm_up_s: float) -> WholeWay:
    """Publish one record per request at this rate, and time each until the subscriber has its result."""
    import httpx

    from tocsin.client import Subscriber

    token = stack.admin_token()
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=stack.cluster_url, headers=headers, timeout=60) as client:
        (await client.post("/v1/applications", json={"text": APPLICATION})).raise_for_status()
    received_at: dict[str, float] = {}
    async with Subscriber(stack.coordinator_url, user="timekeeper", token=token) as subscriber:
        for kind in KINDS:
            await subscriber.subscribe("TimedOfKind", {"kind": kind})
        receiving = asyncio.create_task(_receive(subscriber, received_at))
        due_at = await _publish(stack.cluster_url, token, rate_per_s, warm_up_s + seconds)
        deadline_s = time.perf_counter() + LAST_S
        while len(received_at) < len(due_at) and time.perf_counter() < deadline_s:
            await asyncio.sleep(0.05)
        receiving.cancel()
    warm_s = min(due_at.values()) + warm_up_s
    received = due_at.keys() & received_at.keys()
    measured = sorted(received_at[record] - due_at[record] for record in received if due_at[record] >= warm_s)
    lost = len(due_at) - len(received)
    return WholeWay(measured[len(measured) // 2], measured[int(0.95 * len(measured))], len(due_at), lost)


async def _receive(subscriber: Any, received_at: dict[str, float]) -> None:
    from tocsin.client import Result

    async for notification in subscriber:
        if isinstance(notification, Result):
            received_at.setdefault(notification.value["id"], time.perf_counter())


async def _publish(url: str, token: str, rate_per_s: float, seconds: float) -> dict[str, float]:
    """Publish at the rate over a few connections; return when each record was due to be sent.

    A record counts from the moment it was due: a publisher that waits for an answer delays the records after it.
    """
    from tocsin.client import Publisher

    due_at: dict[str, float] = {}
    started_s = time.perf_counter()

    async def publish_part(part: int) -> None:
        async with Publisher(url, token) as publisher:
            for number in range(part, int(seconds * rate_per_s), CONNECTIONS):
                name, kind = f"r{number}", KINDS[number % len(KINDS)]
                due_at[name] = started_s + number / rate_per_s
                await asyncio.sleep(max(0.0, due_at[name] - time.perf_counter()))
                await publisher.publish("Timed", [{"id": name, "kind": kind, "message": "m" * 200}])

    await asyncio.gather(*(publish_part(part) for part in range(CONNECTIONS)))
    return due_at
