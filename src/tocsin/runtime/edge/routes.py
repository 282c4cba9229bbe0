"""The HTTP API of an edge node, and at the root that of the tree; docs/edge.md describes it.

Every request needs the secret of the tree, except /healthz. A node without a secret listens on loopback only.
"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
from fastapi import APIRouter, Query, Request, Response, WebSocket
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Scope

from tocsin.edge.operators.contract import END_OF_TIME_US
from tocsin.runtime.edge.metrics import EdgeMetrics
from tocsin.runtime.edge.node import NodeProcess
from tocsin.runtime.edge.publishers import BatchesMissing
from tocsin.runtime.edge.readings import from_arrow, from_json
from tocsin.runtime.edge.root import RootProcess
from tocsin.runtime.edge.settings import EdgeSettings
from tocsin.runtime.http.answers import ARROW, JSON, LARGE_BODY_BYTES, answer, error_body, read_body, read_json
from tocsin.runtime.http.application import make_application
from tocsin.runtime.http.audit import AuditLog, record_request
from tocsin.runtime.http.authentication import AuthenticationMiddleware, token_of
from tocsin.runtime.http.callers import Caller
from tocsin.runtime.http.open_requests import CALLER
from tocsin.runtime.http.pages import serve_pages
from tocsin.runtime.http.settings import is_loopback
from tocsin.wire import edge_data, edge_link, edge_peer
from tocsin.wire.errors import Code, TocsinError

PART = "edge node"
_PUBLISHER_CHARACTERS = 128
_MOST_BATCHES = 1_000
_THREAD_BYTES = 1 << 20
"""A larger body is decoded in a thread."""
_TREE = Caller("tree", "tree", frozenset({"admin"}))
_QUIET = frozenset({"/v1/streams/{stream}/readings"})
"""Not in the audit log when they succeed."""
router = APIRouter()


@dataclass(frozen=True)
class EdgeContext:
    node: NodeProcess
    root: RootProcess | None
    metrics: EdgeMetrics


class Statements(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class TransferOrder(msgspec.Struct, forbid_unknown_fields=True):
    operators: list[str]
    destination: str


class WatermarkPromise(msgspec.Struct, forbid_unknown_fields=True):
    time: datetime | None = None
    """No older reading will enter here. Missing: no reading at all."""


def make_app(
    context: EdgeContext,
    settings: EdgeSettings,
    secret: str | None,
    audit: AuditLog | None = None,
    pages: Path | None = None,
) -> ASGIApp:
    """`pages` is the folder of the tree view, which the root serves; None serves none."""
    app = make_application(
        PART, "Readings enter here; at the root: queries, the tree and transfers.", context, [router]
    )
    has_page = pages is not None and context.root is not None
    if pages is not None and has_page:
        serve_pages(app, pages, "edge.html")
    metrics_are_open = settings.open_metrics and is_loopback(settings.host)

    async def admit(scope: Scope) -> None:
        path: str = scope["path"]
        if secret is None or path == "/healthz" or (path == "/metrics" and metrics_are_open):
            return
        if has_page and (path == "/" or path.startswith("/static/")):
            return
        token = token_of(scope)
        if token is None or not hmac.compare_digest(token.encode(), secret.encode()):
            raise TocsinError(Code.UNAUTHENTICATED, "send the secret of the tree: Authorization: Bearer …")
        scope[CALLER] = _TREE

    def answered(method: str, status: int) -> None:
        context.metrics.requests.labels(method, str(status)).inc()

    def record(scope: Scope, status: int) -> None:
        record_request(audit, scope, status, _QUIET)

    return AuthenticationMiddleware(app, admit, answered, PART, audit=record)


def _context(connection: HTTPConnection) -> EdgeContext:
    return cast("EdgeContext", connection.app.state.context)


def _root(connection: HTTPConnection) -> RootProcess:
    root = _context(connection).root
    if root is None:
        raise TocsinError(Code.NOT_FOUND, "this node is not the root; send the request to the root's process")
    return root


@router.get("/healthz", response_class=Response)
async def health(request: Request) -> Response:
    node = _context(request).node
    return answer({"ok": True, "node": node.name, "generation": node.member.runs})


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    return Response(_context(request).metrics.exposition(), media_type="text/plain; version=0.0.4")


# -- readings ----------------------------------------------------------------------------------------------------------


@router.post("/v1/streams/{stream}/readings", response_class=Response)
async def publish(request: Request, stream: str) -> Response:
    """Store readings: a JSON array of objects, or an Arrow IPC stream; several with `Tocsin-Batches`."""
    node = _context(request).node
    declared = node.entry_stream(stream)
    publisher, number = _publisher(request)
    durable = _whole_number(request, "Tocsin-Durable", 0) if publisher is not None else None
    body = await read_body(request, LARGE_BODY_BYTES)
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    count = _whole_number(request, "Tocsin-Batches", 1) or 1
    if count > 1 and (kind != ARROW or number is None):
        raise TocsinError(Code.BAD_REQUEST, "Tocsin-Batches goes with Tocsin-Number and Arrow IPC streams")
    if count > _MOST_BATCHES:
        raise TocsinError(Code.BAD_REQUEST, f"a request has at most {_MOST_BATCHES} batches")

    def decode() -> list[pa.RecordBatch]:
        return from_arrow(body, declared, count) if kind == ARROW else [from_json(body, declared)]

    # While a large body is decoded, the node goes on with its beats and the connections of the tree.
    is_large = len(body) > _THREAD_BYTES
    batches = await asyncio.to_thread(decode) if is_large else decode()
    try:
        stored = await node.store(stream, declared, batches, publisher, number, durable, request.is_disconnected)
    except BatchesMissing as missing:
        return answer(asdict(missing.stored) | error_body(missing.code, missing.message), missing.code.status)
    return answer(asdict(stored))


@router.post("/v1/streams/{stream}/watermark", response_class=Response)
async def promise(request: Request, stream: str) -> Response:
    """Promise that no older reading of the stream will enter at this node."""
    node = _context(request).node
    node.entry_stream(stream)
    promised = (await read_json(request, WatermarkPromise)).time
    if promised is None:
        watermark_us = END_OF_TIME_US
    else:
        in_utc = promised.replace(tzinfo=UTC) if promised.tzinfo is None else promised
        watermark_us = round(in_utc.timestamp() * 1e6)
    await node.promise(stream, watermark_us)
    return answer({})


def _publisher(request: Request) -> tuple[str | None, int | None]:
    publisher, number = request.headers.get("tocsin-publisher"), _whole_number(request, "Tocsin-Number", 1)
    if (publisher is None) != (number is None):
        raise TocsinError(Code.BAD_REQUEST, "Tocsin-Publisher and Tocsin-Number go together")
    if publisher is None or number is None:
        return None, None
    is_name = 0 < len(publisher) <= _PUBLISHER_CHARACTERS and publisher.isprintable()
    if not is_name or publisher.startswith(("~", "source:")):
        raise TocsinError(
            Code.BAD_REQUEST, "Tocsin-Publisher: expected up to 128 characters, without ~ or source: in front"
        )
    return publisher, number


def _whole_number(request: Request, header: str, least: int) -> int | None:
    text = request.headers.get(header)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not least <= int(text) < 2**63:
        raise TocsinError(Code.BAD_REQUEST, f"{header}: expected a whole number from {least} on")
    return int(text)


# -- the tree ----------------------------------------------------------------------------------------------------------


@router.get("/v1/edge", response_class=Response)
async def describe(request: Request) -> Response:
    return answer(_root(request).described())


@router.post("/v1/edge/statements", response_class=Response)
async def apply(request: Request) -> Response:
    root = _root(request)
    statements = await read_json(request, Statements)
    return answer({"statements": await root.apply(statements.text)})


@router.delete("/v1/edge/queries/{name}", response_class=Response)
async def drop(request: Request, name: str) -> Response:
    await _root(request).drop(name)
    return answer({})


@router.post("/v1/edge/transfers", response_class=Response)
async def transfer(request: Request) -> Response:
    root = _root(request)
    order = await read_json(request, TransferOrder)
    begun = await root.transfer(order.operators, order.destination)
    return answer({"operators": begun.operators, "source": begun.node, "destination": order.destination})


@router.get("/v1/edge/results", response_class=Response)
async def results(request: Request, after: int = Query(0, ge=0), limit: int = Query(100, ge=1, le=1_000)) -> Response:
    """The results that wait in the outbox. Without a sink they stay there."""
    entries = await _root(request).outbox(after, limit)
    described: list[dict[str, Any]] = [
        {
            "number": entry.number,
            "query": entry.query,
            "dataset": entry.dataset,
            "rows": [msgspec.Raw(line) for line in entry.body.split(b"\n")],
        }
        for entry in entries
    ]
    return answer({"entries": described})


@router.get("/v1/edge/handovers", response_class=Response)
async def handovers(request: Request) -> Response:
    """The latest hand-overs that this node gave, oldest first."""
    return answer({"handovers": [asdict(handover) for handover in _context(request).node.handovers.recent]})


# -- connections of other nodes ----------------------------------------------------------------------------------------


@router.websocket(edge_link.PATH)
async def control(socket: WebSocket) -> None:
    root = _root(socket)
    await socket.accept()
    await root.links.accept(socket)


@router.websocket(edge_data.PATH)
async def data(socket: WebSocket) -> None:
    await socket.accept()
    await _context(socket).node.accept_data(socket)


@router.websocket(edge_peer.PATH)
async def peer(socket: WebSocket) -> None:
    await socket.accept()
    await _context(socket).node.accept_peer(socket)
