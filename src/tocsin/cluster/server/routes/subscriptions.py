"""Backend subscriptions: create, list, release. A broker holds them, or an application that acts as its own broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from tocsin.cluster.server.routes.authentication import (
    caller_of,
    require_broker,
    require_broker_or_read,
    require_channel,
    require_read,
    require_some_broker,
)
from tocsin.cluster.server.routes.context import ClusterContext
from tocsin.cluster.subscriptions import Users
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId
from tocsin.runtime.http.answers import answer, encode, read_json, request_body
from tocsin.runtime.http.audit import OBJECT
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["subscriptions"])

MAX_AT_ONCE = 100_000
"""Subscriptions in one request."""
PARAMETER_BYTES = 1 << 10
"""Largest parameter values of a user that subscribes without a broker; brokers have a setting for theirs."""
_ID_CHARACTERS = frozenset("0123456789abcdef")


@router.post(wire.SUBSCRIPTIONS, openapi_extra=request_body(wire.SubscribeRequest), response_class=Response)
async def subscribe(request: Request) -> Response:
    """Subscribe to sets of parameter values. The answer lists id, cursor and `created`, in the order of the sets."""
    body = await read_json(request, wire.SubscribeRequest, require_some_broker(request))
    request.scope[OBJECT] = body.channel
    context, broker = require_broker(request, body.broker)
    require_channel(request, body.channel)
    sets = body.parameters if isinstance(body.parameters, list) else [body.parameters]
    check_number(len(sets))
    users = _users(request, context, broker, body.users, len(sets))
    arguments = (body.channel, sets, broker, users)
    if caller_of(request).is_trusted_broker:
        subscribed = await asyncio.to_thread(context.cluster.subscribe, *arguments)
    else:
        async with context.subscribing_directly:
            _check_quota(request, context, broker, sets)
            subscribed = await asyncio.to_thread(context.cluster.subscribe, *arguments)
    return answer([wire.Granted(held.id, str(held.cursor), held.created, held.bound) for held in subscribed])


def _users(
    request: Request, context: ClusterContext, broker: BrokerId, named: Sequence[str] | None, sets: int
) -> Users:
    """The user of each set of values: of a subscriber's token its own, of a broker those that it has proved.

    An administrator acts for every user: it names the users, or spells the user in the bound parameter.
    """
    caller = caller_of(request)
    if named is not None and len(named) != sets:
        raise TocsinError(Code.BAD_REQUEST, f"users: expected one for each of the {sets} sets of values")
    if caller.is_admin:
        return named
    if not caller.is_trusted_broker:
        return [caller.subject] * sets
    return [None] * sets if named is None else context.proven.known(broker, named)


@router.get(wire.SUBSCRIPTIONS, response_class=Response)
def list_subscriptions(
    request: Request,
    channel: str | None = None,
    broker: str | None = None,
    after: int = Query(0, ge=0, le=2**62),
    limit: int = Query(1_000, ge=1, le=10_000),
) -> Response:
    """A page of subscriptions by number. `next` in the answer is the `after` of the next page, null at the end."""
    if broker is not None and caller_of(request).may_be(broker):
        context, _ = require_broker(request, broker)
    else:
        context = require_read(request)
    cluster = context.cluster
    name = None if channel is None else cluster.channel(channel).prepared.channel.name
    page = cluster.catalog.subscriptions.page(name, None if broker is None else BrokerId(broker), after, limit)
    listed = [
        _listed(request, subscription, held_channel, parameters, brokers)
        for _, held_channel, subscription, parameters, brokers in page
    ]
    return answer(wire.SubscriptionPage(listed, page[-1][0] if len(page) == limit else None))


@router.get(wire.SUBSCRIPTIONS + "/{identity}", response_class=Response)
def get_subscription(request: Request, identity: str) -> Response:
    caller = caller_of(request)
    cluster = require_broker_or_read(request).cluster
    subscription = subscription_id_of(identity)
    for channel, _, parameters, brokers in cluster.catalog.subscriptions.find(subscription):
        if caller.may_read or any(caller.may_be(broker) for broker in brokers):
            return answer(_listed(request, subscription, channel, parameters, brokers))
    raise unknown_subscription(identity)


@router.delete(wire.SUBSCRIPTIONS + "/{identity}", response_class=Response)
def unsubscribe(request: Request, identity: str, broker: str | None = None) -> Response:
    """Release a subscription for a broker. A subscription without a broker ends after `unheld_s` seconds."""
    context, holder = require_broker(request, broker)
    subscription = subscription_id_of(identity)
    for channel, _, _, brokers in context.cluster.catalog.subscriptions.find(subscription):
        if holder in brokers:
            released = context.cluster.unsubscribe(channel, [subscription], holder)
            return answer(wire.ReleaseAnswer(released))
    raise unknown_subscription(identity)


@router.post(wire.RELEASES, openapi_extra=request_body(wire.ReleaseRequest), response_class=Response)
async def unsubscribe_many(request: Request) -> Response:
    """Release many subscriptions at once. The answer counts only those that the broker held."""
    body = await read_json(request, wire.ReleaseRequest, require_some_broker(request))
    context, holder = require_broker(request, body.broker)
    if body.unless_listening and context.listening[holder]:
        raise TocsinError(Code.IN_USE, f"{holder} listens to its announcements: it is alive and needs what it holds")
    check_number(len(body.subscriptions))
    ids = [subscription_id_of(identity) for identity in body.subscriptions]
    released = await asyncio.to_thread(context.cluster.unsubscribe, body.channel, ids, holder)
    return answer(wire.ReleaseAnswer(released))


@router.get(wire.HOLDS, response_class=Response)
def holds(request: Request, broker: str) -> Response:
    """How many subscriptions a broker holds, and a fingerprint of their ids: the broker compares it with its own."""
    context, holder = require_broker(request, broker)
    count, fingerprint = context.cluster.subscriptions.book.fingerprint(holder)
    return answer(wire.Holds(count, fingerprint))


def subscription_id_of(text: str) -> SubscriptionId:
    """The text as an id. Raises UNKNOWN_SUBSCRIPTION if the text cannot be an id."""
    if len(text) != 32 or not _ID_CHARACTERS.issuperset(text):
        raise unknown_subscription(text)
    return SubscriptionId(text)


def unknown_subscription(identity: str) -> TocsinError:
    return TocsinError(Code.UNKNOWN_SUBSCRIPTION, f"there is no subscription {identity[:64]!r} that you may see")


def check_number(subscriptions: int) -> None:
    if subscriptions > MAX_AT_ONCE:
        raise TocsinError(Code.TOO_LARGE, f"at most {MAX_AT_ONCE:,} subscriptions at a time")


def _check_quota(request: Request, context: ClusterContext, broker: BrokerId, sets: list[dict[str, Any]]) -> None:
    """Apply the limits that a broker applies to its subscribers, and that of the user's token.

    Sets that the user holds already count again.
    """
    claims, limit = caller_of(request).claims, context.settings.direct_subscriptions
    if claims is not None and claims.most_subscriptions is not None:
        limit = min(limit, claims.most_subscriptions)
    held, _ = context.cluster.subscriptions.book.fingerprint(broker)
    if held + len(sets) > limit:
        raise TocsinError(Code.TOO_LARGE, f"a user holds at most {limit:,} subscriptions; release some first")
    if any(len(encode(values)) > PARAMETER_BYTES for values in sets):
        raise TocsinError(Code.TOO_LARGE, f"the parameters of a subscription have at most {PARAMETER_BYTES:,} bytes")


def _listed(
    request: Request, subscription: SubscriptionId, channel: ChannelName, parameters: str, brokers: list[BrokerId]
) -> wire.ListedSubscription:
    """A subscription for the answer. It does not show a broker which other brokers hold the subscription."""
    caller = caller_of(request)
    visible = [broker for broker in brokers if caller.may_read or caller.may_be(broker)]
    return wire.ListedSubscription(subscription, channel, msgspec.Raw(parameters.encode()), visible)
