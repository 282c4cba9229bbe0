"""Signed tokens: which ones are accepted and which ones are refused."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tocsin.runtime.http import credentials
from tocsin.runtime.http.credentials import Signer, Verifier, subject_of
from tocsin.runtime.http.revocations import Revocations

NOW_S = 1_800_000_000.0


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer(Ed25519PrivateKey.generate())


def signed(signer: Signer, **changes: object) -> str:
    options = {"now_s": NOW_S, "identity": "t1", "lifetime_s": 60.0} | changes
    return signer.sign("ada", ["subscribe"], **options)  # type: ignore[arg-type]


def test_token_names_its_subject_scopes_and_expiry(signer: Signer) -> None:
    claims = Verifier.from_jwks(signer.jwks()).claims(signed(signer), NOW_S)
    assert claims is not None
    assert (claims.subject, claims.scopes, claims.expires_s) == ("ada", frozenset({"subscribe"}), NOW_S + 60)


def test_subject_of_a_token_is_read_without_a_check(signer: Signer) -> None:
    assert subject_of(signed(signer, lifetime_s=-9_999.0)) == "ada"
    assert subject_of("rubbish") == ""


def test_expired_token_is_refused_after_the_leeway(signer: Signer) -> None:
    verifier = signer.verifier()
    assert verifier.claims(signed(signer), NOW_S + 64) is not None
    assert verifier.claims(signed(signer), NOW_S + 66) is None


def test_token_verified_before_is_refused_once_it_is_revoked_or_expired(signer: Signer) -> None:
    token, verifier = signed(signer), signer.verifier()
    assert verifier.claims(token, NOW_S) == verifier.claims(token, NOW_S)
    assert verifier.knows_key_of(token)
    assert verifier.claims(token, NOW_S + 66) is None
    verifier.revoked = Revocations.of(["t1"], {})
    assert verifier.claims(token, NOW_S) is None


def test_verifier_remembers_a_bounded_number_of_tokens(signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_MOST_VERIFIED", 3)
    verifier = signer.verifier()
    for number in range(10):
        assert verifier.claims(signed(signer, identity=f"t{number}"), NOW_S) is not None
        assert len(verifier._verified) <= 3


def test_hand_over_token_is_valid_at_one_broker_only(signer: Signer) -> None:
    token = signed(signer, audience="broker-2", migration="m1")
    verifier = signer.verifier()
    assert verifier.claims(token, NOW_S) is None
    assert verifier.claims(token, NOW_S, audience="broker-1") is None
    claims = verifier.claims(token, NOW_S, audience="broker-2")
    assert claims is not None and claims.migration == "m1"


def test_foreign_key_under_our_key_id_is_refused(signer: Signer) -> None:
    body = {"iss": "tocsin", "sub": "ada", "scope": "admin"}
    forged = jwt.encode(body, Ed25519PrivateKey.generate(), algorithm="EdDSA", headers={"kid": signer.key_id})
    assert signer.verifier().claims(forged, NOW_S) is None


def test_unsigned_token_or_one_signed_with_the_public_key_is_refused(signer: Signer) -> None:
    body = {"iss": "tocsin", "sub": "ada", "scope": "admin"}
    unsigned = jwt.encode(body, "", algorithm="none", headers={"kid": signer.key_id})
    public = base64.urlsafe_b64decode(signer.jwks()["keys"][0]["x"] + "==")
    confused = jwt.encode(body, public, algorithm="HS256", headers={"kid": signer.key_id})
    assert signer.verifier().claims(unsigned, NOW_S) is None
    assert signer.verifier().claims(confused, NOW_S) is None


@pytest.mark.parametrize("rubbish", ["", "a.b.c", "x" * 10_000, "ey.ey.ey", "\x00", "tocsin_abc", "é.é.é"])
def test_text_that_is_no_token_is_refused(signer: Signer, rubbish: str) -> None:
    assert signer.verifier().claims(rubbish, NOW_S) is None


def test_changed_body_is_refused(signer: Signer) -> None:
    head, body, signature = signed(signer).split(".")
    changed = json.loads(base64.urlsafe_b64decode(body + "==")) | {"scope": "admin"}
    forged = base64.urlsafe_b64encode(json.dumps(changed).encode()).decode().rstrip("=")
    assert signer.verifier().claims(f"{head}.{forged}.{signature}", NOW_S) is None


def test_key_survives_a_restart_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "signing.pem"
    first = Signer.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.load_or_create(path).verifier().claims(signed(first), NOW_S) is not None
