"""A gateway that records what the root of an edge tree publishes: for `tocsin experiment ami-live`, without Spark.

It is a measuring instrument with the interface of the data cluster's feed gateway: it remembers Idempotency-Keys, and
keeps every row with the time of its arrival. It has no KEY: a row that the root accepted twice is there twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response

from tocsin.runtime.http.answers import answer
from tocsin.runtime.http.listening import Server, listen


@dataclass(slots=True)
class RecordedResults:
    rows: dict[str, list[tuple[float, dict[str, Any]]]] = field(default_factory=dict)
    """Dataset → (time of arrival on the wall clock, row)."""
    keys: set[str] = field(default_factory=set)
    repeated_requests: int = 0
    """Requests with a known Idempotency-Key: repeats of an unanswered request, which the key makes harmless."""

    def add(self, dataset: str, key: str | None, body: bytes, now_s: float) -> int | None:
        """Store a body of JSON lines. Returns the number of rows; None if the key is known."""
        if key is not None and key in self.keys:
            self.repeated_requests += 1
            return None
        if key is not None:
            self.keys.add(key)
        rows = [msgspec.json.decode(line) for line in body.split(b"\n") if line.strip()]
        self.rows.setdefault(dataset, []).extend((now_s, row) for row in rows)
        return len(rows)

    def of(self, dataset: str) -> list[dict[str, Any]]:
        return [row for _, row in self.rows.get(dataset, [])]


@asynccontextmanager
async def recording_gateway() -> AsyncIterator[tuple[str, RecordedResults]]:
    """Serve on a free port. Yields the address and the results."""
    results = RecordedResults()
    app = FastAPI(openapi_url=None)

    @app.post("/v1/datasets/{dataset}/records", response_class=Response)
    async def records(dataset: str, request: Request) -> Response:
        body = await request.body()
        accepted = results.add(dataset, request.headers.get("idempotency-key"), body, time.time())
        stored = {"duplicates": 0, "refused": [], "refused_total": 0, "replayed": accepted is None}
        return answer({"accepted": accepted or 0, **stored})

    with listen("127.0.0.1", 0) as listening:
        server = Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", results
        finally:
            server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
