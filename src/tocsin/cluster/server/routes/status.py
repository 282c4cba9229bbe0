"""Health, readiness, metrics and status of the process; rates of subscriptions and executions of channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST

from tocsin.cluster.engine import DataCluster
from tocsin.cluster.server.routes.authentication import require_read
from tocsin.cluster.server.routes.context import context_of
from tocsin.model.ids import ChannelName
from tocsin.runtime.http.answers import NDJSON, answer, encode

router = APIRouter(tags=["status"])

_PAGE = 5_000


@router.get("/healthz", response_class=Response)
async def alive() -> Response:
    """Answer that the process is alive."""
    return answer({"alive": True})


@router.get("/readyz", response_class=Response)
async def ready(request: Request) -> Response:
    """Answer 503 with the reasons.

    The process is not ready while Spark starts or does not answer, while a streaming query is down, and while the
    process stops. Publishing works while Spark does not answer: acknowledged records are on disk.
    """
    reasons = context_of(request).process.reasons_not_ready()
    return answer({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@router.get("/metrics", response_class=Response)
def metrics(request: Request) -> Response:
    return Response(context_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/status", response_class=Response)
def status(request: Request) -> Response:
    """Overview: readiness, late channels, Spark, and how many datasets, channels, subscriptions and records there are.

    A late channel has records or a tick that no execution has covered for some seconds.
    """
    context = require_read(request)
    cluster = context.cluster
    reasons = context.process.reasons_not_ready()
    return answer(
        {
            "ready": not reasons,
            "reasons": reasons,
            "late": context.process.late_channels(),
            "spark": context.process.spark_facts(),
            "datasets": len(cluster.datasets.all()),
            "channels": len(cluster.channels.all()),
            "subscriptions": len(cluster.subscriptions.book),
            # Since this process started.
            "records": context.metrics.records(),
        }
    )


@router.get("/v1/rates", response_class=Response)
def rates(
    request: Request,
    channel: str,
    after: int = Query(0, ge=0, le=2**62),
    limit: int = Query(1_000, ge=1, le=10_000),
) -> Response:
    """λ of each backend subscription, in bytes per second: a page of JSON, or all of them as JSON lines."""
    cluster = require_read(request).cluster
    name = cluster.channel(channel).prepared.channel.name
    if NDJSON in request.headers.get("accept", ""):
        return StreamingResponse(_rate_lines(cluster, name), media_type=NDJSON)
    page, last = _rates(cluster, name, after, limit)
    return answer({"rates": page, "next": last if len(page) == limit else None})


def _rate_lines(cluster: DataCluster, channel: ChannelName) -> Iterator[bytes]:
    after = 0
    while True:
        page, after = _rates(cluster, channel, after, _PAGE)
        yield b"".join(encode(rate) + b"\n" for rate in page)
        if len(page) < _PAGE:
            return


def _rates(cluster: DataCluster, channel: ChannelName, after: int, limit: int) -> tuple[list[dict[str, Any]], int]:
    """(a page of rates, the number of its last subscription)."""
    page = cluster.catalog.subscriptions.page(channel, None, after, limit)
    numbers = np.array([row[0] for row in page], np.int64)
    bytes_per_s = cluster.subscriptions.rates_of(numbers, cluster.now_s()).tolist()
    rates = [
        {"subscription": row[2], "bytes_per_s": round(rate, 3)} for row, rate in zip(page, bytes_per_s, strict=True)
    ]
    return rates, page[-1][0] if page else after


@router.get("/v1/executions", response_class=Response)
def executions(request: Request, channel: str | None = None, limit: int = Query(100, ge=1, le=10_000)) -> Response:
    """The latest executions that had results, newest first."""
    cluster = require_read(request).cluster
    name = None if channel is None else cluster.channel(channel).prepared.channel.name
    return answer({"executions": cluster.catalog.executions.page(channel=name, limit=limit, newest=True)})
