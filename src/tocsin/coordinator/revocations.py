"""Revoked tokens and users. The coordinator stores them, and publishes them with its keys to every process.

A deleted user is revoked too, so that a new user of the same name does not accept the old one's tokens.
"""

from __future__ import annotations

from tocsin.coordinator.effects import StoreRevocation
from tocsin.coordinator.events import TokensRevoked
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import SubscriberId

TOKEN, USER = "token", "user"
"""Kinds of revocations."""


def revoke(turn: Turn, event: TokensRevoked) -> bool:
    for identity in event.tokens:
        _store(turn, TOKEN, identity)
    for user in event.users:
        revoke_user(turn, user)
    return True


def revoke_user(turn: Turn, user: SubscriberId) -> None:
    """Revoke the tokens that the user has now. Tokens issued later are valid."""
    _store(turn, USER, user)


def _store(turn: Turn, kind: str, name: str) -> None:
    turn.registry.add_revocation(kind, name, turn.now_s)
    turn.do(StoreRevocation(kind, name, turn.now_s))
    turn.note(f"{kind} revoked", **{kind: name})
