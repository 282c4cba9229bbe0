"""Scopes that name channels and datasets: `subscribe:Emergencies*` permits every channel whose name begins so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


def permits(scopes: Iterable[str], action: str, name: str) -> bool:
    """True if a scope allows `action` (`subscribe` or `publish`) for the channel or dataset `name`, in any case.

    A scope without a name, such as `subscribe`, allows the action for every name.
    """
    requested = f"{action}:{name}".lower()
    for scope in scopes:
        pattern = scope.lower()
        if pattern in (action, requested) or (pattern.endswith("*") and requested.startswith(pattern[:-1])):
            return True
    return False


def may_subscribe(scopes: Iterable[str]) -> bool:
    """True if a scope allows a subscriber's session, with some channel at least."""
    return any(scope == "subscribe" or scope.startswith("subscribe:") for scope in scopes)


@dataclass(frozen=True, slots=True)
class Rights:
    """The part of a subscriber's token that limits its session."""

    scopes: frozenset[str] = frozenset({"subscribe"})
    most_subscriptions: int | None = None
    """The most subscriptions of this user; None for the broker's own limit."""

    def permit(self, channel: str) -> bool:
        return permits(self.scopes, "subscribe", channel)


ALL_RIGHTS = Rights()
"""For webhooks, whose subscriptions were permitted when they were made, and for simulations."""
