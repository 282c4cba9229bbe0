"""Users and tokens: registeruser and requestbroker [BAD §6.1.1], signed tokens, and the public keys to check them."""

from __future__ import annotations

import re
import secrets
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.coordinator.events import BrokerRequested, Placed, UserDeleted, UserRegistered
from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.snapshot import Place
from tocsin.runtime.coordinator.routes.authentication import caller_of, forbidden, require_admin, require_user
from tocsin.runtime.coordinator.routes.context import context_of
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.runtime.http.callers import is_scope
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["users"])

_DAY_S = 86_400.0
_HOUR_S = 3_600.0
_USER = re.compile(r"[A-Za-z0-9._-]{1,100}")

Latitude = Annotated[float, msgspec.Meta(ge=-90, le=90)]
Longitude = Annotated[float, msgspec.Meta(ge=-180, le=180)]


class UserRegistration(msgspec.Struct):
    user: str | None = None
    """The name that the user chooses; None for a generated name."""
    lat: Latitude | None = None
    lon: Longitude | None = None
    coordinate: Coordinate | None = None
    """The user's network coordinate, if it has one."""


class BrokerRequest(msgspec.Struct):
    lat: Latitude | None = None
    lon: Longitude | None = None
    coordinate: Coordinate | None = None
    avoid: Annotated[list[str], msgspec.Meta(max_length=1_000)] = []
    """Brokers that the user could not reach."""


class SignedTokenRequest(msgspec.Struct):
    subject: str
    """The owner: the name of a user, a broker or a person."""
    scopes: list[str]
    days: float | None = None
    """Days until the token expires; None if it never expires.

    A signed token cannot be revoked: prefer short lifetimes.
    """


@router.post("/v1/users", openapi_extra=request_body(UserRegistration), response_class=Response)
async def register_user(request: Request) -> Response:
    """Register a user and return its token. A name in use is refused, except to that user and to administrators."""
    context, caller = context_of(request), caller_of(request)
    is_user = caller is not None and (caller.is_admin or caller.may_register or caller.subject is not None)
    if not (is_user or context.settings.open_registration):
        raise forbidden(caller, "register")
    body = await read_json(request, UserRegistration)
    user = _user_id(f"u-{secrets.token_hex(8)}" if body.user is None else body.user)
    may_act = caller is not None and caller.may_act_for(user)
    if not (may_act or context.settings.open_registration or (caller is not None and caller.may_register)):
        raise forbidden(caller, "register")
    if user in context.core.registry.subscribers and not may_act:
        raise TocsinError(Code.EXISTS, f"there is a user {user} already")
    place, coordinate = _place(body), _checked(body.coordinate)
    created = await context.process.request(lambda number: UserRegistered(number, user, place, coordinate))
    if not created and not may_act:  # another request with the same name was handled first
        raise TocsinError(Code.EXISTS, f"there is a user {user} already")
    token, expires_s = context.sign(user, ["subscribe"], context.settings.user_days * _DAY_S)
    return answer({"user": user, "token": token, "expires_s": expires_s}, 201 if created else 200)


@router.post("/v1/users/{user}/broker", openapi_extra=request_body(BrokerRequest), response_class=Response)
async def request_broker(request: Request, user: str) -> Response:
    """A broker for this user: the current one if it is alive, else the choice of the placement policy."""
    context, name = require_user(request, user)
    body = await read_json(request, BrokerRequest)
    place, coordinate = _place(body), _checked(body.coordinate)
    avoid = frozenset(BrokerId(broker) for broker in body.avoid)
    placed: Placed = await context.process.request(
        lambda number: BrokerRequested(number, name, place, coordinate, avoid)
    )
    token, expires_s = context.sign(name, ["subscribe"], context.settings.session_hours * _HOUR_S)
    return answer({"broker": placed.broker, "address": placed.address, "token": token, "expires_s": expires_s})


@router.get("/v1/users/{user}", response_class=Response)
async def get_user(request: Request, user: str) -> Response:
    context, name = require_user(request, user)
    subscriber = context.core.registry.subscribers.get(name)
    if subscriber is None or subscriber.deleted:
        raise TocsinError(Code.NOT_FOUND, f"there is no user {user[:100]!r}")
    migration = context.core.registry.moving.get(name)
    return answer(
        {
            "user": name,
            "broker": subscriber.home,
            "online": subscriber.session_at is not None,
            "moving_to": None if migration is None else migration.target,
            "lat": None if subscriber.place is None else subscriber.place.lat,
            "lon": None if subscriber.place is None else subscriber.place.lon,
            "subscriptions": list(subscriber.subscriptions.values()),
            "webhook": None if subscriber.webhook is None else subscriber.webhook.url,
        }
    )


@router.delete("/v1/users/{user}", response_class=Response)
async def delete_user(request: Request, user: str) -> Response:
    """Delete the user, end its sessions and release its subscriptions."""
    context, name = require_user(request, user)
    await context.process.request(lambda number: UserDeleted(number, name))
    return answer({"deleted": True})


@router.get("/v1/keys", response_class=Response)
async def keys(request: Request) -> Response:
    """The public keys as a JWK set; needs no token."""
    return answer(context_of(request).signer.jwks(), headers={"Cache-Control": "max-age=60"})


@router.post("/v1/tokens", openapi_extra=request_body(SignedTokenRequest), response_class=Response)
async def create_token(request: Request) -> Response:
    context = require_admin(request)
    body = await read_json(request, SignedTokenRequest)
    subject = _user_id(body.subject)
    wrong = [scope for scope in body.scopes if not is_scope(scope)]
    if wrong or not 1 <= len(body.scopes) <= 50:
        valid_scopes = "admin, read, register, subscribe, publish:<dataset or *>, broker:<id or *>"
        raise TocsinError(
            Code.BAD_REQUEST, f"{wrong[0][:100] if wrong else 'scopes'!r}: expected some of {valid_scopes}"
        )
    if body.days is not None and not 0 < body.days <= 36_500:
        raise TocsinError(Code.BAD_REQUEST, "days: expected more than 0 and at most 36,500")
    lifetime_s = None if body.days is None else body.days * _DAY_S
    token, expires_s = context.sign(subject, body.scopes, lifetime_s)
    return answer({"subject": subject, "scopes": sorted(body.scopes), "token": token, "expires_s": expires_s}, 201)


def _user_id(text: str) -> SubscriberId:
    if _USER.fullmatch(text) is None:
        raise TocsinError(Code.BAD_REQUEST, "a user's name has 1 to 100 letters, digits, dots, dashes and underscores")
    return SubscriberId(text)


def _place(body: UserRegistration | BrokerRequest) -> Place | None:
    if (body.lat is None) != (body.lon is None):
        raise TocsinError(Code.BAD_REQUEST, "lat and lon go together: send both or none")
    return None if body.lat is None or body.lon is None else Place(body.lat, body.lon)


def _checked(coordinate: Coordinate | None) -> Coordinate | None:
    if coordinate is not None and not coordinate.is_sane:
        raise TocsinError(Code.BAD_REQUEST, "coordinate: not possible in a network on Earth")
    return coordinate
