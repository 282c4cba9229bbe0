"""Tokens of sessions at brokers: the proof that a broker has a session, and the token that hands a session over.

Both start from the token that opened the session. The session after a hand-over has its rights, its end and its origin,
so that a move neither lengthens the life of a token nor escapes its revocation.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from tocsin.coordinator.effects import SendHandOver, SendHosting
from tocsin.coordinator.site_hosting import Admits
from tocsin.coordinator.turn import Proves
from tocsin.model.ids import BrokerId, SubscriberId, TopicName
from tocsin.model.permission import RECEIVE, may_subscribe, permits_topic
from tocsin.runtime.coordinator.key_ring import KeyRing
from tocsin.runtime.http.credentials import BROKERS, Claims
from tocsin.runtime.http.trusted_keys import TrustedKeys
from tocsin.wire.neighbour_link import Hosting
from tocsin.wire.site_link import visitor_user

_HAND_OVER_TOKEN_S = 60.0
_LINK_DOWN_S = 3_600.0
"""A broker may report a subscriber's changes for this long after the subscriber's token has expired."""


def session_proofs(keys: KeyRing, external: TrustedKeys | None, now_s: Callable[[], float]) -> Proves:
    """Accept a subscriber's token that the broker may hold: for sessions at brokers, or the subscriber's own.

    A token that expired a while ago counts as well: a broker reports changes after its link was down.
    """

    def proves(broker: BrokerId, subscriber: SubscriberId, token: str) -> bool:
        at_s = now_s() - _LINK_DOWN_S
        claims = keys.verifier.claims(token, at_s, audience=(BROKERS, broker))
        if claims is None and external is not None:
            claims = external.known_claims(token, at_s)
        if claims is None or keys.verifier.is_revoked(claims):
            return False
        return claims.subject == subscriber and may_subscribe(claims.scopes)

    return proves


def hand_over_signer(keys: KeyRing, now_s: Callable[[], float], session_s: float) -> Callable[[SendHandOver], str]:
    """`session_s` is the life of a session whose token the coordinator does not know."""

    def sign(effect: SendHandOver) -> str:
        at_s = now_s()
        session = _session(keys, effect)
        ends_s = at_s + session_s if session is None else session.ends_s
        return keys.signer.sign(
            effect.subscriber,
            ["subscribe"] if session is None else session.scopes,
            now_s=at_s,
            identity=secrets.token_hex(8),
            lifetime_s=_HAND_OVER_TOKEN_S,
            audience=effect.target,
            migration=effect.migration,
            origin="" if session is None else session.origin or session.identity,
            session_expires_s=ends_s,
            most_subscriptions=None if session is None else session.most_subscriptions,
        )

    return sign


def neighbour_check(keys: KeyRing, now_s: Callable[[], float]) -> Admits:
    """Accept a token that this coordinator gave to a neighbouring site and that permits it to receive the topic."""

    def admits(site: str, topic: TopicName, token: str) -> bool:
        claims = keys.verifier.claims(token, now_s())
        return claims is not None and f"site:{site}" in claims.scopes and permits_topic(claims.scopes, RECEIVE, topic)

    return admits


def visitor_signer(keys: KeyRing, now_s: Callable[[], float], visit_s: float) -> Callable[[SendHosting], Hosting]:
    """The tokens of receivers of a neighbouring site: for brokers alone, for one topic, for a short time.

    They end with the neighbour's token, and are revoked with it.
    """

    def sign(effect: SendHosting) -> Hosting:
        at_s = now_s()
        site = keys.verifier.claims(effect.token, at_s)
        if site is None:
            return Hosting(effect.number, effect.address, effect.home, {})
        left_s = visit_s if site.expires_s is None else min(visit_s, site.expires_s - at_s)
        tokens = {
            client: keys.signer.sign(
                visitor_user(effect.site, client.rpartition("/")[0]),
                [f"{RECEIVE}:{effect.topic}"],
                now_s=at_s,
                identity=secrets.token_hex(8),
                lifetime_s=left_s,
                audience=BROKERS,
                origin=site.origin or site.identity,
            )
            for client in effect.clients
        }
        return Hosting(effect.number, effect.address, effect.home, tokens)

    return sign


def _session(keys: KeyRing, effect: SendHandOver) -> Claims | None:
    """The token of the present session. Its time is not checked: a hand-over token opens a session that outlives it."""
    if effect.session_token is None:
        return None
    claims = keys.verifier.claims(effect.session_token, 0.0, audience=(BROKERS, effect.broker))
    return claims if claims is not None and claims.subject == effect.subscriber else None
