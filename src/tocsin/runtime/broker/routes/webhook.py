"""A subscriber's webhook: the URL that the broker calls while the subscriber has no session."""

from __future__ import annotations

import base64
import secrets

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.runtime.broker.routes.context import caller_of, context_of
from tocsin.runtime.broker.webhooks import SECRET_PREFIX, is_secret
from tocsin.runtime.http.answers import answer, decode_json, read_body, request_body
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.link import Webhook

router = APIRouter(tags=["webhook"])


class WebhookBody(msgspec.Struct):
    url: str
    secret: str | None = None
    """`whsec_…`; without one the broker makes a secret."""
    keep_secret: bool = False
    """Sign with the previous secret too, until the next change, so that the receiver can switch without a pause."""


def _webhook_of(request: Request) -> Webhook | None:
    subscriber = context_of(request).process.core.state.subscribers.get(caller_of(request))
    return None if subscriber is None else subscriber.webhook


@router.get("/v1/webhook", response_class=Response)
async def get_webhook(request: Request) -> Response:
    """The URL of the webhook. Its secrets are shown only once, when they are made."""
    webhook = _webhook_of(request)
    if webhook is None:
        raise TocsinError(Code.NOT_FOUND, "you have no webhook here; PUT /v1/webhook sets one")
    return answer({"url": webhook.url, "secrets": len(webhook.secrets)})


@router.put("/v1/webhook", openapi_extra=request_body(WebhookBody), response_class=Response)
async def put_webhook(request: Request) -> Response:
    """Call this URL with each result while no session is open. The answer contains the signing secret.

    First the broker asks the owner of the URL for consent: it sends OPTIONS with `WebHook-Request-Origin`, and expects
    200 with `WebHook-Allowed-Origin`.
    """
    context = context_of(request)
    body = decode_json(await read_body(request, context.settings.frame_bytes), WebhookBody)
    if not context.settings.webhooks:
        raise TocsinError(Code.FORBIDDEN, "this broker calls no webhooks")
    if body.secret is not None and not is_secret(body.secret):
        raise TocsinError(Code.BAD_REQUEST, "secret: expected whsec_ and 24 to 64 bytes in base64")
    secret = body.secret or SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
    former = _webhook_of(request)
    kept = former.secrets[:1] if former is not None and body.keep_secret else []
    subscriber, webhook = caller_of(request), Webhook(body.url, [secret, *kept])
    await context.webhooks.check(subscriber, webhook)
    context.webhooks.forget(subscriber)
    await context.process.change_webhook(subscriber, webhook)
    return answer({"url": body.url, "secret": secret})


@router.delete("/v1/webhook", response_class=Response)
async def delete_webhook(request: Request) -> Response:
    context = context_of(request)
    removed = _webhook_of(request) is not None
    await context.process.change_webhook(caller_of(request), None)
    return answer({"removed": removed})
