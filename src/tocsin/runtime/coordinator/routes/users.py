"""registeruser and requestbroker [BAD §6.1.1], and what is known of a user."""

from __future__ import annotations

import secrets
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.coordinator.events import BrokerRequested, Placed, UserDeleted, UserRegistered
from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId
from tocsin.model.snapshot import Place
from tocsin.runtime.coordinator.routes.api import api_of, caller_of, forbidden, require_user, user_id
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["users"])

_DAY_S = 86_400.0
_HOUR_S = 3_600.0

Latitude = Annotated[float, msgspec.Meta(ge=-90, le=90)]
Longitude = Annotated[float, msgspec.Meta(ge=-180, le=180)]


class NewUser(msgspec.Struct):
    user: str | None = None
    """A name of its own choice; one is made if none is given."""
    lat: Latitude | None = None
    lon: Longitude | None = None
    coordinate: Coordinate | None = None
    """Its network coordinate, if it has one."""


class BrokerWanted(msgspec.Struct):
    lat: Latitude | None = None
    lon: Longitude | None = None
    coordinate: Coordinate | None = None
    avoid: Annotated[list[str], msgspec.Meta(max_length=1_000)] = []
    """Brokers it could not reach."""


@router.post("/v1/users", openapi_extra=request_body(NewUser), response_class=Response)
async def register_user(request: Request) -> Response:
    """Make a user known; answers with its token. A taken name is refused, except to itself and to administrators."""
    api, caller = api_of(request), caller_of(request)
    wanted = await read_json(request, NewUser)
    user = user_id(f"u-{secrets.token_hex(8)}" if wanted.user is None else wanted.user)
    may_act = caller is not None and caller.may_act_for(user)
    if not (may_act or api.settings.open_registration or (caller is not None and caller.may_register)):
        raise forbidden(caller, "register")
    known = api.core.registry.subscribers.get(user)
    if known is not None and not may_act:
        raise TocsinError(Code.EXISTS, f"there is a user {user} already")
    place, coordinate = _place(wanted), _sane(wanted.coordinate)
    created = await api.process.ask(lambda ask: UserRegistered(ask, user, place, coordinate))
    if not created and not may_act:  # somebody else was faster
        raise TocsinError(Code.EXISTS, f"there is a user {user} already")
    token, expires_s = api.sign(user, ["subscribe"], api.settings.user_days * _DAY_S)
    return answer({"user": user, "token": token, "expires_s": expires_s}, 201 if created else 200)


@router.post("/v1/users/{user}/broker", openapi_extra=request_body(BrokerWanted), response_class=Response)
async def request_broker(request: Request, user: str) -> Response:
    """A broker for this user: the one that serves it, if it is well, else the one the placement policy chooses."""
    api, name = require_user(request, user)
    wanted = await read_json(request, BrokerWanted)
    place, coordinate = _place(wanted), _sane(wanted.coordinate)
    avoid = frozenset(BrokerId(one) for one in wanted.avoid)
    placed: Placed = await api.process.ask(lambda ask: BrokerRequested(ask, name, place, coordinate, avoid))
    token, expires_s = api.sign(name, ["subscribe"], api.settings.session_hours * _HOUR_S)
    return answer({"broker": placed.broker, "address": placed.address, "token": token, "expires_s": expires_s})


@router.get("/v1/users/{user}", response_class=Response)
async def get_user(request: Request, user: str) -> Response:
    api, name = require_user(request, user)
    found = api.core.registry.subscribers.get(name)
    if found is None or found.deleted:
        raise TocsinError(Code.NOT_FOUND, f"there is no user {user[:100]!r}")
    migration = api.core.registry.moving.get(name)
    return answer(
        {
            "user": name,
            "broker": found.home,
            "online": found.session_at is not None,
            "moving_to": None if migration is None else migration.target,
            "lat": None if found.place is None else found.place.lat,
            "lon": None if found.place is None else found.place.lon,
            "subscriptions": list(found.subscriptions.values()),
            "webhook": None if found.webhook is None else found.webhook.url,
        }
    )


@router.delete("/v1/users/{user}", response_class=Response)
async def delete_user(request: Request, user: str) -> Response:
    """Its sessions end and its subscriptions are let go."""
    api, name = require_user(request, user)
    await api.process.ask(lambda ask: UserDeleted(ask, name))
    return answer({"deleted": True})


def _place(wanted: NewUser | BrokerWanted) -> Place | None:
    if (wanted.lat is None) != (wanted.lon is None):
        raise TocsinError(Code.BAD_REQUEST, "lat and lon go together: send both or none")
    return None if wanted.lat is None or wanted.lon is None else Place(wanted.lat, wanted.lon)


def _sane(coordinate: Coordinate | None) -> Coordinate | None:
    if coordinate is not None and not coordinate.is_sane:
        raise TocsinError(Code.BAD_REQUEST, "coordinate: not one that a network on Earth could have")
    return coordinate
