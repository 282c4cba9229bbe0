"""Is it alive, is it ready, what does it count, what does the network look like; and what can be set while it runs."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from tocsin.coordinator.events import PlacementChosen
from tocsin.coordinator.views import status_view
from tocsin.policies.balance.settings import PlacementPolicy
from tocsin.runtime.coordinator.routes.api import api_of, require_admin, require_read
from tocsin.runtime.http.answers import answer, read_json, request_body

router = APIRouter(tags=["status"])


class ChangedSettings(msgspec.Struct, forbid_unknown_fields=True):
    placement: PlacementPolicy | None = None
    """Of newcomers."""
    replacement: PlacementPolicy | None = None
    """Of those whose broker died or drains."""


@router.get("/healthz", response_class=Response)
async def alive() -> Response:
    """The process answers."""
    return answer({"alive": True})


@router.get("/readyz", response_class=Response)
async def ready(request: Request) -> Response:
    """503 with the reasons while it starts or stops, and while nothing can be stored."""
    process = api_of(request).process
    reasons = [process.unwritable] if process.unwritable else []
    if process.core is None or process.stopping:
        reasons = ["stopping" if process.stopping else "starting"]
    return answer({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    return Response(api_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/status", response_class=Response)
async def status(request: Request) -> Response:
    """Brokers, sessions, subscriptions, loads and how even they are, migrations."""
    api = require_read(request)
    return answer(status_view(api.core, api.process.now_s()))


@router.get("/v1/settings", response_class=Response)
async def get_settings(request: Request) -> Response:
    """What can be changed while it runs."""
    rules = require_read(request).core.rules
    return answer({"placement": rules.placement, "replacement": rules.replacement})


@router.put("/v1/settings", openapi_extra=request_body(ChangedSettings), response_class=Response)
async def put_settings(request: Request) -> Response:
    """Kept across restarts; what is not named stays as it is."""
    api = require_admin(request)
    wanted = await read_json(request, ChangedSettings)
    await api.process.ask(lambda ask: PlacementChosen(ask, wanted.placement, wanted.replacement))
    return await get_settings(request)
