"""Tokens of an external issuer (OpenID Connect): another identity provider names the users.

The issuer's public keys come as a JWK set. Issuer, audience and expiry are checked; one claim holds the name of the
user. Such a token gets the scopes of the setting and no other: what the issuer calls a scope is not Tocsin's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Self

import jwt

from tocsin.runtime.http.callers import GUEST
from tocsin.runtime.http.credentials import Claims
from tocsin.runtime.http.oidc_settings import OidcSettings

_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""Algorithms by the kind of key. Keys for HMAC are not among them: a public key would be a valid secret."""
_LEEWAY_S = 5.0
_MAX_LENGTH = 16 << 10
_USER = re.compile(r"[A-Za-z0-9._-]{1,100}")
_OPTIONS: Any = {
    # `ExternalVerifier.claims` checks time itself, against the clock of its caller.
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "require": ["iss", "aud", "exp"],
}


class ExternalVerifier:
    """Verifies an external issuer's tokens. The same methods as `credentials.Verifier`."""

    def __init__(self, settings: OidcSettings, keys: Mapping[str, jwt.PyJWK] | None = None) -> None:
        self._settings = settings
        self._keys = dict(keys or {})

    @classmethod
    def from_jwks(cls, settings: OidcSettings, document: Mapping[str, Any]) -> Self:
        keys = {}
        for entry in document["keys"]:
            if entry.get("kty") in _ALGORITHMS and entry.get("use", "sig") == "sig" and "kid" in entry:
                keys[str(entry["kid"])] = jwt.PyJWK(entry)
        return cls(settings, keys)

    def knows_key_of(self, token: str) -> bool:
        try:
            return len(token) <= _MAX_LENGTH and jwt.get_unverified_header(token).get("kid", "") in self._keys
        except (jwt.InvalidTokenError, ValueError, TypeError):
            return False

    def claims(self, token: str, now_s: float, *, audience: str | Collection[str] | None = None) -> Claims | None:
        """The user of the token with the scopes of the settings, or None if it is not valid here.

        `audience` names parts of Tocsin, and the issuer does not know them: its tokens are for all parts.
        """
        if not self.knows_key_of(token):
            return None
        key = self._keys[jwt.get_unverified_header(token)["kid"]]
        settings = self._settings
        try:
            body: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=list(_ALGORITHMS[key.key_type or ""]),
                issuer=settings.oidc_issuer,
                audience=settings.oidc_audience,
                options=_OPTIONS,
            )
            expires_s, begins_s = float(body["exp"]), float(body.get("nbf", 0.0))
            issued_s = float(body.get("iat", 0.0))
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            return None
        user = body.get(settings.oidc_user_claim)
        if now_s > expires_s + _LEEWAY_S or now_s < begins_s - _LEEWAY_S:
            return None
        if not isinstance(user, str) or _USER.fullmatch(user) is None or user.startswith(GUEST):
            return None
        scopes = frozenset(settings.oidc_scopes.split())
        return Claims(user, scopes, expires_s, identity=str(body.get("jti", "")), issued_s=issued_s)

    def is_revoked(self, claims: Claims) -> bool:
        """The issuer publishes no revocations. The coordinator's revocations of users count: see `trusted_keys`."""
        return False
