"""Results of backend subscriptions from their cursors on, streamed as Arrow, JSON lines, GeoJSON or CAP; or one alone.

Never more than a row group in memory. `Tocsin-Cursor` says up to where the answer goes: whoever has read all of it may
continue there, for every subscription it asked for. What a cursor points at and is no longer there is told as a gap, in
the header `Tocsin-Gap` (how many subscriptions) and by name in the stream.
"""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from tocsin.cluster.pulling import Pull, only, open_pull, parsed_cursor, pulled
from tocsin.cluster.server.routes.api import Api, caller_of, require_broker_or_read
from tocsin.cluster.server.routes.result_forms import LISTED, SINGLE, accepted_form, listing, single
from tocsin.cluster.server.routes.subscriptions import MAX_AT_ONCE, known_id, unknown
from tocsin.model.cursor import Cursor
from tocsin.runtime.http.answers import described, read_json
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["results"])


class WantedResults(msgspec.Struct):
    channel: str
    subscriptions: dict[str, str | None]
    """Id → cursor; null for all that is still kept."""


@router.get("/v1/results", response_class=Response)
async def get_results(
    request: Request, channel: str, subscription: list[str] = Query(), after: str | None = None
) -> Response:
    """Results of some subscriptions, all from the same cursor on."""
    return await _results(request, channel, dict.fromkeys(subscription, after))


@router.post("/v1/results", openapi_extra=described(WantedResults), response_class=Response)
async def post_results(request: Request) -> Response:
    """Results of many subscriptions, each from its own cursor on."""
    wanted = await read_json(request, WantedResults)
    return await _results(request, wanted.channel, wanted.subscriptions)


@router.get("/v1/results/{subscription}/{cursor}", response_class=Response)
async def get_result(request: Request, subscription: str, cursor: str) -> Response:
    """The one result that came with this cursor: as JSON, as a GeoJSON Feature or as a CAP alert."""
    api = require_broker_or_read(request)
    form = accepted_form(request.headers.get("accept", ""), SINGLE)
    body = await asyncio.to_thread(_one, request, api, subscription, cursor, form)
    return Response(body, headers={"Cache-Control": "no-store"}, media_type=form)


async def _results(request: Request, channel: str, wanted: dict[str, str | None]) -> Response:
    api = require_broker_or_read(request)
    if len(wanted) > MAX_AT_ONCE:
        raise TocsinError(Code.TOO_LARGE, f"at most {MAX_AT_ONCE:,} subscriptions at a time")
    form = accepted_form(request.headers.get("accept", ""), LISTED)
    pull = await asyncio.to_thread(_open, request, api, channel, wanted)
    headers = {"Tocsin-Cursor": str(pull.upto), "Cache-Control": "no-store"}
    if pull.gaps:
        headers["Tocsin-Gap"] = str(len(pull.gaps))
    pieces = await asyncio.to_thread(listing, api, pull, form)
    return StreamingResponse(pieces, headers=headers, media_type=form)


def _one(request: Request, api: Api, identity: str, text: str, form: str) -> bytes:
    subscription = known_id(identity)
    held = api.cluster.catalog.subscriptions.find(subscription)
    if not held:
        raise unknown(identity)
    after = parsed_cursor(text)
    if after.offset:
        # A result's cursor is the position behind it.
        pull = _open(request, api, held[0][0], {subscription: str(Cursor(after.epoch, after.offset - 1))})
        if not pull.gaps and after <= pull.upto:
            for some in pulled(api.cluster.results, only(pull, after)):
                return single(api, pull, some[0], form)
    raise TocsinError(
        Code.NOT_FOUND, f"{identity} has no result with the cursor {after}, or it has passed its retention"
    )


def _open(request: Request, api: Api, channel: str, wanted: dict[str, str | None]) -> Pull:
    ids = {known_id(identity): cursor for identity, cursor in wanted.items()}
    pull = open_pull(api.cluster, channel, ids)
    caller = caller_of(request)
    if not (caller.may_read or caller.may_be_any):
        hidden = pull.not_held_by(api.cluster, caller.may_be)
        if hidden is not None:
            raise unknown(hidden)
    return pull
