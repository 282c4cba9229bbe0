"""Checks of every connection to a broker: a valid token, and a bound on connections that never log in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tocsin.broker.events import LoginRequested, SessionRevoked
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.message_encoding import Encoding
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.model.permission import may_subscribe, topic_scopes
from tocsin.runtime.broker.process import BrokerProcess
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.runtime.broker.turns import UserBudgets
from tocsin.runtime.http.audit import AuditLog
from tocsin.runtime.http.callers import caller_of_claims
from tocsin.runtime.http.credentials import BROKERS, Claims
from tocsin.runtime.http.half_open import HalfOpenConnection, HalfOpenConnections
from tocsin.runtime.http.trusted_keys import TrustedKeys
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.link import REPLICATE

_UNKNOWN = "this token is unknown, expired, revoked or meant for another part"


class BrokerConnection(HalfOpenConnection, Protocol):
    """A connection of another broker."""

    claims: Claims | None


class ConnectionGuard:
    def __init__(self, process: BrokerProcess, keys: TrustedKeys, topics: TopicsProcess | None = None) -> None:
        self.process = process
        self.topics = topics or TopicsProcess(process.id, process.settings.topic_limits, process.now_s)
        self.keys = keys
        self.half_open = HalfOpenConnections(process.settings.half_open, process.settings.login_s)
        self.budgets = UserBudgets()
        self.broker_sockets: set[BrokerConnection] = set()
        """Connections of other brokers: replicas and probes."""
        self.tasks: set[asyncio.Task[None]] = set()
        self._audiences = (process.id, BROKERS)
        self.audit: AuditLog | None = None
        self.topics.record_refusal = partial(self.record_refusal, "topics")

    def record_refused_login(self, code: Code, token: str | None, endpoint: str = "session") -> None:
        """Record a login with a token that is not valid here; its claims are not verified, so no user is named."""
        if self.audit is not None:
            self.audit.record(None, "login", endpoint, endpoint, code, with_token=token is not None)

    def record_login(self, claims: Claims, endpoint: str) -> None:
        if self.audit is not None:
            self.audit.record(claims.subject, "login", endpoint, endpoint, "ok")

    def record_refusal(self, endpoint: str, user: str, action: str, object_: str) -> None:
        """Record that a user's token lacks a right."""
        if self.audit is not None:
            self.audit.record(user, action, object_, endpoint, Code.FORBIDDEN)

    def recorded_end(self, endpoint: str) -> Callable[[Claims], bool]:
        """A check whether a token is revoked or its key is gone. It records the end of such connections."""

        def is_revoked(claims: Claims) -> bool:
            if not self.keys.is_revoked(claims):
                return False
            if self.audit is not None:
                self.audit.record(claims.subject, "end", endpoint, endpoint, "revoked", token=claims.identity)
            return True

        return is_revoked

    def end_revoked(self) -> None:
        """End the sessions whose tokens are revoked. `keys` calls it when it has new revocations."""
        is_revoked = self.recorded_end("session")
        for session, connection in list(self.process.connections.items()):
            claims = connection.claims
            if claims is not None and is_revoked(claims):
                self.process.user_tokens.forget(subscriber_of(claims))
                self.process.happened(SessionRevoked(session))
        self.topics.end_revoked(self.recorded_end("topics"))
        is_revoked = self.recorded_end("broker")
        for stream in list(self.broker_sockets):
            if stream.claims is not None and is_revoked(stream.claims):
                stream.expire()

    def close_streams(self) -> None:
        """The broker stops: close connections that uvicorn does not know, half-open ones and those of brokers."""
        self.half_open.close_all()
        for stream in list(self.broker_sockets):
            stream.expire()

    def known_claims(self, token: str) -> Claims | None:
        """Check a token with the keys at hand; None if that is not possible."""
        return self.keys.known_claims(token, self.process.now_s(), audience=self._audiences)

    async def claims(self, token: str | None) -> Claims:
        """The claims of a subscriber's token, after fetching newer keys if necessary; raises for any other token."""
        if not token:
            raise TocsinError(Code.UNAUTHENTICATED, "send a token with the scope subscribe")
        return self.checked(await self.fetched_claims(token), token)

    async def replica_claims(self, token: str | None) -> Claims:
        """The claims of a home's token for its followers; raises for any other token."""
        claims = None if not token else await self.fetched_claims(token)
        if claims is None or REPLICATE not in claims.scopes:
            raise TocsinError(Code.UNAUTHENTICATED, "this needs a token that the coordinator gives to homes of topics")
        return claims

    async def mqtt_claims(self, token: str | None) -> Claims:
        """The claims of a token for topics or for channels; raises for any other token."""
        if not token:
            raise TocsinError(Code.UNAUTHENTICATED, "send a token as the password")
        claims = await self.fetched_claims(token)
        if claims is None:
            raise TocsinError(Code.UNAUTHENTICATED, _UNKNOWN)
        if not (caller_of_claims(claims).topic_scopes or may_subscribe(claims.scopes)):
            raise TocsinError(Code.FORBIDDEN, "this token has no scope send:<topic>, receive:<topic> or subscribe")
        return claims

    async def fetched_claims(self, token: str) -> Claims | None:
        """Check a token after fetching newer keys if necessary; None if the token is not valid here."""
        claims = await self.keys.claims(token, self.process.now_s(), audience=self._audiences)
        if claims is None and not self.keys.can_judge(token):
            raise TocsinError(Code.NOT_READY, "this broker has not fetched the key of this token yet", retry_after_s=2)
        return claims

    def topic_checked(self, claims: Claims | None) -> Claims:
        """Return the claims if they allow a topic connection; raise otherwise."""
        if claims is None:
            raise TocsinError(Code.UNAUTHENTICATED, _UNKNOWN)
        if not topic_scopes(claims.scopes):
            raise TocsinError(Code.FORBIDDEN, "this token has no scope send:<topic> or receive:<topic>")
        return claims

    def checked(self, claims: Claims | None, token: str) -> Claims:
        """Return the claims if they allow a subscriber's session; raise otherwise.

        The token is kept: it proves to the other processes that this broker serves the subscriber.
        """
        if claims is None:
            raise TocsinError(Code.UNAUTHENTICATED, _UNKNOWN)
        if not may_subscribe(claims.scopes):
            raise TocsinError(Code.FORBIDDEN, "this token has no scope subscribe; ask the coordinator for one that has")
        self.process.user_tokens.add(token, claims)
        return claims


def subscriber_of(claims: Claims) -> SubscriberId:
    return SubscriberId(claims.subject)


def login_event(
    session: SessionId, claims: Claims, request: int, resume: dict[SubscriptionId, str], encoding: Encoding
) -> LoginRequested:
    subscriber = subscriber_of(claims)
    return LoginRequested(
        Requester(session=session),
        subscriber,
        request,
        resume,
        encoding,
        claims.ends_s,
        claims.migration,
        rights=claims.rights,
    )
