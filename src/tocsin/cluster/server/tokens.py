"""The data cluster's own bearer tokens: opaque random strings, of which the catalog stores only a SHA-256 digest."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterable

from sqlalchemy.exc import SQLAlchemyError

from tocsin.cluster.catalog import Catalog
from tocsin.runtime.http.callers import Caller, is_scope

PREFIX = "tocsin_"
_TOKEN_BYTES = 32
_RELOAD_S = 30.0
"""A token that another process revoked stops working after at most this long."""
_RELOAD_ON_MISS_S = 1.0
"""A token that another process created works at once. Guesses cannot cause more reads of the catalog than this."""


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class TokenStore:
    """Thread-safe. Looks tokens up in a copy of the catalog's table in memory."""

    def __init__(self, catalog: Catalog, now_s: Callable[[], float], monotonic_s: Callable[[], float]) -> None:
        self._catalog = catalog
        self._now_s = now_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._known: dict[str, Caller] = {}
        self.is_stale = False
        """True if the catalog could not be read at the last attempt. Tokens that were known before stay valid."""
        self._reload()

    def _reload(self) -> None:
        self._known = {
            digest: Caller(digest[:12], name, frozenset(scopes), expires_s)
            for digest, name, scopes, expires_s in self._catalog.tokens()
        }
        self._loaded_s = self._monotonic_s()

    def _try_reload(self) -> None:
        try:
            self._reload()
        except SQLAlchemyError:
            self.is_stale, self._loaded_s = True, self._monotonic_s()
        else:
            self.is_stale = False

    def caller(self, token: str) -> Caller | None:
        """The caller that holds this token; None if the token is unknown or expired."""
        digest = digest_of(token)
        age_s = self._monotonic_s() - self._loaded_s
        if age_s > _RELOAD_S or (digest not in self._known and age_s > _RELOAD_ON_MISS_S):
            with self._lock:
                self._try_reload()
        # The lookup compares digests, so its timing reveals nothing about a token.
        caller = self._known.get(digest)
        if caller is None or (caller.expires_s is not None and self._now_s() >= caller.expires_s):
            return None
        return caller

    def create(self, name: str, scopes: Iterable[str], expires_s: float | None = None) -> tuple[Caller, str]:
        """Create a token. Only this return value holds it; it cannot be read again."""
        granted = sorted(set(scopes))
        if not granted or not all(is_scope(scope) for scope in granted):
            raise ValueError(f"not a list of scopes: {' '.join(granted)}")
        token = PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
        digest = digest_of(token)
        with self._lock:
            self._catalog.add_token(digest, name, granted, expires_s)
            self._reload()
        return self._known[digest], token

    def all(self) -> list[Caller]:
        with self._lock:
            self._reload()
        return sorted(self._known.values(), key=lambda caller: (caller.name, caller.id))

    def revoke(self, identity: str) -> bool:
        """Revoke the token with this id. Returns whether there was one."""
        with self._lock:
            self._reload()
            digests = [digest for digest, caller in self._known.items() if caller.id == identity]
            for digest in digests:
                self._catalog.remove_token(digest)
            self._reload()
        return bool(digests)
