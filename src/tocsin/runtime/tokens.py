"""Bearer tokens: who may do what. Opaque random strings, of which only a SHA-256 digest is stored.

Scopes: `admin` (everything), `read` (look at definitions, subscriptions, rates, metrics), `publish:<dataset>` or
`publish:*`, `broker:<id>` or `broker:*` (subscribe, hear announcements and pull results as that broker), `register`
(make users known to the coordinator), and `subscribe`, which is a broker of one's own: its id is made from the token's.
Tokens that the coordinator signs (`runtime.credentials`) carry the same scopes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tocsin.model.ids import BrokerId
from tocsin.runtime.credentials import Claims

if TYPE_CHECKING:  # brokers read this module too, and have no use for a database
    from tocsin.cluster.catalog import Catalog

PREFIX = "tocsin_"
_TOKEN_BYTES = 32
_RELOAD_S = 30.0
"""A token revoked by another process stops working after at most this long."""
_RELOAD_ON_MISS_S = 1.0
"""One made by another process works at once, but strangers cannot make us read the catalog more often than this."""
_SCOPE = re.compile(
    r"admin|read|subscribe|register|publish:(?:\*|[A-Za-z][A-Za-z0-9_]*)|broker:(?:\*|[A-Za-z0-9._-]{1,128})"
)
_BROKER = re.compile(r"[A-Za-z0-9._-]{1,128}")


def is_scope(text: str) -> bool:
    return _SCOPE.fullmatch(text) is not None


def is_broker_id(text: str) -> bool:
    return _BROKER.fullmatch(text) is not None


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


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


class TokenStore:
    """Thread-safe. Answers from memory; the catalog is the truth."""

    def __init__(self, catalog: Catalog, now_s: Callable[[], float], monotonic_s: Callable[[], float]) -> None:
        self._catalog = catalog
        self._now_s = now_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._known: dict[str, Caller] = {}
        self._reload()

    def _reload(self) -> None:
        self._known = {
            digest: Caller(digest[:12], name, frozenset(scopes), expires_s)
            for digest, name, scopes, expires_s in self._catalog.tokens()
        }
        self._loaded_s = self._monotonic_s()

    def caller(self, token: str) -> Caller | None:
        """Who this token belongs to; None for strangers and for what has expired."""
        digest = digest_of(token)
        age_s = self._monotonic_s() - self._loaded_s
        if age_s > _RELOAD_S or (digest not in self._known and age_s > _RELOAD_ON_MISS_S):
            with self._lock:
                self._reload()
        known = self._known
        found: Caller | None = None
        for candidate in [digest] if digest in known else []:
            # The lookup compared digests, not tokens; this adds that the last step takes the same time for all.
            found = known[candidate] if hmac.compare_digest(candidate, digest) else None
        if found is None or (found.expires_s is not None and self._now_s() >= found.expires_s):
            return None
        return found

    def create(self, name: str, scopes: Iterable[str], expires_s: float | None = None) -> tuple[Caller, str]:
        """A new token; this is the only time it can be seen."""
        wanted = sorted(set(scopes))
        if not wanted or not all(is_scope(scope) for scope in wanted):
            raise ValueError(f"not a list of scopes: {' '.join(wanted)}")
        token = PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
        digest = digest_of(token)
        with self._lock:
            self._catalog.add_token(digest, name, wanted, expires_s)
            self._reload()
        return self._known[digest], token

    def all(self) -> list[Caller]:
        with self._lock:
            self._reload()
        return sorted(self._known.values(), key=lambda caller: (caller.name, caller.id))

    def revoke(self, identity: str) -> bool:
        """By id; True if there was one."""
        with self._lock:
            self._reload()
            digests = [digest for digest, caller in self._known.items() if caller.id == identity]
            for digest in digests:
                self._catalog.remove_token(digest)
            self._reload()
        return bool(digests)
