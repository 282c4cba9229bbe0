"""Forwards some GET requests to the data cluster, for pages that can reach only the coordinator.

The caller needs the scope read. The request carries the caller's own token, so the data cluster decides what the caller
may see. Answers and errors come back unchanged, up to `MAX_BYTES`.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode

import httpx
from fastapi import APIRouter, Request, Response

from tocsin.runtime.coordinator.cluster import cluster_client
from tocsin.runtime.coordinator.routes.authentication import require_read
from tocsin.runtime.http.authentication import token_of
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["data cluster"])

MAX_BYTES = 8 << 20
_TIMEOUT_S = 15.0
_KEPT_HEADERS = ("content-type", "retry-after", "tocsin-cursor", "tocsin-gap", "www-authenticate")


@router.get("/v1/cluster/channels/{name}", name="channel", response_class=Response)
async def get_channel(request: Request, name: str) -> Response:
    return await _pass_on(request, f"/v1/channels/{quote(name, safe='')}")


async def get_list(request: Request) -> Response:
    """The answer of the data cluster to the same path without `/cluster`. Results come as JSON lines."""
    return await _pass_on(request, str(request.scope["path"]).replace("/v1/cluster", "/v1", 1))


for resource in ("channels", "executions", "subscriptions", "results", "datasets"):
    # OpenAPI operation ids are made from the name; generated clients name their methods after them.
    router.add_api_route(f"/v1/cluster/{resource}", get_list, name=resource, response_class=Response)


async def _pass_on(request: Request, path: str) -> Response:
    settings = require_read(request).settings
    if settings.cluster is None:
        raise TocsinError(Code.NOT_FOUND, "this coordinator knows no data cluster: start it with --cluster ADDRESS")
    # A token from the query is sent on in the header only, because queries end up in logs.
    query = [(name, value) for name, value in parse_qsl(request.url.query) if name != "access_token"]
    headers = {"Authorization": f"Bearer {token_of(request.scope)}", "Accept": "application/json"}
    try:
        async with cluster_client(settings, settings.cluster, _TIMEOUT_S) as client:
            url = f"{path}?{urlencode(query)}" if query else path
            async with client.stream("GET", url, headers=headers) as answer:
                body = await _read(answer)
                kept = {name: value for name, value in answer.headers.items() if name in _KEPT_HEADERS}
                return Response(body, answer.status_code, kept)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        reason = f"the data cluster does not answer ({type(error).__name__})"
        raise TocsinError(Code.NOT_READY, reason, retry_after_s=2) from None


async def _read(answer: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > MAX_BYTES:
            message = f"the answer has more than {MAX_BYTES:,} bytes: ask for less, or ask the data cluster itself"
            raise TocsinError(Code.TOO_LARGE, message)
    return bytes(body)
