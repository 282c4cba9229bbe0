"""What every connection to a broker passes: who it is, and that those who never say so do not pile up."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from tocsin.model.ids import SubscriberId
from tocsin.runtime.broker.process import BrokerProcess
from tocsin.runtime.http.credentials import Claims
from tocsin.runtime.http.trusted_keys import TrustedKeys
from tocsin.wire.errors import Code, TocsinError

SUBSCRIBE = "subscribe"
_SWEEP_S = 1.0


class HalfOpenConnection(Protocol):
    """A connection that has not said who it is."""

    def expire(self) -> None: ...


class HalfOpenConnections:
    """Connections that have not logged in, oldest first: bounded in number and in time."""

    def __init__(self, limit: int, limit_s: float) -> None:
        self._limit = limit
        self._limit_s = limit_s
        self._since_s: OrderedDict[HalfOpenConnection, float] = OrderedDict()
        self.expired = 0

    def __len__(self) -> int:
        return len(self._since_s)

    def add(self, connection: HalfOpenConnection, now_s: float) -> None:
        """When there are too many, the oldest goes: who means to log in does so at once."""
        self._since_s[connection] = now_s
        if len(self._since_s) > self._limit:
            self._expire_oldest()

    def remove(self, connection: HalfOpenConnection) -> None:
        self._since_s.pop(connection, None)

    def sweep(self, now_s: float) -> None:
        while self._since_s and next(iter(self._since_s.values())) <= now_s - self._limit_s:
            self._expire_oldest()

    def _expire_oldest(self) -> None:
        connection, _ = self._since_s.popitem(last=False)
        self.expired += 1
        connection.expire()


class ConnectionGuard:
    def __init__(self, process: BrokerProcess, keys: TrustedKeys) -> None:
        self.process = process
        self.keys = keys
        self.waiting = HalfOpenConnections(process.settings.half_open, process.settings.login_s)
        self.tasks: set[asyncio.Task[None]] = set()

    async def sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.waiting.sweep(asyncio.get_running_loop().time())

    def known_claims(self, token: str) -> Claims | None:
        return self.keys.known_claims(token, self.process.now_s(), audience=self.process.id)

    async def claims(self, token: str | None) -> Claims:
        """Of a token that lets a subscriber in; raises for any other."""
        if not token:
            raise TocsinError(Code.UNAUTHENTICATED, "send a token with the scope subscribe")
        found = await self.keys.claims(token, self.process.now_s(), audience=self.process.id)
        if found is None and not self.keys.ready:
            raise TocsinError(Code.NOT_READY, "this broker has no keys to check tokens with yet", retry_after_s=2)
        return self.checked(found)

    @staticmethod
    def checked(claims: Claims | None) -> Claims:
        if claims is None:
            raise TocsinError(Code.UNAUTHENTICATED, "this token is unknown, expired or meant for another broker")
        if SUBSCRIBE not in claims.scopes:
            raise TocsinError(Code.FORBIDDEN, "this token has no scope subscribe; ask the coordinator for one that has")
        return claims


def subscriber_of(claims: Claims) -> SubscriberId:
    return SubscriberId(claims.subject)
