"""Connections of which no request is authenticated yet, bounded in number and in age.

A connection enters the table when it opens, before a TLS handshake (`tls_accept`), and whenever a request begins on it.
It leaves the table when the token of a request is accepted. A client without a token therefore keeps no connection for
longer than `login_s`, whatever it sends: nothing, half a handshake, half a request, or requests to open paths such as
`/healthz`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

SWEEP_S = 1.0


class HalfOpenConnection(Protocol):
    """A connection that has not logged in."""

    def expire(self) -> None:
        """End the connection."""


class HalfOpenConnections:
    """Connections that have not logged in, oldest first."""

    def __init__(self, limit: int, limit_s: float) -> None:
        self._limit = limit
        self.limit_s = limit_s
        self._since_s: OrderedDict[HalfOpenConnection, float] = OrderedDict()
        self.expired = 0

    def __len__(self) -> int:
        return len(self._since_s)

    def add(self, connection: HalfOpenConnection, now_s: float) -> None:
        """Add a connection; one that is present keeps its age.

        Above the limit the oldest one is closed: a genuine client sends its token at once.
        """
        if connection in self._since_s:
            return
        self._since_s[connection] = now_s
        if len(self._since_s) > self._limit:
            self._expire_oldest()

    def remove(self, connection: HalfOpenConnection) -> None:
        self._since_s.pop(connection, None)

    def sweep(self, now_s: float) -> None:
        """Close the connections that are too old."""
        while self._since_s and next(iter(self._since_s.values())) <= now_s - self.limit_s:
            self._expire_oldest()

    def close_all(self) -> None:
        """Close all of them, when the server stops."""
        while self._since_s:
            self._expire_oldest()

    async def sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep(asyncio.get_running_loop().time())

    def _expire_oldest(self) -> None:
        connection, _ = self._since_s.popitem(last=False)
        self.expired += 1
        connection.expire()
