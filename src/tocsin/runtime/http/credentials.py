"""Signed tokens: JWTs that the coordinator signs and every process verifies without a request to another process.

The keys are Ed25519. Only the coordinator holds the private key; brokers and data cluster hold the public keys, as a
JWK set from a file or from the coordinator's `/v1/keys`. The scopes are those of `runtime.http.callers`. A token with
the scope `subscribe` belongs to one subscriber, its `sub`.

A token with an audience is invalid everywhere else:

- A session token opens sessions at brokers (`BROKERS`). A broker cannot use it at the coordinator or the data cluster.
- A hand-over token admits one subscriber to one broker for one migration: its audience is that broker, and it expires
  within a minute. The session that it opens ends when the session before it would have ended.
- A voucher is the coordinator's word that a broker serves some users. The data cluster alone accepts it (`CLUSTER`).

Session and hand-over tokens name the token that they were made from (`origin`): revoking that one revokes them too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
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

from tocsin.model.permission import Rights
from tocsin.runtime.http.revocations import Revocations

ALGORITHM = "EdDSA"
ISSUER = "tocsin"
BROKERS = "tocsin:brokers"
"""Audience of session tokens: every broker. The id of a broker has no colon, so no broker can have this name."""
CLUSTER = "tocsin:data-cluster"
"""Audience of vouchers."""
_LEEWAY_S = 5.0
"""Accepted difference between the clocks of two machines."""
_MAX_LENGTH = 4_096
_MAX_VOUCHER = 256 << 10
"""Longest voucher in characters: it lists up to 1,000 users."""
_MOST_VERIFIED = 1_024
"""Tokens that a verifier remembers. It forgets all of them when there are more."""
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
    origin: str = ""
    """`jti` of the token that this one was made from; empty if there is none."""
    issued_s: float = 0.0
    session_expires_s: float | None = None
    """Hand-over tokens: the time at which the session ends; None if the session has no end of its own."""
    users: tuple[str, ...] = ()
    """Vouchers: the users that the broker `subject` serves."""
    most_subscriptions: int | None = None
    """The most subscriptions of this user; None for the limit of the broker."""
    key: str = ""
    """The id of the key that signed the token; empty for tokens of an external issuer."""

    @property
    def rights(self) -> Rights:
        return Rights(self.scopes, self.most_subscriptions)

    @property
    def ends_s(self) -> float | None:
        """The end of a session that this token opens; None if it never ends."""
        return self.expires_s if self.migration is None else self.session_expires_s


def subject_of(token: str) -> str:
    """The owner that a token names, unchecked: for a token that this process got from its issuer. "" if it has none."""
    try:
        return str(jwt.decode(token, options={"verify_signature": False}).get("sub", ""))
    except (jwt.InvalidTokenError, ValueError):
        return ""


class Verifier:
    """Verifies tokens with the public keys that this process trusts."""

    def __init__(self, keys: Mapping[str, Ed25519PublicKey], revoked: Revocations = Revocations()) -> None:
        self._keys = dict(keys)
        self.revoked = revoked
        self._verified: dict[str, Claims] = {}
        """Tokens whose signature was verified. Time, revocation and audience are checked at every use."""

    @classmethod
    def from_jwks(cls, document: Mapping[str, Any]) -> Self:
        keys = {}
        for entry in document.get("keys", ()):
            if entry.get("kty") != "OKP":
                continue  # a key of another kind than the coordinator's
            key = OKPAlgorithm.from_jwk(json.dumps(entry))
            if isinstance(key, Ed25519PublicKey):
                keys[str(entry["kid"])] = key
        return cls(keys, Revocations.from_jwks(document))

    def knows_key_of(self, token: str) -> bool:
        """Whether this token names one of our keys; False for text that is no token."""
        if token in self._verified:
            return True
        try:
            return len(token) <= _MAX_VOUCHER and jwt.get_unverified_header(token).get("kid", "") in self._keys
        except (jwt.InvalidTokenError, ValueError, TypeError):
            return False

    def claims(self, token: str, now_s: float, *, audience: str | Collection[str] | None = None) -> Claims | None:
        """The content of the token, or None if it is forged, expired, revoked or meant for another audience.

        The reason is not returned, so that no server can reveal it.
        """
        audiences = () if audience is None else (audience,) if isinstance(audience, str) else audience
        if len(token) > (_MAX_VOUCHER if CLUSTER in audiences else _MAX_LENGTH):
            return None
        claims = self._verified.get(token) or self._verify(token)
        if claims is None:
            return None
        if claims.expires_s is not None and now_s > claims.expires_s + _LEEWAY_S:
            return None
        if self.is_revoked(claims):
            return None
        return claims if claims.audience is None or claims.audience in audiences else None

    def _verify(self, token: str) -> Claims | None:
        """The content of a token that one of our keys signed, or None. Takes about 0.2 ms."""
        try:
            key_id = jwt.get_unverified_header(token).get("kid", "")
            key = self._keys.get(key_id)
            if key is None:
                return None
            body: dict[str, Any] = jwt.decode(token, key, algorithms=[ALGORITHM], issuer=ISSUER, options=_OPTIONS)
            claims = _claims_of(body, key_id)
        except (jwt.InvalidTokenError, ValueError, TypeError, AttributeError):
            return None
        if len(token) <= _MAX_LENGTH:
            if len(self._verified) >= _MOST_VERIFIED:
                self._verified.clear()
            self._verified[token] = claims
        return claims

    def is_revoked(self, claims: Claims) -> bool:
        """True if an accepted token is not valid any more: it is revoked, or its key was replaced."""
        if claims.key and claims.key not in self._keys:
            return True
        return self.revoked.cover(claims.subject, claims.issued_s, (claims.identity, claims.origin))


def _claims_of(body: Mapping[str, Any], key: str) -> Claims:
    """The claims in the body of a token. Raises ValueError or TypeError if one is malformed."""
    most = body.get("subs")
    return Claims(
        subject=str(body["sub"]),
        scopes=frozenset(str(body.get("scope", "")).split()),
        expires_s=_number(body.get("exp")),
        audience=body.get("aud"),
        migration=body.get("mig"),
        identity=str(body.get("jti", "")),
        origin=str(body.get("org", "")),
        issued_s=float(body.get("iat", 0.0)),
        session_expires_s=_number(body.get("ses")),
        users=tuple(str(user) for user in body.get("users", ())),
        most_subscriptions=None if most is None else int(most),
        key=key,
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


class Signer:
    """Signs tokens with the coordinator's private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._use(key)

    def _use(self, key: Ed25519PrivateKey) -> None:
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
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(_new_key(path))

    def replace_key(self, path: Path) -> None:
        """Write a new key to this file and sign with it from now on."""
        self._use(_new_key(path))

    @property
    def public_key(self) -> Ed25519PublicKey:
        return self._key.public_key()

    def jwks(self) -> dict[str, Any]:
        """The public key as a JWK set."""
        return {"keys": [jwk_of(self.public_key, self.key_id)]}

    def verifier(self) -> Verifier:
        return Verifier({self.key_id: self.public_key})

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
        origin: str = "",
        session_expires_s: float | None = None,
        users: Collection[str] = (),
        most_subscriptions: int | None = None,
    ) -> str:
        """`identity` is a random `jti`. A token without a lifetime never expires; it is meant for processes."""
        body: dict[str, Any] = {"iss": ISSUER, "sub": subject, "scope": " ".join(sorted(scopes))}
        # With fractions of a second: a token made right after the revocation of a user's tokens is valid.
        body |= {"iat": round(now_s, 6), "jti": identity}
        optional = {
            "exp": None if lifetime_s is None else int(now_s + lifetime_s),
            "aud": audience,
            "mig": migration,
            "org": origin or None,
            "ses": session_expires_s,
            "users": list(users) or None,
            "subs": most_subscriptions,
        }
        body |= {name: value for name, value in optional.items() if value is not None}
        return jwt.encode(body, self._key, algorithm=ALGORITHM, headers={"kid": self.key_id})


def _new_key(path: Path) -> Ed25519PrivateKey:
    """Make a key and write it to this file completely or not at all, readable by its owner only (mode 0600)."""
    key = Ed25519PrivateKey.generate()
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    return key


def key_of_jwk(entry: Mapping[str, Any]) -> Ed25519PublicKey:
    """The public key of a JWK. Raises ValueError for a key of another kind."""
    key = OKPAlgorithm.from_jwk(json.dumps(dict(entry)))
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("not a public Ed25519 key")
    return key


def jwk_of(key: Ed25519PublicKey, key_id: str) -> dict[str, Any]:
    entry: dict[str, Any] = OKPAlgorithm.to_jwk(key, as_dict=True)
    return entry | {"kid": key_id, "alg": ALGORITHM, "use": "sig"}
