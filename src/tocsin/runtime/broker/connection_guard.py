"""Checks of every connection to a broker: a valid token, and a bound on connections that never log in."""

from __future__ import annotations

import asyncio

from tocsin.broker.events import LoginRequested
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.message_encoding import Encoding
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.runtime.broker.process import BrokerProcess
from tocsin.runtime.http.credentials import Claims
from tocsin.runtime.http.half_open import HalfOpenConnections
from tocsin.runtime.http.trusted_keys import TrustedKeys
from tocsin.wire.errors import Code, TocsinError

SUBSCRIBE = "subscribe"


class ConnectionGuard:
    def __init__(self, process: BrokerProcess, keys: TrustedKeys) -> None:
        self.process = process
        self.keys = keys
        self.half_open = HalfOpenConnections(process.settings.half_open, process.settings.login_s)
        self.tasks: set[asyncio.Task[None]] = set()

    def known_claims(self, token: str) -> Claims | None:
        """Check a token with the keys at hand; None if that is not possible."""
        return self.keys.known_claims(token, self.process.now_s(), audience=self.process.id)

    async def claims(self, token: str | None) -> Claims:
        """The claims of a subscriber's token, after fetching newer keys if necessary; raises for any other token."""
        if not token:
            raise TocsinError(Code.UNAUTHENTICATED, "send a token with the scope subscribe")
        claims = await self.keys.claims(token, self.process.now_s(), audience=self.process.id)
        if claims is None and not self.keys.ready:
            raise TocsinError(Code.NOT_READY, "this broker has no keys to check tokens with yet", retry_after_s=2)
        return self.checked(claims)

    @staticmethod
    def checked(claims: Claims | None) -> Claims:
        """Return the claims if they allow a subscriber's session; raise otherwise."""
        if claims is None:
            raise TocsinError(Code.UNAUTHENTICATED, "this token is unknown, expired or meant for another broker")
        if SUBSCRIBE not in claims.scopes:
            raise TocsinError(Code.FORBIDDEN, "this token has no scope subscribe; ask the coordinator for one that has")
        return claims


def subscriber_of(claims: Claims) -> SubscriberId:
    return SubscriberId(claims.subject)


def login_event(
    session: SessionId, claims: Claims, request: int, resume: dict[SubscriptionId, str], encoding: Encoding
) -> LoginRequested:
    # A hand-over token is valid for a minute; the session that it opens lasts until it is closed or moved.
    expires_s = None if claims.migration is not None else claims.expires_s
    subscriber = subscriber_of(claims)
    return LoginRequested(
        Requester(session=session), subscriber, request, resume, encoding, expires_s, claims.migration
    )
