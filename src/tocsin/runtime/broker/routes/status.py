"""Whether a broker lives, whether it takes sessions, and its numbers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tocsin.runtime.broker.routes.api import api_of
from tocsin.runtime.http.answers import answer

router = APIRouter(tags=["status"])


@router.get("/healthz", response_class=Response)
async def healthz() -> Response:
    return answer({"status": "alive"})


@router.get("/readyz", response_class=Response, responses={503: {"description": "No new sessions; the body says why."}})
async def readyz(request: Request) -> Response:
    """503 while it takes no new sessions, for the load balancer in front of it."""
    api = api_of(request)
    core = api.process.core
    reasons = []
    if api.stopping:
        reasons.append("stopping")
    if core.draining:
        reasons.append("draining")
    elif not core.accepting:
        reasons.append("not trusted with new sessions yet")
    if not api.gate.keys.ready:
        reasons.append("no keys to check tokens with yet")
    return answer({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    return Response(api_of(request).metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")
