"""Results of backend subscriptions from their cursors on, streamed as Arrow, JSON lines, GeoJSON or CAP; or one alone.

The process holds at most one row group in memory. The header `Tocsin-Cursor` is the position where a client continues
after it has read the whole answer, for every subscription in the request. A cursor that points at deleted results is
reported as a gap: the header `Tocsin-Gap` counts the subscriptions, and the stream names them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from tocsin.cluster.cap.alert import Alert
from tocsin.cluster.cap.geojson import ResultGap, collection, feature
from tocsin.cluster.cap.results import Origin, alert_of
from tocsin.cluster.cap.writing import AtomFeed, alert_document, atom_feed
from tocsin.cluster.pulling import (
    Pull,
    Pulled,
    arrow_stream,
    json_lines,
    only,
    open_pull,
    parsed_cursor,
    pulled,
)
from tocsin.cluster.server.routes.authentication import caller_of, require_broker_or_read, require_channel
from tocsin.cluster.server.routes.context import ClusterContext
from tocsin.cluster.server.routes.subscriptions import check_number, subscription_id_of, unknown_subscription
from tocsin.model.cursor import Cursor, execution_of
from tocsin.runtime.http.answers import (
    ARROW,
    ATOM,
    BODY_BYTES,
    CAP,
    GEOJSON,
    JSON,
    LARGE_BODY_BYTES,
    NDJSON,
    encode,
    read_json,
    request_body,
)
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["results"])

JOINT_BYTES = 4 << 20
"""An answer for several channels gets no further one beyond this size."""
_LISTING_FORMS = {
    ARROW: ARROW,
    GEOJSON: GEOJSON,
    ATOM: ATOM,
    NDJSON: NDJSON,
    **dict.fromkeys(("", "*/*", "application/*", "application/json", "application/jsonl"), NDJSON),
}
"""Media type in `Accept` → media type of the answer."""
_SINGLE_FORMS = {CAP: CAP, GEOJSON: GEOJSON, JSON: JSON, "": JSON, "*/*": JSON, "application/*": JSON}


@router.get(wire.RESULTS, response_class=Response)
async def get_results(
    request: Request, channel: str, subscription: list[str] = Query(), after: str | None = None
) -> Response:
    """Results of some subscriptions, all from the same cursor on."""
    return await _results(request, channel, dict.fromkeys(subscription, after))


@router.post(wire.RESULTS, openapi_extra=request_body(wire.ResultsRequest), response_class=Response)
async def post_results(request: Request) -> Response:
    """Results of many subscriptions, each from its own cursor on."""
    require_broker_or_read(request)
    trusted = caller_of(request).is_trusted_broker
    body = await read_json(request, wire.ResultsRequest, LARGE_BODY_BYTES if trusted else BODY_BYTES)
    return await _results(request, body.channel, body.subscriptions)


@router.post(wire.JOINT_RESULTS, openapi_extra=request_body(wire.JointResultsRequest), response_class=Response)
async def post_joint_results(request: Request) -> Response:
    """Results of subscriptions of several channels, as far as they are in memory. Brokers request the others alone."""
    context = require_broker_or_read(request)
    trusted = caller_of(request).is_trusted_broker
    body = await read_json(request, wire.JointResultsRequest, LARGE_BODY_BYTES if trusted else BODY_BYTES)
    check_number(sum(len(one.subscriptions) for one in body.requests))
    content = await asyncio.to_thread(_joint_results, request, context, body.requests)
    return Response(content, headers={"Cache-Control": "no-store"}, media_type=NDJSON)


@router.get(wire.RESULTS + "/{subscription}/{cursor}", response_class=Response)
async def get_result(request: Request, subscription: str, cursor: str) -> Response:
    """The result with this cursor: as JSON, as a GeoJSON Feature or as a CAP alert."""
    context = require_broker_or_read(request)
    form = _accepted_form(request, _SINGLE_FORMS)
    body = await asyncio.to_thread(_single_result, request, context, subscription, cursor, form)
    return Response(body, headers={"Cache-Control": "no-store"}, media_type=form)


async def _results(request: Request, channel: str, cursors: dict[str, str | None]) -> Response:
    context = require_broker_or_read(request)
    check_number(len(cursors))
    form = _accepted_form(request, _LISTING_FORMS)
    pull = await asyncio.to_thread(_open, request, context, channel, cursors)
    headers = {wire.CURSOR_HEADER: str(pull.upto), "Cache-Control": "no-store"}
    if pull.gaps:
        headers[wire.GAP_HEADER] = str(len(pull.gaps))
    pieces = await asyncio.to_thread(_listing, context, pull, form)
    return StreamingResponse(pieces, headers=headers, media_type=form)


def _joint_results(request: Request, context: ClusterContext, requests: list[wire.ResultsRequest]) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    for one in requests:
        line, results = wire.ChannelLine(one.channel), b""
        if size_bytes < JOINT_BYTES:
            with suppress(TocsinError):  # the broker requests the channel by itself, and gets the error
                pull = _open(request, context, one.channel, one.subscriptions)
                if pull.tables is not None:
                    results = b"".join(json_lines(context.source.results, pull))
                    line = wire.ChannelLine(one.channel, str(pull.upto), results.count(b"\n"))
        parts += [wire.encode(line), b"\n", results]
        size_bytes += len(results)
    return b"".join(parts)


def _single_result(request: Request, context: ClusterContext, identity: str, text: str, form: str) -> bytes:
    subscription = subscription_id_of(identity)
    channels = context.source.catalog.subscriptions.find(subscription)
    if not channels:
        raise unknown_subscription(identity)
    after = parsed_cursor(text)
    if after.offset:
        # A result's cursor is the position behind it.
        pull = _open(request, context, channels[0][0], {subscription: str(Cursor(after.epoch, after.offset - 1))})
        if not pull.gaps and after <= pull.upto:
            for results in pulled(context.source.results, only(pull, after)):
                return _single(context, pull, results[0], form)
    raise TocsinError(
        Code.NOT_FOUND, f"{identity} has no result with the cursor {after}, or it has passed its retention"
    )


def _open(request: Request, context: ClusterContext, channel: str, cursors: dict[str, str | None]) -> Pull:
    """Open a pull. Raises UNKNOWN_SUBSCRIPTION if the caller may not see one of the subscriptions."""
    ids = {subscription_id_of(identity): cursor for identity, cursor in cursors.items()}
    pull = open_pull(context.source, channel, ids)
    caller = caller_of(request)
    if not (caller.may_read or caller.may_be_any):
        require_channel(request, pull.channel)
        hidden = pull.not_held_by(context.source, caller.may_be)
        if hidden is not None:
            raise unknown_subscription(hidden)
    return pull


# -- forms -------------------------------------------------------------------------------------------------------------


def _accepted_form(request: Request, forms: Mapping[str, str]) -> str:
    """The first media type of the `Accept` header that is available."""
    kinds = [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")]
    for kind in kinds:
        if kind in forms:
            return forms[kind]
    hint = "; a listing in CAP is an Atom feed, one result is an alert" if CAP in kinds else ""
    raise TocsinError(Code.BAD_REQUEST, f"Accept: this comes as {', '.join(sorted(set(forms.values())))}{hint}")


def _listing(context: ClusterContext, pull: Pull, form: str) -> Iterator[bytes]:
    """The bytes of all results of a pull. They are read in the thread that iterates."""
    store = context.source.results
    if form == ARROW:
        return arrow_stream(store, pull)
    if form == GEOJSON:
        gaps = [ResultGap(subscription, str(cursor)) for subscription, cursor in pull.gaps.items()]
        features = (
            [feature(result.subscription, result.cursor, result.result) for result in results]
            for results in pulled(store, pull)
        )
        return collection(gaps, features)
    return _feed(context, pull) if form == ATOM else json_lines(store, pull)


def _single(context: ClusterContext, pull: Pull, result: Pulled, form: str) -> bytes:
    if form == CAP:
        return alert_document(_Issuer(context, pull).alert(result))
    if form == GEOJSON:
        return encode(feature(result.subscription, result.cursor, result.result))
    return encode(result._asdict())


def _feed(context: ClusterContext, pull: Pull) -> Iterator[bytes]:
    issuer = _Issuer(context, pull)
    entries = (
        (f"{wire.RESULTS}/{result.subscription}/{result.cursor}", issuer.alert(result))
        for results in pulled(context.source.results, pull)
        for result in results
    )
    missing = f"Gap: results of {', '.join(pull.gaps)} before this have passed their retention." if pull.gaps else None
    updated = issuer.latest(context.now_s())
    about = AtomFeed(f"urn:tocsin:channel:{pull.channel}", pull.channel, issuer.sender, updated, missing)
    return (piece.encode() for piece in atom_feed(about, entries))


class _Issuer:
    """Makes CAP alerts of the results of one pull; knows when each of its executions finished."""

    def __init__(self, context: ClusterContext, pull: Pull) -> None:
        self._channel = pull.channel
        self.sender = context.settings.cap_sender
        first = execution_of(min(pull.after.values(), default=0))
        times = context.source.catalog.executions.times(pull.channel, pull.upto.epoch, first)
        self._executions = [execution for execution, _ in times]
        self._finished_s = [finished_s for _, finished_s in times]

    def alert(self, result: Pulled) -> Alert:
        identifier = f"{result.subscription}-{result.cursor}"
        return alert_of(result.result, Origin(identifier, self.sender, self._sent(result.cursor), self._channel))

    def latest(self, now_s: float) -> datetime:
        return _moment(self._finished_s[-1] if self._finished_s else now_s)

    def _sent(self, cursor: str) -> datetime:
        """When the result's execution finished.

        An execution with more than 2**20 results also uses the next numbers.
        """
        position = Cursor.parse(cursor)
        assert position is not None
        at = bisect_right(self._executions, execution_of(position.offset - 1)) - 1
        return _moment(self._finished_s[max(at, 0)] if self._finished_s else 0.0)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
