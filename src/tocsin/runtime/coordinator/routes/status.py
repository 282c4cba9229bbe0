"""Health, metrics, the state of the network, and the live stream of everything that happens in it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST

from tocsin.coordinator.views import status_view
from tocsin.runtime.coordinator.cluster import cluster_state
from tocsin.runtime.coordinator.routes.authentication import require_read
from tocsin.runtime.coordinator.routes.context import context_of
from tocsin.runtime.http.answers import EVENT_STREAM, STREAM_HEADERS, answer

router = APIRouter(tags=["status"])


@router.get("/healthz", response_class=Response)
async def alive() -> Response:
    """Answer that the process is alive."""
    return answer({"alive": True})


@router.get("/readyz", response_class=Response)
async def ready(request: Request) -> Response:
    """Answer 503 with the reasons while the coordinator starts or stops, and while its store fails."""
    process = context_of(request).process
    reasons = [process.store_error] if process.store_error else []
    if process.core is None or process.stopping:
        reasons = ["stopping" if process.stopping else "starting"]
    return answer({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    return Response(context_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/status", response_class=Response)
async def status(request: Request) -> Response:
    """The numbers of brokers, sessions and subscriptions, the loads and their balance, and the migrations.

    `cluster` is the state of the data cluster: whether it is ready, the reasons if not, and since when which channels
    are late. It is null if this coordinator knows no data cluster.
    """
    context = require_read(request)
    view = status_view(context.core, context.process.now_s())
    return answer(view | {"cluster": await cluster_state(context.settings, context.signer)})


@router.get("/v1/watch", response_class=Response)
async def watch(request: Request, positions: bool = True) -> StreamingResponse:
    """Trace rows as server-sent events (docs/watching.md): first `picture`, the rows that rebuild the present state,
    then about once a second `rows`.

    A reader that falls behind gets a new picture instead of a backlog. `positions=false` leaves out positions and
    streets.
    """
    context = require_read(request)
    _ = context.core  # raises NOT_READY
    return StreamingResponse(context.watch.stream.watch(positions), headers=STREAM_HEADERS, media_type=EVENT_STREAM)
