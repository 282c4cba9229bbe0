"""Brokers: list, drain and dismiss them; and the WebSocket link that each broker keeps open."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Query, Request, Response, WebSocket
from msgspec import UNSET, UnsetType

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.events import BrokerDismissed, CapacityOrdered, DrainOrdered
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.views import HeldSubscriptions, broker_view, capacity_view, subscriber_views
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.runtime.coordinator.broker_link import BrokerLink
from tocsin.runtime.coordinator.routes.authentication import require_admin, require_broker, require_read
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.runtime.http.credentials import BROKERS, CLUSTER
from tocsin.wire.cluster import MOST_PROOFS
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.link import REPLICA_TOKENS, REPLICATE, VOUCHERS, ReplicaToken, Voucher, VoucherRequest
from tocsin.wire.recording import RECORDING_TOKENS, RecordingToken, RecordingTokenRequest

router = APIRouter(tags=["brokers"])

VOUCHER_S = 600.0
REPLICA_TOKEN_S = 300.0
RECORDING_TOKEN_S = 600.0
_CHUNK = 5_000
"""Subscribers handled before the event loop gets a turn."""


class DrainRequest(msgspec.Struct):
    on: bool


class CapacityChange(msgspec.Struct, forbid_unknown_fields=True):
    in_bytes_per_s: float | UnsetType | None = UNSET
    out_bytes_per_s: float | UnsetType | None = UNSET
    matched_per_s: float | UnsetType | None = UNSET

    def parts(self) -> list[tuple[str, float | UnsetType | None]]:
        return [(name, getattr(self, name)) for name in self.__struct_fields__]


@router.get("/v1/brokers", response_class=Response)
async def list_brokers(request: Request) -> Response:
    context = require_read(request)
    core, now_s = context.core, context.process.now_s()
    return answer({"brokers": [broker_view(core, broker, now_s) for broker in core.registry.brokers.values()]})


@router.get("/v1/brokers/{broker}", response_class=Response)
async def get_broker(request: Request, broker: str) -> Response:
    context = require_read(request)
    core = context.core
    return answer(broker_view(core, _record(core, broker), context.process.now_s()))


@router.get("/v1/brokers/{broker}/subscribers", response_class=Response)
async def list_subscribers(request: Request, broker: str, limit: int = Query(100, ge=1, le=10_000)) -> Response:
    """Subscribers whose home is this broker, those with the highest load first."""
    core = require_read(request).core
    heaviest: list[dict[str, Any]] = []
    total = 0
    async for names in _hosted(core, broker):
        total += len(names)
        heaviest = heapq.nlargest(limit, heaviest + subscriber_views(core, names), key=_load_bytes_per_s)
    return answer({"subscribers": heaviest, "total": total})


@router.get("/v1/brokers/{broker}/subscriptions", response_class=Response)
async def list_subscriptions(request: Request, broker: str, limit: int = Query(100, ge=1, le=10_000)) -> Response:
    """Backend subscriptions of the broker's subscribers, those with the highest rate first."""
    core = require_read(request).core
    held = HeldSubscriptions(core)
    async for names in _hosted(core, broker):
        held.add(names)
    return answer(held.heaviest(limit))


async def _hosted(core: Coordinator, broker: str) -> AsyncIterator[list[SubscriberId]]:
    """The broker's subscribers in chunks. Other requests get a turn between two chunks."""
    names = list(core.registry.hosted(_record(core, broker).id))
    for start in range(0, len(names), _CHUNK):
        yield names[start : start + _CHUNK]
        await asyncio.sleep(0)


def _load_bytes_per_s(view: dict[str, Any]) -> float:
    return float(view["load_bytes_per_s"])


def _record(core: Coordinator, broker: str) -> BrokerRecord:
    record = core.registry.brokers.get(BrokerId(broker))
    if record is None:
        raise TocsinError(Code.NOT_FOUND, f"there is no broker {broker[:128]!r}")
    return record


