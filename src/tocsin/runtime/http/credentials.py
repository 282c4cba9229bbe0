"""Signed tokens: JWTs that the coordinator signs and every part checks by itself, without asking anybody.

Ed25519: the coordinator alone holds the private key; brokers and data cluster hold the public ones, as a JWK set that
they read from a file or from the coordinator's `/v1/keys`. Scopes are those of `runtime.tokens` (`admin`, `read`,
`publish:<dataset>`, `broker:<id>`, `subscribe`); a token with `subscribe` belongs to one subscriber, its `sub`.

A hand-over token lets one subscriber into one broker for one migration: it has that broker as its audience and dies
within a minute. A token with an audience is worth nothing anywhere else.
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

ALGORITHM = "EdDSA"
ISSUER = "tocsin"
_LEEWAY_S = 5.0
"""Clocks of different machines differ."""
_MAX_LENGTH = 4_096


@dataclass(frozen=True, slots=True)
class Claims:
    """What a valid token says."""

    subject: str
    """Whose it is: a subscriber's id, a broker's, a person's name."""
    scopes: frozenset[str]
    expires_s: float | None
    audience: str | None = None
    """The only part it is good for; None for all."""
    migration: str | None = None
    identity: str = ""
    """`jti`: names the token in logs and lists, and is nothing to guess it from."""


class Verifier:
    """The public keys this process trusts."""

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
        """Whether the key that this token names is among ours; False also for what is no token."""
        try:
            return len(token) <= _MAX_LENGTH and jwt.get_unverified_header(token).get("kid", "") in self._keys
        except (jwt.InvalidTokenError, ValueError, TypeError):
            return False

    def claims(self, token: str, now_s: float, *, audience: str | None = None) -> Claims | None:
        """None unless the token is ours, alive, and good for `audience`. Which of these it is stays here."""
        if len(token) > _MAX_LENGTH:
            return None
        try:
            key = self._keys.get(jwt.get_unverified_header(token).get("kid", ""))
            if key is None:
                return None
            body: dict[str, Any] = jwt.decode(
                token, key, algorithms=[ALGORITHM], issuer=ISSUER,
                # Time is checked below, against the clock that was handed in.
                options={"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False,
                         "require": ["sub", "iss"]},
            )  # fmt: skip
            expires_s = None if body.get("exp") is None else float(body["exp"])
            found = Claims(
                str(body["sub"]), frozenset(str(body.get("scope", "")).split()), expires_s,
                body.get("aud"), body.get("mig"), str(body.get("jti", "")),
            )  # fmt: skip
        except (jwt.InvalidTokenError, ValueError, TypeError, AttributeError):
            return None
        if found.expires_s is not None and now_s > found.expires_s + _LEEWAY_S:
            return None
        return found if found.audience is None or found.audience == audience else None


class Signer:
    """The coordinator's private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.key_id = hashlib.sha256(raw).hexdigest()[:16]

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """The key in this file; made with the first start, readable by its owner alone."""
        if path.exists():
            key = load_pem_private_key(path.read_bytes(), None)
            if not isinstance(key, Ed25519PrivateKey):
                raise ValueError(f"{path} does not hold an Ed25519 key; remove it to have a new one made")
            return cls(key)
        made = Ed25519PrivateKey.generate()
        pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        return cls(made)

    def jwks(self) -> dict[str, Any]:
        """The public half, for whoever checks."""
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
        """`identity` is the caller's random `jti`. A token without a lifetime is for machines that hold a key file."""
        body: dict[str, Any] = {
            "iss": ISSUER, "sub": subject, "scope": " ".join(sorted(scopes)), "iat": int(now_s), "jti": identity,
        }  # fmt: skip
        if lifetime_s is not None:
            body["exp"] = int(now_s + lifetime_s)
        if audience is not None:
            body["aud"] = audience
        if migration is not None:
            body["mig"] = migration
        return jwt.encode(body, self._key, algorithm=ALGORITHM, headers={"kid": self.key_id})
