"""Brokers: seen, drained, dismissed; and the link each of them keeps open."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response, WebSocket

from tocsin.coordinator.events import BrokerDismissed, DrainOrdered
from tocsin.coordinator.views import broker_view
from tocsin.model.ids import BrokerId
from tocsin.runtime.coordinator_http.api import require_admin, require_broker, require_read
from tocsin.runtime.coordinator_links import Link
from tocsin.runtime.http_answers import answer, described, read_json
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["brokers"])


class Drain(msgspec.Struct):
    on: bool


@router.get("/v1/brokers", response_class=Response)
async def list_brokers(request: Request) -> Response:
    core = require_read(request).core
    return answer({"brokers": [broker_view(core, broker) for broker in core.registry.brokers.values()]})


@router.get("/v1/brokers/{broker}", response_class=Response)
async def get_broker(request: Request, broker: str) -> Response:
    core = require_read(request).core
    found = core.registry.brokers.get(BrokerId(broker))
    if found is None:
        raise TocsinError(Code.NOT_FOUND, f"there is no broker {broker[:128]!r}")
    return answer(broker_view(core, found))


@router.post("/v1/brokers/{broker}/drain", openapi_extra=described(Drain), response_class=Response)
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
