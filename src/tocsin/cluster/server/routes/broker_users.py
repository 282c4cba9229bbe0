"""The users of a broker: `POST /v1/brokers/{broker}/users` takes the tokens that prove for which users it acts."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tocsin.cluster.server.proven_users import audiences_of
from tocsin.cluster.server.routes.authentication import require_broker, require_trusted_broker, unknown_key
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["subscriptions"])


@router.post(wire.USERS, openapi_extra=request_body(wire.UserProofs), response_class=Response)
async def prove_users(request: Request, broker: str) -> Response:
    """Remember the users that these tokens prove: tokens of the users themselves, or the coordinator's vouchers.

    The data cluster checks them with the keys of the setting `keys`.
    """
    require_trusted_broker(request)
    context, identity = require_broker(request, broker)
    proofs = await read_json(request, wire.UserProofs)
    if len(proofs.tokens) > wire.MOST_PROOFS:
        raise TocsinError(Code.TOO_LARGE, f"at most {wire.MOST_PROOFS:,} tokens at a time")
    if context.keys is None:
        raise TocsinError(Code.UNPROVEN_USER, "this data cluster checks no signed tokens: set keys")
    users = []
    for token in proofs.tokens:
        claims = await context.keys.claims(token, context.cluster.now_s(), audience=audiences_of(identity))
        if claims is not None:
            users += context.proven.add(identity, claims)
        elif not context.keys.can_judge(token):
            raise unknown_key()  # without the proof, a bound subscription would be refused for good
    return answer(wire.ProvenUsers(users))
