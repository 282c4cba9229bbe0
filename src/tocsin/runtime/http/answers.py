"""Requests and answers of every server: bounded bodies in, msgspec JSON out, one form for every error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from tocsin.runtime.http.bounded_protocols import leaves_body_unread
from tocsin.wire.errors import STANDBY_HEADER, Code, NotLeading, TocsinError

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
GEOJSON = "application/geo+json"
CAP = "application/cap+xml"
ATOM = "application/atom+xml"
EVENT_STREAM = "text/event-stream"
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
BODY_BYTES = 1 << 20
"""Largest body of most requests."""
LARGE_BODY_BYTES = 64 << 20
"""Largest body of an administrator or a broker: enough for 100,000 subscriptions."""
GRACE_S = 10.0
"""A body may take this long, and longer if it arrives at `LEAST_BYTES_PER_S`."""
LEAST_BYTES_PER_S = 16 << 10

_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, JSON)


def error_body(code: Code | str, message: str) -> dict[str, Any]:
    return {"error": {"code": str(code), "message": message}}


def error_answer(error: TocsinError, scope: Scope | None = None) -> Response:
    """The answer to a request with this ASGI scope."""
    body = error_body(error.code, error.message)
    body["error"] |= error.details()
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if isinstance(error, NotLeading):
        headers[STANDBY_HEADER] = error.leader
    if error.code is Code.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = 'Bearer realm="tocsin"'
    if error.code in (Code.TOO_LARGE, Code.TOO_SLOW) or (scope is not None and leaves_body_unread(scope)):
        headers["Connection"] = "close"  # the client need not send the rest of the body
    return answer(body, error.code.status, headers)


async def read_body(
    request: Request, limit_bytes: int, take_room: Callable[[int], None] = lambda size_bytes: None
) -> bytes:
    """The whole body. Raises before more than `limit_bytes` are in memory, and if the body arrives too slowly.

    Check the caller's scope first: this reads what any holder of a token sends.
    `take_room` is called with the size of each piece before the piece is kept, and may raise to refuse it.
    """
    return await receive_body(request.scope, request.receive, limit_bytes, take_room)


async def receive_body(
    scope: Scope, receive: Receive, limit_bytes: int, take_room: Callable[[int], None] = lambda size_bytes: None
) -> bytes:
    """`read_body` for an ASGI request. A body must keep up `LEAST_BYTES_PER_S` beyond `GRACE_S`: it occupies memory."""
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.lower() != b"identity":
            raise TocsinError(Code.BAD_REQUEST, "send the body without Content-Encoding: this server decodes none")
        if name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise too_large(limit_bytes)
    pieces: list[bytes] = []
    size_bytes = 0
    deadline_s = asyncio.get_running_loop().time() + GRACE_S
    try:
        async with asyncio.timeout_at(deadline_s) as limit:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                if piece := message.get("body", b""):
                    size_bytes += len(piece)
                    if size_bytes > limit_bytes:
                        raise too_large(limit_bytes)
                    take_room(len(piece))
                    pieces.append(piece)
                if not message.get("more_body", False):
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
                limit.reschedule(deadline_s + size_bytes / LEAST_BYTES_PER_S)
    except TimeoutError:
        reason = f"the body arrives at less than {LEAST_BYTES_PER_S:,} bytes/s"
        raise TocsinError(Code.TOO_SLOW, reason) from None


def too_large(limit_bytes: int) -> TocsinError:
    return TocsinError(Code.TOO_LARGE, f"at most {limit_bytes:,} body bytes; send less at a time")


async def read_json(request: Request, kind: type[T], limit_bytes: int = BODY_BYTES) -> T:
    """The body as a value of this type. Check the caller's scope first."""
    return decode_json(await read_body(request, limit_bytes), kind)


def decode_json(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise TocsinError(Code.BAD_REQUEST, f"the body does not match: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TocsinError(Code.BAD_REQUEST, f"the body is not JSON: {reason}") from None


def request_body(kind: Any, media_type: str = JSON, description: str = "") -> dict[str, Any]:
    """The OpenAPI description of a request body of type `kind`, for a route that decodes the body itself."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs", {})
    schema = _resolved(schema, definitions)
    if "items" in schema:
        schema["items"] = _resolved(schema["items"], definitions)
    return {
        "requestBody": {
            "required": True,
            "description": description,
            "content": {media_type: {"schema": schema}},
        }
    }


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The definition that a schema refers to; the schema itself if it refers to none."""
    definition: dict[str, Any] = definitions.get(schema.get("$ref", "").rpartition("/")[2], schema)
    return definition


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error that a route raises in the same JSON form."""
    app.add_exception_handler(TocsinError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, TocsinError)
    return error_answer(error, request.scope)


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return answer(error_body(Code.BAD_REQUEST, f"{where}: {first['msg']}"), 400)


def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = Code.NOT_FOUND if error.status_code == 404 else Code.BAD_REQUEST
    return answer(error_body(code, str(error.detail)), error.status_code, dict(error.headers or {}))
