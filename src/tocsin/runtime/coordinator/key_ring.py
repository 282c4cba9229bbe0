"""The coordinator's keys: the one that signs, former ones whose tokens are still valid, and the revocations.

A rotation makes a new key. The former key's public part is published until the overlap ends, so that its tokens stay
valid until then. The private part is deleted. Files: `signing-key.pem` and `retired-keys.json` in the state folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tocsin.coordinator.revocations import TOKEN, USER
from tocsin.runtime.http.credentials import Signer, Verifier, key_of_jwk
from tocsin.runtime.http.revocations import MEMBER, Revocations

KEY_FILE = "signing-key.pem"
RETIRED_FILE = "retired-keys.json"


class RetiredKey(msgspec.Struct, frozen=True):
    jwk: dict[str, Any]
    until_s: float
    """Tokens of this key are valid until then."""


class KeyRing:
    """Use it on the event loop. `rotate` blocks while it writes two small files."""

    def __init__(self, folder: Path, now_s: Callable[[], float]) -> None:
        self._folder = folder
        self.on_change: Callable[[], None] = lambda: None
        """Called after a rotation, before the new key is used."""
        self._now_s = now_s
        self.signer = Signer.load_or_create(folder / KEY_FILE)
        self._retired: list[RetiredKey] = []
        self._revoked = Revocations()
        self._verifier: tuple[list[str], Verifier] | None = None
        """The names of the keys that it has, and the verifier. None after a revocation."""
        self._document: tuple[Verifier, bytes, str] | None = None
        """The verifier with the same keys and revocations, the document and its ETag: every process polls it."""
        if (folder / RETIRED_FILE).exists():
            self._retired = msgspec.json.decode((folder / RETIRED_FILE).read_bytes(), type=list[RetiredKey])

    def set_revocations(self, revocations: Mapping[tuple[str, str], float]) -> None:
        """Take over the coordinator's revocations: (kind, name) → time."""
        tokens = [name for kind, name in revocations if kind == TOKEN]
        users = {name: at_s for (kind, name), at_s in revocations.items() if kind == USER}
        self._revoked = Revocations.of(tokens, users)
        self._verifier = None

    @property
    def verifier(self) -> Verifier:
        valid = self._valid()
        names = [self.signer.key_id, *(str(retired.jwk["kid"]) for retired in valid)]
        if self._verifier is None or self._verifier[0] != names:
            keys = {str(retired.jwk["kid"]): key_of_jwk(retired.jwk) for retired in valid}
            keys[self.signer.key_id] = self.signer.public_key
            self._verifier = (names, Verifier(keys, self._revoked))
        return self._verifier[1]

    def document(self) -> tuple[bytes, str]:
        """The public keys as a JWK set with the revocations, and its ETag."""
        verifier = self.verifier
        if self._document is None or self._document[0] is not verifier:
            keys = [*self.signer.jwks()["keys"], *(retired.jwk for retired in self._valid())]
            body = msgspec.json.encode({"keys": keys, MEMBER: self._revoked.to_json()})
            self._document = (verifier, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
        return self._document[1:]

    def rotate(self, overlap_s: float) -> str:
        """Sign with a new key from now on, and return its id. The former key is valid for `overlap_s` seconds more."""
        [former] = self.signer.jwks()["keys"]
        retired = RetiredKey(former, self._now_s() + overlap_s)
        self._retired = [*self._valid(), *([retired] if overlap_s > 0 else [])]
        # The former key is retired first: after a crash in between one key is both, and no valid token is refused.
        _write(self._folder / RETIRED_FILE, msgspec.json.encode(self._retired))
        self.signer.replace_key(self._folder / KEY_FILE)
        self.on_change()
        return self.signer.key_id

    def _valid(self) -> list[RetiredKey]:
        now_s = self._now_s()
        return [retired for retired in self._retired if retired.until_s > now_s]


def _write(path: Path, content: bytes) -> None:
    """Write the file completely or not at all."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
