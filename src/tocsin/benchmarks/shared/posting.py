"""Publishers of a benchmark in a process of their own: they post reports over HTTP and wait for acknowledgements."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class IngestRound:
    number: int
    records: int
    batch: int
    """Records in a request."""
    dataset: str = "Reports"

    def bodies(self) -> list[bytes]:
        import msgspec

        indexes = range(self.records)
        parts = (indexes[start : start + self.batch] for start in range(0, self.records, self.batch))
        return [msgspec.json.encode([self._report(index) for index in part]) for part in parts]

    def _report(self, index: int) -> dict[str, Any]:
        return {
            "report_id": f"{self.number}-{index}",
            "kind": ("fire", "flood", "storm", "crash")[index % 4],
            "severity": index % 5 + 1,
            "lat": 60.1 + index % 1000 / 10_000,
            "lon": 24.9 + index % 997 / 10_000,
            "message": "m" * 120,
            "reported_at": "2026-11-15T18:00:00Z",
        }


@dataclass(frozen=True, slots=True)
class Posted:
    took_s: float
    """From the first request to the last acknowledgement."""
    acknowledged_s: list[float]
    """Seconds of each request, in order."""

    def quantile_s(self, share: float) -> float:
        return self.acknowledged_s[min(len(self.acknowledged_s) - 1, int(share * len(self.acknowledged_s)))]


async def post(address: str, token: str, connections: int, work: IngestRound) -> Posted:
    """Post a round from another process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, _publish, address, token, connections, work)


def _publish(address: str, token: str, connections: int, work: IngestRound) -> Posted:
    return asyncio.run(_post_bodies(address, token, connections, work))


async def _post_bodies(address: str, token: str, connections: int, work: IngestRound) -> Posted:
    """Post over plain HTTP/1.1 on raw sockets: a publisher that costs little leaves the cores to the server."""
    import msgspec

    host, _, port = address.removeprefix("http://").partition(":")
    head = f"POST /v1/datasets/{work.dataset}/records HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
    unsent = iter(work.bodies())
    acknowledged = 0
    seconds: list[float] = []

    async def post_over_one_connection() -> None:
        nonlocal acknowledged
        reader, writer = await asyncio.open_connection(host, int(port))
        for body in unsent:
            sent_s = time.perf_counter()
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            status = await reader.readline()
            length = 0
            while (line := await reader.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            answer = msgspec.json.decode(await reader.readexactly(length))
            seconds.append(time.perf_counter() - sent_s)
            if b" 200 " in status:
                acknowledged += answer["accepted"]
        writer.close()

    started_s = time.perf_counter()
    await asyncio.gather(*(post_over_one_connection() for _ in range(connections)))
    took_s = time.perf_counter() - started_s
    if acknowledged != work.records:
        raise RuntimeError(f"the server acknowledged {acknowledged:,} of {work.records:,} records")
    return Posted(took_s, sorted(seconds))
