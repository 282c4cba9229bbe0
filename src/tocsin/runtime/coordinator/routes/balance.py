"""How balancing is set, what it last did, and changing it while it runs [BAD §3.3]."""

from __future__ import annotations

from dataclasses import asdict

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.coordinator.events import BalanceChosen
from tocsin.coordinator.views import balance_view
from tocsin.policies.balance.settings import BalanceSettings
from tocsin.runtime.coordinator.routes.api import require_admin, require_read
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["balance"])

ChangedBalance = msgspec.defstruct(
    "ChangedBalance",
    [
        ("on", bool | msgspec.UnsetType, msgspec.UNSET),
        ("period_s", float | msgspec.UnsetType, msgspec.UNSET),
        *((name, type(value) | msgspec.UnsetType, msgspec.UNSET) for name, value in asdict(BalanceSettings()).items()),
    ],
    kw_only=True,
    forbid_unknown_fields=True,
)
"""`on`, `period_s` and every one of the policy's settings; what is not named stays as it is."""


@router.get("/v1/balance", response_class=Response)
async def get_balance(request: Request) -> Response:
    return answer(balance_view(require_read(request).core))


@router.put("/v1/balance", openapi_extra=request_body(ChangedBalance), response_class=Response)
async def put_balance(request: Request) -> Response:
    """Kept across restarts; what is not named stays as it is. From the next round on."""
    api = require_admin(request)
    wanted = msgspec.to_builtins(await read_json(request, ChangedBalance))
    if not wanted:
        raise TocsinError(Code.BAD_REQUEST, "name at least one setting to change")
    on, period_s = wanted.pop("on", None), wanted.pop("period_s", None)
    await api.process.ask(lambda ask: BalanceChosen(ask, on, period_s, wanted))
    return answer(balance_view(api.core))
