"""Publishing: `POST /v1/datasets/{name}/records`, and a WebSocket at `/v1/datasets/{name}/stream`.

The data cluster answers when the records are on disk. This is its hot path: the route passes a body to the feed gateway
unparsed.

On the WebSocket one message is one body of records, and answers come in the order of the messages. A message is a JSON
array, one object or JSON lines; or `{"id": …, "idempotency_key": …, "records": […]}`, whose id is repeated in the
answer. A few messages may wait for their answers; then reading stops, and TCP slows the publisher down.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response, WebSocket
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from tocsin.cluster.feed.gateway import (
    Accepted,
    Backlogged,
    CursorConflict,
    KeyConflict,
    Malformed,
    RecordedRange,
    RecordForm,
    Refused,
    TooLarge,
    Unavailable,
)
from tocsin.cluster.server.publishers import S_PER_BYTE, Publisher
from tocsin.cluster.server.routes.authentication import caller_of, require_publish
from tocsin.cluster.server.routes.context import ClusterContext
from tocsin.runtime.http.answers import JSON, answer, encode, error_body, read_body
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["records"])
_PUBLISH = re.compile("/v1/datasets/([^/]+)/records")
_JSON = JSON.encode()

IN_FLIGHT = 16
"""Messages that wait for their answers, per WebSocket."""
SOCKETS_EACH = 4
"""WebSockets of one publisher: a message that has not arrived completely is in no account of memory."""
MESSAGE_BYTES = 2 << 20
"""Largest message on a WebSocket, unless bodies are limited to less. Larger bodies go by POST."""
REFUSAL_CODES: dict[type[Refused], Code] = {
    Malformed: Code.BAD_RECORDS,
    TooLarge: Code.TOO_LARGE,
    KeyConflict: Code.IDEMPOTENCY_CONFLICT,
    CursorConflict: Code.IDEMPOTENCY_CONFLICT,
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
_Reply = tuple[int, dict[str, Any]]
"""(HTTP status, body)."""


@router.post("/v1/datasets/{name}/records", openapi_extra=_RECORDS, response_class=Response)
async def publish(request: Request, name: str) -> Response:
    """Store records. Send an `Idempotency-Key` header to make a repeat of this request harmless."""
    status, reply = await _publish(request, name)
    headers = {"Retry-After": str(reply["retry_after_s"])} if "retry_after_s" in reply else None
    return answer(reply, status, headers)


async def _publish(request: Request, name: str) -> _Reply:
    context = require_publish(request, name)
    form = RecordForm.of_content_type(_header(request.scope, b"content-type") or "")
    if form is None:
        raise TocsinError(Code.BAD_REQUEST, f"send records as one of: {', '.join(form.value for form in RecordForm)}")
    limit_bytes = context.commit_of(name).gateway.limits.body_bytes
    caller = caller_of(request).account
    with context.publisher(caller) as publisher:
        declared_bytes = _declared_bytes(request.scope, limit_bytes)
        with context.room_for_records(caller, declared_bytes) as take_room:
            body = await _read_counted(request, limit_bytes, take_room, publisher)
            key = _header(request.scope, b"idempotency-key")
            return await _store(context, name, body, form, key, publisher)


def _declared_bytes(scope: Scope, limit_bytes: int) -> int:
    """The size that the request declares; 0 if it declares none, or one that is refused anyway."""
    length = _header(scope, b"content-length") or ""
    return int(length) if length.isdecimal() and int(length) <= limit_bytes else 0


async def _read_counted(
    request: Request, limit_bytes: int, take_room: Callable[[int], None], publisher: Publisher
) -> bytes:
    """The body. One that is refused while it arrives, or does not arrive completely, counts as waste."""
    received_bytes = 0

    def take(size_bytes: int) -> None:
        nonlocal received_bytes
        received_bytes += size_bytes
        take_room(size_bytes)

    try:
        return await read_body(request, limit_bytes, take)
    except (TocsinError, ClientDisconnect):
        publisher.waste(S_PER_BYTE * received_bytes, time.monotonic())
        raise


def _header(scope: Scope, name: bytes) -> str | None:
    """Like `request.headers.get`, which builds an object first."""
    for header, value in scope["headers"]:
        if header == name:
            return bytes(value).decode("latin-1")
    return None


def publishing_first(app: FastAPI) -> ASGIApp:
    """`app` with a short cut: requests to publish bypass the framework, whose routing costs as much as 100 records.

    The route stays registered for the OpenAPI description.
    """

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        match = _PUBLISH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if match is None:
            await app(scope, receive, send)
            return
        scope["app"] = app
        status, reply = await _publish(Request(scope, receive, send), match[1])
        body = encode(reply)
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", _JSON)]
        if "retry_after_s" in reply:
            headers.append((b"retry-after", b"%d" % reply["retry_after_s"]))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return dispatch


async def _store(
    context: ClusterContext, name: str, body: bytes, form: RecordForm, idempotency_key: str | None, publisher: Publisher
) -> _Reply:
    """Store one body of records. Returns when it is on disk or refused."""
    outcome = await commit_records(context, name, body, form, idempotency_key, publisher=publisher)
    return _accepted(outcome) if isinstance(outcome, Accepted) else (outcome.status, _refusal(outcome))


async def commit_records(
    context: ClusterContext,
    name: str,
    body: bytes,
    form: RecordForm,
    idempotency_key: str | None = None,
    recorded: RecordedRange | None = None,
    publisher: Publisher | None = None,
) -> Accepted | Refused:
    """Pass a body to the gateway and start ingestion. Returns when the records are on disk or refused."""
    commit, live = context.commit_of(name), context.cluster.dataset(name)
    dataset = live.dataset.name
    outcome = await commit.store(body, form, idempotency_key, recorded, publisher)
    # The records may be stored now: nothing below may raise, not even because the process is stopping.
    if not isinstance(outcome, Accepted):
        context.metrics.requests_refused.labels(dataset, str(outcome.status)).inc()
        return outcome
    if not outcome.replayed:
        context.metrics.count_records(dataset, outcome.accepted, outcome.duplicates, outcome.refused_total)
        if outcome.accepted and live.query is None:
            watch = context.process.watch
            assert watch is not None
            context.in_background(asyncio.to_thread(watch.start, dataset))
    return outcome


def _accepted(outcome: Accepted) -> _Reply:
    reply: dict[str, Any] = {
        "accepted": outcome.accepted,
        "duplicates": outcome.duplicates,
        "refused": outcome.refused,
        "refused_total": outcome.refused_total,
        "replayed": outcome.replayed,
    }
    if outcome.notices:
        reply["notices"] = outcome.notices
    if outcome.refused_total and not outcome.accepted and not outcome.duplicates:
        first = outcome.refused[0]
        where = f"record {first.index}" + (f", field {first.field}" if first.field else "")
        message = f"every record was refused; {where}: {first.reason}"
        return Code.BAD_RECORDS.status, error_body(Code.BAD_RECORDS, message) | reply
    return 200, reply


def _refusal(refused: Refused) -> dict[str, Any]:
    reply = error_body(REFUSAL_CODES[type(refused)], refused.reason)
    if isinstance(refused, Backlogged | Unavailable):
        reply["retry_after_s"] = refused.retry_after_s
    return reply


# -- over a WebSocket --------------------------------------------------------------------------------------------------


class _StreamMessage(msgspec.Struct, forbid_unknown_fields=True):
    records: msgspec.Raw
    id: str | int | None = None
    idempotency_key: str | None = None


_decode_message = msgspec.json.Decoder(_StreamMessage).decode
_Pending = tuple[str | int | None, asyncio.Task[_Reply]]
"""(id of the message, the task that stores its records)."""


@router.websocket("/v1/datasets/{name}/stream")
async def publish_stream(socket: WebSocket, name: str) -> None:
    context = require_publish(socket, name)
    context.commit_of(name)  # refuses unknown and STATIC datasets before the handshake
    caller = caller_of(socket).account
    if context.publishing[caller] >= SOCKETS_EACH:
        message = f"you publish over {SOCKETS_EACH} WebSockets already; close one"
        raise TocsinError(Code.BACKLOGGED, message, retry_after_s=10)
    context.publishing[caller] += 1
    try:
        await socket.accept()
        await _publish_messages(socket, context, name, caller)
    finally:
        context.publishing[caller] -= 1


async def _publish_messages(socket: WebSocket, context: ClusterContext, name: str, caller: str) -> None:
    replies: asyncio.Queue[_Pending | None] = asyncio.Queue()
    room = asyncio.Semaphore(IN_FLIGHT)
    reading = asyncio.create_task(_read(socket, context, (name, caller), replies, room))
    replying = asyncio.create_task(_reply_in_order(socket, replies, room))
    replying.add_done_callback(lambda _: reading.cancel())
    try:
        with context.process.calling_on_stop(reading.cancel):
            await asyncio.wait((reading,))
        replies.put_nowait(None)
        await replying  # accepted messages are answered, also when this process stops
        if context.process.stopping.is_set():
            await socket.close(1012, "the data cluster is stopping; connect again")
    except (WebSocketDisconnect, RuntimeError):
        return  # the publisher disconnected: accepted records are stored, their answers are dropped
    finally:
        reading.cancel()
        replying.cancel()


async def _read(
    socket: WebSocket,
    context: ClusterContext,
    target: tuple[str, str],
    replies: asyncio.Queue[_Pending | None],
    room: asyncio.Semaphore,
) -> None:
    """Store each message that arrives. `target` is (dataset, caller)."""
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        await room.acquire()
        text = message.get("text")
        body = bytes(message.get("bytes") or b"") if text is None else text.encode("utf-8", "surrogatepass")
        identity, records, key = _split_envelope(body)
        replies.put_nowait((identity, asyncio.create_task(_stored(context, *target, records, key))))


def _split_envelope(body: bytes) -> tuple[str | int | None, bytes, str | None]:
    """Split a message into (id, records, Idempotency-Key).

    A message that is not an envelope consists of records alone. The field `records` tells them apart: no column can
    hold a list of objects.
    """
    if body[:1] == b"{" and b'"records"' in body:
        try:
            message = _decode_message(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None, body, None
        return message.id, bytes(message.records), message.idempotency_key
    return None, body, None


async def _stored(context: ClusterContext, name: str, caller: str, body: bytes, key: str | None) -> _Reply:
    try:
        with context.publisher(caller) as publisher, context.room_for_records(caller) as take_room:
            take_room(len(body))
            return await _store(context, name, body, RecordForm.JSON, key, publisher)
    except TocsinError as error:
        reply = error_body(error.code, error.message)
        if error.retry_after_s is not None:
            reply["retry_after_s"] = error.retry_after_s
        return error.code.status, reply


async def _reply_in_order(socket: WebSocket, replies: asyncio.Queue[_Pending | None], room: asyncio.Semaphore) -> None:
    while (pending := await replies.get()) is not None:
        identity, storing = pending
        status, reply = await storing
        room.release()
        await socket.send_text(encode({"id": identity, "status": status} | reply).decode())
