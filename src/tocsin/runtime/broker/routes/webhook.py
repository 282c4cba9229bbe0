"""A subscriber's webhook: where it is called when it has no session."""

from __future__ import annotations

import base64
import secrets

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.runtime.broker.routes.api import BrokerApi, api_of, subscriber_calling
from tocsin.runtime.broker.webhooks import SECRET_PREFIX, addresses_of, check_url, is_secret
from tocsin.runtime.http.answers import answer, decode_json, described, read_body
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.link import Webhook

router = APIRouter(tags=["webhook"])


class WantedWebhook(msgspec.Struct):
    url: str
    secret: str | None = None
    """`whsec_…`; one is made when none is given."""
    keep_secret: bool = False
    """Sign with the former secret too, until the next change: for replacing it without a pause."""


def _webhook_of(api: BrokerApi, request: Request) -> Webhook | None:
    subscriber = api.process.core.state.subscribers.get(subscriber_calling(request))
    return None if subscriber is None else subscriber.webhook


@router.get("/v1/webhook", response_class=Response)
async def get_webhook(request: Request) -> Response:
    """Its address; secrets are shown once, when they are made."""
    found = _webhook_of(api_of(request), request)
    if found is None:
        raise TocsinError(Code.NOT_FOUND, "you have no webhook here; PUT /v1/webhook sets one")
    return answer({"url": found.url, "secrets": len(found.secrets)})


@router.put("/v1/webhook", openapi_extra=described(WantedWebhook), response_class=Response)
async def put_webhook(request: Request) -> Response:
    """Be called at this address with each result while no session is open; answers with the secret that signs."""
    api = api_of(request)
    wanted = decode_json(await read_body(request, api.settings.frame_bytes), WantedWebhook)
    if not api.settings.webhooks:
        raise TocsinError(Code.FORBIDDEN, "this broker calls no webhooks")
    check_url(wanted.url, private=api.settings.webhooks_private)
    await addresses_of(wanted.url, private=api.settings.webhooks_private)
    if wanted.secret is not None and not is_secret(wanted.secret):
        raise TocsinError(Code.BAD_REQUEST, "secret: expected whsec_ and 24 to 64 bytes in base64")
    secret = wanted.secret or SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
    former = _webhook_of(api, request)
    kept = former.secrets[:1] if former is not None and wanted.keep_secret else []
    subscriber = subscriber_calling(request)
    api.webhooks.forget(subscriber)
    await api.process.choose_webhook(subscriber, Webhook(wanted.url, [secret, *kept]))
    return answer({"url": wanted.url, "secret": secret})


@router.delete("/v1/webhook", response_class=Response)
async def delete_webhook(request: Request) -> Response:
    api = api_of(request)
    removed = _webhook_of(api, request) is not None
    await api.process.choose_webhook(subscriber_calling(request), None)
    return answer({"removed": removed})
