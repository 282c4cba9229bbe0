"""Dead letters: list, replay and discard the records that a channel passed over, because its query fails with them."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Query, Request, Response

from tocsin.cluster.catalog import StoredDeadLetter
from tocsin.cluster.server.routes.authentication import require_admin, require_read
from tocsin.runtime.http.answers import answer, read_json, request_body

router = APIRouter(tags=["dead letters"])


class DeadLetterRequest(msgspec.Struct, forbid_unknown_fields=True):
    channel: str
    ids: list[int] | None = None
    """The dead letters to handle; all of the channel if there are none."""


@router.get("/v1/dead-letters", response_class=Response)
def list_dead_letters(
    request: Request,
    channel: str | None = None,
    after: int = Query(0, ge=0, le=2**62),
    limit: int = Query(1_000, ge=1, le=10_000),
) -> Response:
    """A page of dead letters by id. `next` in the answer is the `after` of the next page, null at the end."""
    cluster = require_read(request).cluster
    name = None if channel is None else cluster.channel(channel).name
    page = cluster.catalog.dead_letters.page(name, after, limit)
    return answer(
        {"dead_letters": [_listed(letter) for letter in page], "next": page[-1].id if len(page) == limit else None}
    )


@router.post("/v1/dead-letters/replay", openapi_extra=request_body(DeadLetterRequest), response_class=Response)
async def replay(request: Request) -> Response:
    """Match dead letters again, at most 10,000. Those that succeed are deleted, and their results are delivered."""
    context = require_admin(request)
    body = await read_json(request, DeadLetterRequest)
    return answer({"replayed": await context.process.replay(body.channel, body.ids)})


@router.post("/v1/dead-letters/discard", openapi_extra=request_body(DeadLetterRequest), response_class=Response)
async def discard(request: Request) -> Response:
    """Delete dead letters. Their records stay in the dataset, but the channel never matches them."""
    context = require_admin(request)
    body = await read_json(request, DeadLetterRequest)
    cluster = context.cluster
    name = cluster.channel(body.channel).name
    return answer({"discarded": await asyncio.to_thread(cluster.catalog.dead_letters.discard, name, body.ids)})


def _listed(letter: StoredDeadLetter) -> dict[str, object]:
    return {
        "id": letter.id,
        "channel": letter.channel,
        "dataset": letter.dataset,
        "reason": letter.reason,
        "record": msgspec.Raw(letter.record.encode()),
    }
