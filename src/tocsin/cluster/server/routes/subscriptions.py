"""Backend subscriptions: create, list, delete; held by brokers, or by an application that is its own broker."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from tocsin.cluster.server.routes.api import caller_of, require_broker, require_broker_or_read, require_read
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId
from tocsin.runtime.http.answers import answer, described, read_json
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["subscriptions"])

MAX_AT_ONCE = 100_000
"""Subscriptions in one request."""
_ID_CHARACTERS = frozenset("0123456789abcdef")


class Wanted(msgspec.Struct):
    channel: str
    parameters: dict[str, Any] | list[dict[str, Any]]
    """Values by name, or a list of such sets."""
    broker: str | None = None
    """Who will hold them; the caller's own if not given."""


class Unwanted(msgspec.Struct):
    channel: str
    subscriptions: list[str]
    broker: str | None = None
    unless_listening: bool = False
    """Said by who believes that the broker is no more: refused while it listens to announcements."""


@router.post("/v1/subscriptions", openapi_extra=described(Wanted), response_class=Response)
async def subscribe(request: Request) -> Response:
    """Subscribe to sets of parameter values; answers with a list of id, cursor and whether it is new, in that order."""
    wanted = await read_json(request, Wanted)
    api, broker = require_broker(request, wanted.broker)
    sets = wanted.parameters if isinstance(wanted.parameters, list) else [wanted.parameters]
    _check_number(len(sets))
    held = await asyncio.to_thread(api.cluster.subscribe, wanted.channel, sets, broker)
    return answer([{"id": one.id, "cursor": str(one.cursor), "created": one.created} for one in held])


@router.get("/v1/subscriptions", response_class=Response)
def list_subscriptions(
    request: Request,
    channel: str | None = None,
    broker: str | None = None,
    after: int = Query(0, ge=0, le=2**62),
    limit: int = Query(1_000, ge=1, le=10_000),
) -> Response:
    """By number; `next` of an answer is the `after` of the next page, null at the end."""
    if broker is not None and caller_of(request).may_be(broker):
        api, _ = require_broker(request, broker)
    else:
        api = require_read(request)
    cluster = api.cluster
    name = None if channel is None else cluster.channel(channel).prepared.channel.name
    page = cluster.catalog.subscriptions.page(name, None if broker is None else BrokerId(broker), after, limit)
    return answer(
        {
            "subscriptions": [
                _described(request, subscription, held_channel, parameters, brokers)
                for _, held_channel, subscription, parameters, brokers in page
            ],
            "next": page[-1][0] if len(page) == limit else None,
        }
    )


@router.get("/v1/subscriptions/{identity}", response_class=Response)
def get_subscription(request: Request, identity: str) -> Response:
    caller = caller_of(request)
    cluster = require_broker_or_read(request).cluster
    subscription = known_id(identity)
    for channel, _, parameters, brokers in cluster.catalog.subscriptions.find(subscription):
        if caller.may_read or any(caller.may_be(broker) for broker in brokers):
            return answer(_described(request, subscription, channel, parameters, brokers))
    raise unknown(identity)


@router.delete("/v1/subscriptions/{identity}", response_class=Response)
def unsubscribe(request: Request, identity: str, broker: str | None = None) -> Response:
    """The broker lets go; the last one to do so removes the subscription."""
    api, holder = require_broker(request, broker)
    subscription = known_id(identity)
    for channel, _, _, brokers in api.cluster.catalog.subscriptions.find(subscription):
        if holder in brokers:
            return answer({"released": api.cluster.unsubscribe(channel, [subscription], holder)})
    raise unknown(identity)


@router.post("/v1/subscriptions/delete", openapi_extra=described(Unwanted), response_class=Response)
async def unsubscribe_many(request: Request) -> Response:
    """Let go of many at once; those the broker does not hold are not counted."""
    unwanted = await read_json(request, Unwanted)
    api, holder = require_broker(request, unwanted.broker)
    if unwanted.unless_listening and api.listening[holder]:
        raise TocsinError(Code.IN_USE, f"{holder} listens to its announcements: it is alive and needs what it holds")
    _check_number(len(unwanted.subscriptions))
    ids = [known_id(identity) for identity in unwanted.subscriptions]
    released = await asyncio.to_thread(api.cluster.unsubscribe, unwanted.channel, ids, holder)
    return answer({"released": released})


@router.get("/v1/brokers/{broker}/holds", response_class=Response)
def holds(request: Request, broker: str) -> Response:
    """How many subscriptions a broker holds, and a fingerprint of which: for it to see that both sides agree."""
    api, holder = require_broker(request, broker)
    count, fingerprint = api.cluster.subscriptions.book.fingerprint(holder)
    return answer({"subscriptions": count, "fingerprint": fingerprint})


def known_id(text: str) -> SubscriptionId:
    """What could be the id of a subscription, or there is no such subscription."""
    if len(text) != 32 or not _ID_CHARACTERS.issuperset(text):
        raise unknown(text)
    return SubscriptionId(text)


def unknown(identity: str) -> TocsinError:
    return TocsinError(Code.UNKNOWN_SUBSCRIPTION, f"there is no subscription {identity[:64]!r} that you may see")


def _check_number(number: int) -> None:
    if number > MAX_AT_ONCE:
        raise TocsinError(Code.TOO_LARGE, f"at most {MAX_AT_ONCE:,} subscriptions at a time")


def _described(
    request: Request, subscription: SubscriptionId, channel: ChannelName, parameters: str, brokers: list[BrokerId]
) -> dict[str, Any]:
    caller = caller_of(request)
    return {
        "id": subscription,
        "channel": channel,
        "parameters": msgspec.Raw(parameters.encode()),
        # A broker is not told who else is interested.
        "brokers": [broker for broker in brokers if caller.may_read or caller.may_be(broker)],
    }
