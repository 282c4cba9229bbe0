"""Health, readiness and metrics of a broker."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tocsin.runtime.broker.routes.context import context_of
from tocsin.runtime.http.answers import answer

router = APIRouter(tags=["status"])


@router.get("/healthz", response_class=Response)
async def healthz() -> Response:
    return answer({"status": "alive"})


@router.get("/readyz", response_class=Response, responses={503: {"description": "No new sessions; the body says why."}})
async def readyz(request: Request) -> Response:
    """Answer 503 while this broker accepts no new sessions, for a load balancer in front of it."""
    context = context_of(request)
    core = context.process.core
    reasons = []
    if context.stopping:
        reasons.append("stopping")
    if core.draining:
        reasons.append("draining")
    elif not core.accepting:
        reasons.append("the coordinator does not allow new sessions yet")
    if not context.guard.keys.ready:
        reasons.append("there are no keys to check tokens with yet")
    return answer({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    return Response(context_of(request).metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")
