"""Tokens of receivers that visit a neighbouring site: for one topic, a short time, and not beyond the site's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.coordinator.effects import SendHosting
from tocsin.coordinator.revocations import TOKEN
from tocsin.model.ids import TopicName
from tocsin.runtime.coordinator.key_ring import KeyRing
from tocsin.runtime.coordinator.session_tokens import neighbour_check, visitor_signer
from tocsin.runtime.http.credentials import BROKERS

NOW_S = 1_000_000.0
T = TopicName("warnings/tsunami")


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    return KeyRing(tmp_path, lambda: NOW_S)


def site_token(keys: KeyRing, *scopes: str, lifetime_s: float | None = None, identity: str = "t1") -> str:
    return keys.signer.sign("site-east", scopes, now_s=NOW_S, identity=identity, lifetime_s=lifetime_s)


def hosted(token: str) -> SendHosting:
    return SendHosting(1, 7, "east", T, ("ada/5",), "ws://edge", "ws://head", token)


@pytest.mark.parametrize(
    ("scopes", "site", "admitted"),
    [
        (("site:east", "receive:warnings/#"), "east", True),
        (("site:east", "receive:news/#"), "east", False),
        (("site:east",), "east", False),
        (("receive:#",), "east", False),
        (("site:west", "receive:#"), "east", False),
    ],
)
def test_neighbour_needs_its_site_and_the_topic(
    keys: KeyRing, scopes: tuple[str, ...], site: str, admitted: bool
) -> None:
    assert neighbour_check(keys, lambda: NOW_S)(site, T, site_token(keys, *scopes)) is admitted


def test_forged_and_revoked_tokens_admit_no_receiver(keys: KeyRing, tmp_path: Path) -> None:
    admits = neighbour_check(keys, lambda: NOW_S)
    stranger = KeyRing(tmp_path / "stranger", lambda: NOW_S)
    assert not admits("east", T, site_token(stranger, "site:east", "receive:#"))
    token = site_token(keys, "site:east", "receive:#")
    assert admits("east", T, token)
    keys.set_revocations({(TOKEN, "t1"): NOW_S})
    assert not admits("east", T, token)


def test_token_of_a_visitor_permits_one_topic_for_a_short_time(keys: KeyRing) -> None:
    hosting = visitor_signer(keys, lambda: NOW_S, 300.0)(hosted(site_token(keys, "site:east", "receive:#")))
    [(client, token)] = hosting.tokens.items()
    claims = keys.verifier.claims(token, NOW_S, audience=BROKERS)
    assert claims is not None and client == "ada/5"
    assert (claims.subject, claims.scopes, claims.expires_s) == (
        "east:ada",
        frozenset({f"receive:{T}"}),
        NOW_S + 300.0,
    )
    assert keys.verifier.claims(token, NOW_S) is None, "the coordinator accepts it for nothing"
    assert keys.verifier.claims(token, NOW_S + 310.0, audience=BROKERS) is None


def test_token_of_a_visitor_ends_with_the_token_of_its_site(keys: KeyRing) -> None:
    sign = visitor_signer(keys, lambda: NOW_S, 300.0)
    [short] = sign(hosted(site_token(keys, "site:east", "receive:#", lifetime_s=60.0))).tokens.values()
    claims = keys.verifier.claims(short, NOW_S, audience=BROKERS)
    assert claims is not None and claims.expires_s == NOW_S + 60.0
    keys.set_revocations({(TOKEN, "t1"): NOW_S})
    assert keys.verifier.claims(short, NOW_S, audience=BROKERS) is None


def test_no_token_shows_in_the_text_of_messages(keys: KeyRing) -> None:
    effect = hosted("secret-of-the-site")
    hosting = visitor_signer(keys, lambda: NOW_S, 300.0)(hosted(site_token(keys, "site:east", "receive:#")))
    [secret] = hosting.tokens.values()
    assert "secret-of-the-site" not in repr(effect) and secret not in repr(hosting)
