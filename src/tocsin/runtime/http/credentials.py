"""Signed tokens: JWTs that the coordinator signs and every process verifies without a request to another process.

The keys are Ed25519. Only the coordinator holds the private key; brokers and data cluster hold the public keys, as a
JWK set from a file or from the coordinator's `/v1/keys`. The scopes are those of `runtime.http.callers`. A token with
the scope `subscribe` belongs to one subscriber, its `sub`.

A hand-over token admits one subscriber to one broker for one migration: its audience is that broker, and it expires
within a minute. A token with an audience is invalid everywhere else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from jwt.algorithms import OKPAlgorithm
from jwt.types import Options

ALGORITHM = "EdDSA"
ISSUER = "tocsin"
_LEEWAY_S = 5.0
"""Accepted difference between the clocks of two machines."""
_MAX_LENGTH = 4_096
_OPTIONS: Options = {
    # `Verifier.claims` checks time and audience itself, against the clock of its caller.
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "require": ["sub", "iss"],
}


@dataclass(frozen=True, slots=True)
class Claims:
    """The content of a valid token."""

    subject: str
    """Owner: the id of a subscriber or of a broker, or a person's name."""
    scopes: frozenset[str]
    expires_s: float | None
    audience: str | None = None
    """The only process that accepts it; None for all processes."""
    migration: str | None = None
    identity: str = ""
    """`jti`: names the token in logs and lists, and does not help to guess it."""


class Verifier:
    """Verifies tokens with the public keys that this process trusts."""

    def __init__(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        self._keys = dict(keys)

    @classmethod
    def from_jwks(cls, document: Mapping[str, Any]) -> Self:
        keys = {}
        for entry in document.get("keys", ()):
            key = OKPAlgorithm.from_jwk(json.dumps(entry))
            if isinstance(key, Ed25519PublicKey):
                keys[str(entry["kid"])] = key
        return cls(keys)

    def knows_key_of(self, token: str) -> bool:
        """Whether this token names one of our keys; False for text that is no token."""
        try:
            return len(token) <= _MAX_LENGTH and jwt.get_unverified_header(token).get("kid", "") in self._keys
        except (jwt.InvalidTokenError, ValueError, TypeError):
            return False

    def claims(self, token: str, now_s: float, *, audience: str | None = None) -> Claims | None:
        """The content of the token, or None if it is forged, expired or meant for another audience.

        The reason is not returned, so that no server can reveal it.
        """
        if len(token) > _MAX_LENGTH:
            return None
        try:
            key = self._keys.get(jwt.get_unverified_header(token).get("kid", ""))
            if key is None:
                return None
            body: dict[str, Any] = jwt.decode(token, key, algorithms=[ALGORITHM], issuer=ISSUER, options=_OPTIONS)
            claims = Claims(
                subject=str(body["sub"]),
                scopes=frozenset(str(body.get("scope", "")).split()),
                expires_s=None if body.get("exp") is None else float(body["exp"]),
                audience=body.get("aud"),
                migration=body.get("mig"),
                identity=str(body.get("jti", "")),
            )
        except (jwt.InvalidTokenError, ValueError, TypeError, AttributeError):
            return None
        if claims.expires_s is not None and now_s > claims.expires_s + _LEEWAY_S:
            return None
        return claims if claims.audience is None or claims.audience == audience else None


class Signer:
    """Signs tokens with the coordinator's private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.key_id = hashlib.sha256(raw).hexdigest()[:16]

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """Read the key from this file. The first start creates it, readable by its owner only (mode 0600)."""
        if path.exists():
            key = load_pem_private_key(path.read_bytes(), None)
            if not isinstance(key, Ed25519PrivateKey):
                raise ValueError(f"{path} does not hold an Ed25519 key; remove the file to get a new key")
            return cls(key)
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        return cls(key)

    def jwks(self) -> dict[str, Any]:
        """The public key as a JWK set."""
        entry = OKPAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return {"keys": [entry | {"kid": self.key_id, "alg": ALGORITHM, "use": "sig"}]}

    def verifier(self) -> Verifier:
        return Verifier({self.key_id: self._key.public_key()})

    def sign(
        self,
        subject: str,
        scopes: Iterable[str],
        *,
        now_s: float,
        identity: str,
        lifetime_s: float | None,
        audience: str | None = None,
        migration: str | None = None,
    ) -> str:
        """`identity` is a random `jti`. A token without a lifetime never expires; it is meant for processes."""
        body: dict[str, Any] = {"iss": ISSUER, "sub": subject, "scope": " ".join(sorted(scopes))}
        body |= {"iat": int(now_s), "jti": identity}
        if lifetime_s is not None:
            body["exp"] = int(now_s + lifetime_s)
        if audience is not None:
            body["aud"] = audience
        if migration is not None:
            body["mig"] = migration
        return jwt.encode(body, self._key, algorithm=ALGORITHM, headers={"kid": self.key_id})