@router.post("/v1/brokers/{broker}/drain", openapi_extra=request_body(DrainRequest), response_class=Response)
async def drain_broker(request: Request, broker: str) -> Response:
    """Start or stop a drain. A draining broker gets no new subscribers, and its subscribers move to other brokers.

    Answers at once; `GET /v1/brokers/{broker}` shows the progress.
    """
    context = require_admin(request)
    drain = await read_json(request, DrainRequest)
    left = await context.process.request(lambda number: DrainOrdered(number, BrokerId(broker), drain.on))
    return answer({"draining": drain.on, "subscribers": left})


@router.put("/v1/brokers/{broker}/capacity", openapi_extra=request_body(CapacityChange), response_class=Response)
async def set_capacity(request: Request, broker: str) -> Response:
    """Give a broker another capacity for topics than the present one. A part that is not named keeps its value; null
    is unlimited.

    The broker enforces it at once, without losing or reordering messages. It is stored and survives restarts.
    """
    context = require_admin(request)
    changed = {name: value for name, value in (await read_json(request, CapacityChange)).parts() if value is not UNSET}
    record = _record(context.core, broker)
    capacity = msgspec.structs.replace(record.topic_capacity, **changed)
    await context.process.request(lambda number: CapacityOrdered(number, record.id, capacity))
    return answer(capacity_view(record))


@router.delete("/v1/brokers/{broker}", response_class=Response)
async def dismiss_broker(request: Request, broker: str) -> Response:
    """Remove a broker that is dead or drained and has no subscribers left."""
    context = require_admin(request)
    await context.process.request(lambda number: BrokerDismissed(number, BrokerId(broker)))
    return answer({"dismissed": True}, 202)


@router.post(VOUCHERS, openapi_extra=request_body(VoucherRequest), response_class=Response)
async def vouch(request: Request, broker: str) -> Response:
    """Vouch at the data cluster for those of the users that this coordinator has assigned to the broker."""
    context, name = require_broker(request, broker)
    wanted = (await read_json(request, VoucherRequest)).users
    if len(wanted) > MOST_PROOFS:
        raise TocsinError(Code.TOO_LARGE, f"at most {MOST_PROOFS:,} users at a time")
    registry = context.core.registry
    users = [user for user in wanted if registry.serves(name, user)]
    token, _ = context.sign(name, [], VOUCHER_S, audience=CLUSTER, users=users)
    return answer(Voucher(token, users))


@router.post(REPLICA_TOKENS, response_class=Response)
async def replica_token(request: Request, broker: str) -> Response:
    """A token by which this broker, as the home of persistent topics, connects to their followers."""
    context, name = require_broker(request, broker)
    token, _ = context.sign(name, [REPLICATE], REPLICA_TOKEN_S, audience=BROKERS)
    return answer(ReplicaToken(token))


@router.post(RECORDING_TOKENS, openapi_extra=request_body(RecordingTokenRequest), response_class=Response)
async def recording_token(request: Request, broker: str) -> Response:
    """Grant the home of a recorded topic to record into the topic's dataset."""
    context, name = require_broker(request, broker)
    topic = (await read_json(request, RecordingTokenRequest)).topic
    record = context.core.registry.topics.topics.get(topic)
    if record is None or record.record is None:
        raise TocsinError(Code.UNKNOWN_TOPIC, f"there is no topic {topic} that is recorded")
    if record.home != name and (record.move is None or name not in (record.move.source, record.move.target)):
        raise TocsinError(Code.FORBIDDEN, f"{name} is not the home of {topic}")
    dataset = record.record.dataset
    token, _ = context.sign(name, [f"publish:{dataset}"], RECORDING_TOKEN_S, audience=CLUSTER)
    return answer(RecordingToken(token, dataset))


@router.websocket("/v1/brokers/{broker}/link")
async def broker_link(socket: WebSocket, broker: str) -> None:
    context, name = require_broker(socket, broker)
    _ = context.core  # raises NOT_READY
    await socket.accept()
    await context.process.run_link(BrokerLink(socket, name))
