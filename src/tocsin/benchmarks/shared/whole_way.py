"""The whole way of a record through real processes: HTTP request, data cluster, broker, client; at a steady rate."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.benchmarks.shared.harness import announce, temporary_folder

APPLICATION = """
CREATE STREAM DATASET Reports (id STRING, kind STRING, message STRING) KEY (id);
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.* FROM NEW Reports r WHERE r.kind = :kind;
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
    """Publish one record per request, and time each until the subscriber has its result."""
    import httpx

    from tocsin.client import Publisher, Subscriber
    from tocsin.runtime.stack.stack import Stack, StackSettings

    quiet = {"log-level": "error"}
    with temporary_folder() as name:
        stack = Stack(
            StackSettings(Path(name), brokers=1, free_ports=True, broker=quiet, coordinator=quiet, cluster=quiet)
        )
        try:
            announce("starting a data cluster, a coordinator and a broker")
            await stack.start()
            token = stack.admin_token()
            headers = {"Authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(base_url=stack.cluster_url, headers=headers, timeout=60) as client:
                (await client.post("/v1/applications", json={"text": APPLICATION})).raise_for_status()
            async with Subscriber(stack.coordinator_url, user="ann", token=token) as subscriber:
                for kind in KINDS:
                    await subscriber.subscribe("OfKind", {"kind": kind})
                received_at: dict[str, float] = {}
                receiving = asyncio.create_task(_receive(subscriber, received_at))
                sent_at = await _publish(Publisher, stack.cluster_url, token, rate_per_s, warm_up_s + seconds)
                deadline_s = time.perf_counter() + LAST_S
                while len(received_at) < len(sent_at) and time.perf_counter() < deadline_s:
                    await asyncio.sleep(0.05)
                receiving.cancel()
        finally:
            await stack.stop()
    warm_s = min(sent_at.values()) + warm_up_s
    measured = sorted(
        received_at[record] - sent_s for record, sent_s in sent_at.items() if record in received_at and sent_s >= warm_s
    )
    lost = len(sent_at.keys() - received_at.keys())
    return WholeWay(measured[len(measured) // 2], measured[int(0.95 * len(measured))], len(sent_at), lost)


async def _receive(subscriber: Any, received_at: dict[str, float]) -> None:
    from tocsin.client import Result

    async for notification in subscriber:
        if isinstance(notification, Result):
            received_at.setdefault(notification.value["id"], time.perf_counter())


async def _publish(publisher: Any, url: str, token: str, rate_per_s: float, seconds: float) -> dict[str, float]:
    """Publish at the rate over a few connections; return when each record was due to be sent.

    A record counts from the moment it was due: a publisher that waits for an answer delays the records after it.
    """
    sent_at: dict[str, float] = {}
    started_s = time.perf_counter()

    async def publish_part(part: int) -> None:
        async with publisher(url, token) as connection:
            for number in range(part, int(seconds * rate_per_s), CONNECTIONS):
                due_s = started_s + number / rate_per_s
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                name, kind = f"r{number}", KINDS[number % len(KINDS)]
                sent_at[name] = due_s
                await connection.publish("Reports", [{"id": name, "kind": kind, "message": "m" * 200}])

    await asyncio.gather(*(publish_part(part) for part in range(CONNECTIONS)))
    return sent_at
