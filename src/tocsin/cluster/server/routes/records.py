"""Publishing: `POST /v1/datasets/{name}/records`. The answer comes when the records are on disk.

The hot path of the data cluster: the body goes to the gateway as it came, and nothing here looks inside it.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tocsin.cluster.feed.gateway import (
    Accepted,
    Backlogged,
    KeyConflict,
    Malformed,
    RecordForm,
    Refused,
    TooLarge,
    Unavailable,
)
from tocsin.cluster.server.routes.api import Api, require_publish
from tocsin.runtime.http.answers import answer, error_body, read_body
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["records"])
_PUBLISH = re.compile("/v1/datasets/([^/]+)/records")

_CODES: dict[type[Refused], Code] = {
    Malformed: Code.BAD_RECORDS,
    TooLarge: Code.TOO_LARGE,
    KeyConflict: Code.IDEMPOTENCY_CONFLICT,
    Backlogged: Code.BACKLOGGED,
    Unavailable: Code.NOT_READY,
}
_RECORDS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "Records: a JSON array or object, JSON lines, a CloudEvent or a batch of them; a CAP 1.2 alert.",
        "content": {
            "application/json": {"schema": {"type": "array", "items": {"type": "object"}}},
            "application/x-ndjson": {"schema": {"type": "string"}},
            "application/cloudevents+json": {"schema": {"type": "object"}},
            "application/cloudevents-batch+json": {"schema": {"type": "array", "items": {"type": "object"}}},
            "application/cap+xml": {"schema": {"type": "string"}},
        },
    }
}


@router.post("/v1/datasets/{name}/records", openapi_extra=_RECORDS, response_class=Response)
async def publish(request: Request, name: str) -> Response:
    """Store records. Send an `Idempotency-Key` header to make a repeat of this request harmless."""
    api = require_publish(request, name)
    form = RecordForm.of_content_type(request.headers.get("content-type", ""))
    if form is None:
        raise TocsinError(Code.BAD_REQUEST, f"send records as one of: {', '.join(form.value for form in RecordForm)}")
    limit_bytes = api.commit_of(name).gateway.limits.body_bytes
    with api.room_for_records() as take_room:
        body = await read_body(request, limit_bytes, take_room)
        status, said = await store(api, name, body, form, request.headers.get("idempotency-key"))
    headers = {"Retry-After": str(said["retry_after_s"])} if "retry_after_s" in said else None
    return answer(said, status, headers)


def publishing_first(app: FastAPI) -> ASGIApp:
    """`app`, but `publish` is called without the framework's way there, which takes as long as checking 100 records.

    The route stays: it says in the API's description what this answers.
    """

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        found = _PUBLISH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await app(scope, receive, send)
            return
        scope["app"] = app
        response = await publish(Request(scope, receive, send), found[1])
        await response(scope, receive, send)

    return dispatch


async def store(
    api: Api, name: str, body: bytes, form: RecordForm, idempotency_key: str | None
) -> tuple[int, dict[str, Any]]:
    """(status, answer) for one body of records, when it is on disk or refused."""
    commit, live = api.commit_of(name), api.cluster.dataset(name)
    dataset = live.dataset.name
    outcome = await commit.store(body, form, idempotency_key)
    # From here on nothing may fail any more, nor ask whether this process is about to stop: it is stored.
    if not isinstance(outcome, Accepted):
        api.metrics.requests_refused.labels(dataset, str(outcome.status)).inc()
        return outcome.status, _refusal(outcome)
    if outcome.accepted and not outcome.replayed and live.query is None:
        watch = api.process.watch
        assert watch is not None
        api.in_background(asyncio.to_thread(watch.start, dataset))
    return _accepted(api, dataset, outcome)


def _accepted(api: Api, dataset: str, outcome: Accepted) -> tuple[int, dict[str, Any]]:
    said: dict[str, Any] = {
        "accepted": outcome.accepted,
        "duplicates": outcome.duplicates,
        "refused": outcome.refused,
        "refused_total": outcome.refused_total,
        "replayed": outcome.replayed,
    }
    if outcome.notices:
        said["notices"] = outcome.notices
    if not outcome.replayed:
        api.metrics.accepted.labels(dataset).inc(outcome.accepted)
        api.metrics.duplicates.labels(dataset).inc(outcome.duplicates)
        api.metrics.refused.labels(dataset).inc(outcome.refused_total)
    if outcome.refused_total and not outcome.accepted and not outcome.duplicates:
        first = outcome.refused[0]
        where = f"record {first.index}" + (f", field {first.field}" if first.field else "")
        message = f"no record was good; {where}: {first.reason}"
        return Code.BAD_RECORDS.status, error_body(Code.BAD_RECORDS, message) | said
    return 200, said


def _refusal(refused: Refused) -> dict[str, Any]:
    said = error_body(_CODES[type(refused)], refused.reason)
    if isinstance(refused, Backlogged | Unavailable):
        said["retry_after_s"] = refused.retry_after_s
    return said
