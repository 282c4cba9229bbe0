"""What the data cluster answers, for pages that may only talk to the coordinator: some of its GET paths, passed on.

With the caller's own token, which needs the scope read here: the data cluster decides what it may see. Answers come
back as they are, errors too, up to a size.
"""

from __future__ import annotations

import ssl
from urllib.parse import parse_qsl, quote, urlencode

import httpx
from fastapi import APIRouter, Request, Response

from tocsin.runtime.coordinator.routes.api import Api, require_read
from tocsin.runtime.http.authentication import token_of
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["data cluster"])

MOST_BYTES = 8 << 20
_TIMEOUT_S = 15.0
_PASSED_ON = ("content-type", "retry-after", "tocsin-cursor", "tocsin-gap", "www-authenticate")


@router.get("/v1/cluster/channels", response_class=Response)
async def channels(request: Request) -> Response:
    return await _relayed(request, "/v1/channels")


@router.get("/v1/cluster/channels/{name}", response_class=Response)
async def channel(request: Request, name: str) -> Response:
    return await _relayed(request, f"/v1/channels/{quote(name, safe='')}")


@router.get("/v1/cluster/executions", response_class=Response)
async def executions(request: Request) -> Response:
    return await _relayed(request, "/v1/executions")


@router.get("/v1/cluster/subscriptions", response_class=Response)
async def subscriptions(request: Request) -> Response:
    return await _relayed(request, "/v1/subscriptions")


@router.get("/v1/cluster/results", response_class=Response)
async def results(request: Request) -> Response:
    """Results of subscriptions, as JSON lines."""
    return await _relayed(request, "/v1/results")


@router.get("/v1/cluster/datasets", response_class=Response)
async def datasets(request: Request) -> Response:
    return await _relayed(request, "/v1/datasets")


async def _relayed(request: Request, path: str) -> Response:
    api = require_read(request)
    cluster = api.settings.cluster
    if cluster is None:
        raise TocsinError(Code.NOT_FOUND, "this coordinator knows no data cluster: start it with --cluster ADDRESS")
    # A token that came in the query goes on in the header alone: queries end up in logs.
    query = [(name, value) for name, value in parse_qsl(request.url.query) if name != "access_token"]
    headers = {"Authorization": f"Bearer {token_of(request.scope)}", "Accept": "application/json"}
    try:
        async with _client(api, cluster) as client:
            url = f"{path}?{urlencode(query)}" if query else path
            async with client.stream("GET", url, headers=headers) as answer:
                body = await _bounded(answer)
                kept = {name: value for name, value in answer.headers.items() if name in _PASSED_ON}
                return Response(body, answer.status_code, kept)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        reason = f"the data cluster does not answer ({type(error).__name__})"
        raise TocsinError(Code.NOT_READY, reason, retry_after_s=2) from None


async def _bounded(answer: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > MOST_BYTES:
            raise TocsinError(
                Code.TOO_LARGE,
                f"the answer has more than {MOST_BYTES:,} bytes: ask for less, or the data cluster itself",
            )
    return bytes(body)


def _client(api: Api, cluster: str) -> httpx.AsyncClient:
    ca = api.settings.cluster_ca
    verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca) if ca else True
    return httpx.AsyncClient(base_url=cluster, timeout=_TIMEOUT_S, verify=verify)
