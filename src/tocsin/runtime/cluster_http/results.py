"""Results of backend subscriptions from their cursors on, streamed as Arrow or JSON lines.

Never more than a row group in memory. `Tocsin-Cursor` says up to where the answer goes: whoever has read all of it may
continue there, for every subscription it asked for. What a cursor points at and is no longer there is told as a gap, in
the header `Tocsin-Gap` (how many subscriptions) and by name in the stream.
"""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from tocsin.cluster.pulling import Pull, arrow_stream, json_lines, open_pull
from tocsin.runtime.cluster_http.api import Api, caller_of, require_broker_or_read
from tocsin.runtime.cluster_http.subscriptions import MAX_AT_ONCE, known_id, unknown
from tocsin.runtime.http_answers import ARROW, NDJSON, described, read_json
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


async def _results(request: Request, channel: str, wanted: dict[str, str | None]) -> Response:
    api = require_broker_or_read(request)
    if len(wanted) > MAX_AT_ONCE:
        raise TocsinError(Code.TOO_LARGE, f"at most {MAX_AT_ONCE:,} subscriptions at a time")
    as_arrow = _wants_arrow(request.headers.get("accept", ""))
    pull = await asyncio.to_thread(_open, request, api, channel, wanted)
    headers = {"Tocsin-Cursor": str(pull.upto), "Cache-Control": "no-store"}
    if pull.gaps:
        headers["Tocsin-Gap"] = str(len(pull.gaps))
    store = api.cluster.results
    if as_arrow:
        return StreamingResponse(arrow_stream(store, pull), headers=headers, media_type=ARROW)
    return StreamingResponse(json_lines(store, pull), headers=headers, media_type=NDJSON)


def _open(request: Request, api: Api, channel: str, wanted: dict[str, str | None]) -> Pull:
    ids = {known_id(identity): cursor for identity, cursor in wanted.items()}
    pull = open_pull(api.cluster, channel, ids)
    caller = caller_of(request)
    if not (caller.may_read or caller.may_be_any):
        hidden = pull.not_held_by(
            api.cluster, [broker for broker in api.cluster.book.brokers() if caller.may_be(broker)]
        )
        if hidden is not None:
            raise unknown(hidden)
    return pull


def _wants_arrow(accept: str) -> bool:
    """Arrow if asked for; JSON lines if asked for or if anything will do."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    for kind in kinds:
        if kind == ARROW:
            return True
        if kind in ("", "*/*", "application/*", NDJSON, "application/json", "application/jsonl"):
            return False
    raise TocsinError(Code.BAD_REQUEST, f"Accept: results come as {ARROW} or {NDJSON}")
