"""Users: registeruser and requestbroker [BAD §6.1.1], with the tokens that users get."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.coordinator.events import BrokerRequested, Placed, UserDeleted, UserRegistered
from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId
from tocsin.model.permission import may_subscribe
from tocsin.model.snapshot import Place
from tocsin.runtime.coordinator.routes.authentication import caller_of, forbidden, require_user, user_id
from tocsin.runtime.coordinator.routes.context import CoordinatorContext, checked_coordinate, context_of
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.runtime.http.callers import GUEST, Caller
from tocsin.runtime.http.credentials import BROKERS
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["users"])

_DAY_S = 86_400.0
_HOUR_S = 3_600.0

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


@router.post("/v1/users", openapi_extra=request_body(UserRegistration), response_class=Response)
async def register_user(request: Request) -> Response:
    """Register a user and return its token. A name in use is refused, except to that user and to administrators.

    A caller without the right to register (`open_registration`) gets a generated name, or a name that begins with
    `guest-`: any other name may be that of a user whose token the coordinator or an external issuer has signed.
    """
    context, caller = context_of(request), caller_of(request)
    is_user = caller is not None and (caller.is_admin or caller.may_register or caller.subject is not None)
    if not (is_user or context.settings.open_registration):
        raise forbidden(caller, "register")
    body = await read_json(request, UserRegistration)
    user = user_id(f"u-{secrets.token_hex(8)}" if body.user is None else body.user)
    may_act = caller is not None and caller.may_act_for(user)
    may_choose = may_act or (caller is not None and caller.may_register)
    if not (may_choose or context.settings.open_registration):
        raise forbidden(caller, "register")
    if not may_choose and body.user is not None and not user.startswith(GUEST):
        message = f"without the scope register, a name begins with {GUEST}; leave it out to get a generated one"
        raise TocsinError(Code.FORBIDDEN, message)
    if user in context.core.registry.subscribers and not may_act:
        raise TocsinError(Code.EXISTS, f"there is a user {user} already")
    place, coordinate = _place(body), checked_coordinate(body.coordinate)
    created = await context.process.request(lambda number: UserRegistered(number, user, place, coordinate))
    if not created and not may_act:  # another request with the same name was handled first
        raise TocsinError(Code.EXISTS, f"there is a user {user} already")
    token, expires_s = _user_token(context, caller, user, context.settings.user_days * _DAY_S)
    return answer({"user": user, "token": token, "expires_s": expires_s}, 201 if created else 200)


@router.post("/v1/users/{user}/broker", openapi_extra=request_body(BrokerRequest), response_class=Response)
async def request_broker(request: Request, user: str) -> Response:
    """A broker for this user: the current one if it is alive, else the choice of the placement policy."""
    context, name = require_user(request, user)
    body = await read_json(request, BrokerRequest)
    place, coordinate = _place(body), checked_coordinate(body.coordinate)
    avoid = frozenset(BrokerId(broker) for broker in body.avoid)
    placed: Placed = await context.process.request(
        lambda number: BrokerRequested(number, name, place, coordinate, avoid)
    )
    lifetime_s = context.settings.session_hours * _HOUR_S
    token, expires_s = _user_token(context, caller_of(request), name, lifetime_s, audience=BROKERS)
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


def _user_token(
    context: CoordinatorContext, caller: Caller | None, user: str, lifetime_s: float, **more: Any
) -> tuple[str, float | None]:
    """A token for the user. One that is made from the user's own token has its scopes and ends no later.

    It names that token as its origin: it is revoked together with it.
    """
    claims = None if caller is None or caller.subject != user or not may_subscribe(caller.scopes) else caller.claims
    most = context.settings.user_subscriptions
    if claims is None:
        return context.sign(user, ["subscribe"], lifetime_s, most_subscriptions=most, **more)
    if claims.expires_s is not None:
        lifetime_s = min(lifetime_s, claims.expires_s - context.process.now_s())
    scopes = [scope for scope in claims.scopes if may_subscribe([scope])]
    limits = {"origin": claims.origin or claims.identity, "most_subscriptions": claims.most_subscriptions or most}
    return context.sign(user, scopes, lifetime_s, **limits, **more)


def _place(body: UserRegistration | BrokerRequest) -> Place | None:
    if (body.lat is None) != (body.lon is None):
        raise TocsinError(Code.BAD_REQUEST, "lat and lon go together: send both or none")
    return None if body.lat is None or body.lon is None else Place(body.lat, body.lon)
