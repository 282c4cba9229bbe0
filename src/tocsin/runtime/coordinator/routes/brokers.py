"""Brokers: seen, drained, dismissed; and the link each of them keeps open."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Query, Request, Response, WebSocket

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.events import BrokerDismissed, DrainOrdered
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.views import HeldSubscriptions, broker_view, subscriber_views
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.runtime.coordinator.links import Link
from tocsin.runtime.coordinator.routes.api import require_admin, require_broker, require_read
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["brokers"])

_AT_ONCE = 5_000


class Drain(msgspec.Struct):
    on: bool


@router.get("/v1/brokers", response_class=Response)
async def list_brokers(request: Request) -> Response:
    core = require_read(request).core
    return answer({"brokers": [broker_view(core, broker) for broker in core.registry.brokers.values()]})


@router.get("/v1/brokers/{broker}", response_class=Response)
async def get_broker(request: Request, broker: str) -> Response:
    core = require_read(request).core
    return answer(broker_view(core, _known(core, broker)))


@router.get("/v1/brokers/{broker}/subscribers", response_class=Response)
async def list_subscribers(request: Request, broker: str, limit: int = Query(100, ge=1, le=10_000)) -> Response:
    """Whose home it is, heaviest first."""
    core = require_read(request).core
    heaviest: list[dict[str, Any]] = []
    total = 0
    async for some in _hosted(core, broker):
        total += len(some)
        heaviest = heapq.nlargest(
            limit, heaviest + subscriber_views(core, some), key=lambda one: float(one["load_bytes_per_s"])
        )
    return answer({"subscribers": heaviest, "total": total})


@router.get("/v1/brokers/{broker}/subscriptions", response_class=Response)
async def list_subscriptions(request: Request, broker: str, limit: int = Query(100, ge=1, le=10_000)) -> Response:
    """What its subscribers hold, each backend subscription once, heaviest first."""
    core = require_read(request).core
    held = HeldSubscriptions(core)
    async for some in _hosted(core, broker):
        held.add(some)
    return answer(held.heaviest(limit))


async def _hosted(core: Coordinator, broker: str) -> AsyncIterator[list[SubscriberId]]:
    """In pieces, with a breath between them: a broker may have very many, and the loop serves everybody."""
    everybody = list(core.registry.hosted(_known(core, broker).id))
    for start in range(0, len(everybody), _AT_ONCE):
        yield everybody[start : start + _AT_ONCE]
        await asyncio.sleep(0)


def _known(core: Coordinator, broker: str) -> BrokerRecord:
    found = core.registry.brokers.get(BrokerId(broker))
    if found is None:
        raise TocsinError(Code.NOT_FOUND, f"there is no broker {broker[:128]!r}")
    return found


@router.post("/v1/brokers/{broker}/drain", openapi_extra=request_body(Drain), response_class=Response)
async def drain_broker(request: Request, broker: str) -> Response:
    """Move everybody away and send nobody new, or stop doing so. Answers at once; the broker's page shows progress."""
    api = require_admin(request)
    wanted = await read_json(request, Drain)
    left = await api.process.ask(lambda ask: DrainOrdered(ask, BrokerId(broker), wanted.on))
    return answer({"draining": wanted.on, "subscribers": left})


@router.delete("/v1/brokers/{broker}", response_class=Response)
async def dismiss_broker(request: Request, broker: str) -> Response:
    """Forget a broker that is dead or drained and has no subscribers left."""
    api = require_admin(request)
    await api.process.ask(lambda ask: BrokerDismissed(ask, BrokerId(broker)))
    return answer({"dismissed": True}, 202)


@router.websocket("/v1/brokers/{broker}/link")
async def broker_link(socket: WebSocket, broker: str) -> None:
    api, name = require_broker(socket, broker)
    _ = api.core
    await socket.accept()
    await Link(socket, name).run(api.process)
