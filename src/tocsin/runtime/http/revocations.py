"""Revoked tokens and users, as every process knows them: a part of the JWK set that the coordinator publishes.

The set is public, so it holds digests and no names. A revoked user has a time: tokens issued before that time are
invalid, and later tokens are valid. A revoked token takes along the tokens that were made from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

MEMBER = "revoked"
"""Name of the revocations in a JWK set. Other readers of JWK sets ignore it (RFC 7517, section 5)."""


def digest_of(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Revocations:
    tokens: frozenset[str] = frozenset()
    """Digests of token ids (`jti`)."""
    users: Mapping[str, float] = field(default_factory=dict)
    """Digest of a user's name → tokens issued before this time are invalid."""

    @classmethod
    def of(cls, tokens: Iterable[str], users: Mapping[str, float]) -> Self:
        return cls(frozenset(map(digest_of, tokens)), {digest_of(user): at_s for user, at_s in users.items()})

    @classmethod
    def from_jwks(cls, document: Mapping[str, Any]) -> Self:
        """Read the part of a JWK set. Raises ValueError or TypeError if it is malformed."""
        revoked = document.get(MEMBER, {})
        tokens, users = revoked.get("tokens", []), revoked.get("users", {})
        return cls(frozenset(str(token) for token in tokens), {str(user): float(users[user]) for user in users})

    def to_json(self) -> dict[str, Any]:
        return {"tokens": sorted(self.tokens), "users": dict(sorted(self.users.items()))}

    def cover(self, subject: str, issued_s: float, identities: Iterable[str]) -> bool:
        """True if the token, a token that it was made from, or all tokens of its time of this user are revoked."""
        if not self.tokens and not self.users:
            return False
        if issued_s <= self.users.get(digest_of(subject), -1.0):
            return True
        return any(digest_of(identity) in self.tokens for identity in identities if identity)
