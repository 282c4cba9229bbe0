"""Callers and their scopes: what the holder of a bearer token may do.

Scopes: `admin` (everything), `read` (look at definitions, subscriptions, rates, metrics), `publish:<dataset>` or
`publish:*`, `broker:<id>` or `broker:*` (subscribe, hear announcements and pull results as that broker), `register`
(make users known to the coordinator), and `subscribe`, which is a broker of one's own: its id is made from the token's.
Tokens that the coordinator signs (`runtime.credentials`) carry the same scopes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tocsin.model.ids import BrokerId
from tocsin.runtime.http.credentials import Claims

_SCOPE = re.compile(
    r"admin|read|subscribe|register|publish:(?:\*|[A-Za-z][A-Za-z0-9_]*)|broker:(?:\*|[A-Za-z0-9._-]{1,128})"
)
_BROKER = re.compile(r"[A-Za-z0-9._-]{1,128}")


def is_scope(text: str) -> bool:
    return _SCOPE.fullmatch(text) is not None


def is_broker_id(text: str) -> bool:
    return _BROKER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever holds a token."""

    id: str
    """The first digits of the digest: enough to name a token, nothing to guess it from."""
    name: str
    scopes: frozenset[str]
    expires_s: float | None = None
    subject: str | None = None
    """Whom a signed token was made out to; None for the data cluster's own."""

    @property
    def is_admin(self) -> bool:
        return "admin" in self.scopes

    @property
    def may_read(self) -> bool:
        return self.is_admin or "read" in self.scopes

    @property
    def may_register(self) -> bool:
        return self.is_admin or "register" in self.scopes

    def may_act_for(self, user: str) -> bool:
        """As a subscriber: everybody for themselves, administrators for all."""
        return self.is_admin or ("subscribe" in self.scopes and self.subject == user)

    @property
    def own_broker(self) -> BrokerId:
        """Who this caller is when it names no broker: the only one it may be, else one of its own."""
        named = [scope.removeprefix("broker:") for scope in self.scopes if scope.startswith("broker:")]
        return BrokerId(named[0] if len(named) == 1 and named[0] != "*" else f"direct-{self.id}")

    def may_publish(self, dataset: str) -> bool:
        return (
            self.is_admin
            or "publish:*" in self.scopes
            or any(scope.lower() == f"publish:{dataset.lower()}" for scope in self.scopes)
        )

    def may_be(self, broker: str) -> bool:
        if self.may_be_any or f"broker:{broker}" in self.scopes:
            return True
        return "subscribe" in self.scopes and broker == f"direct-{self.id}"

    @property
    def may_be_any(self) -> bool:
        return self.is_admin or "broker:*" in self.scopes

    @property
    def is_some_broker(self) -> bool:
        return self.is_admin or any(scope == "subscribe" or scope.startswith("broker:") for scope in self.scopes)


def caller_with(claims: Claims) -> Caller:
    """Who holds a signed token. Its id has a prefix that no digest has: no name opens another's subscriptions."""
    return Caller(f"user-{claims.subject}", claims.subject, claims.scopes, claims.expires_s, claims.subject)
