"""The subscriber's own record in a dataset: `update` as a REST call."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from tocsin.model.ids import DatasetName
from tocsin.runtime.broker.routes.context import call, context_of
from tocsin.runtime.http.answers import answer, decode_json, read_body, request_body
from tocsin.wire import session as wire

router = APIRouter(tags=["records"])


@router.put("/v1/me/datasets/{name}", openapi_extra=request_body(dict[str, Any]), response_class=Response)
async def put_own_record(request: Request, name: str) -> Response:
    """Replace the caller's own record in a KEYED dataset with OWNED BY. The answer comes when it is on disk."""
    record = decode_json(await read_body(request, context_of(request).settings.frame_bytes), dict[str, Any])
    return answer(await call(request, wire.Update(0, DatasetName(name), record)))
