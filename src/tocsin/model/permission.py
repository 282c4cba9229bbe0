"""Scopes that name channels, datasets and topics.

`subscribe:Emergencies*` permits every channel whose name begins so. The scopes of topics have actions of their own,
`send` and `receive`, so that no topic is mistaken for a dataset or a channel; their names are patterns of
`model.topic`: `send:swarm/3/#`, `receive:swarm/+/leader`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tocsin.model.topic import CONTROL_PREFIX, matches

SEND, RECEIVE, SUBSCRIBE = "send", "receive", "subscribe"
ALL_TOPICS = frozenset({"send:#", "receive:#"})
RELAYED_TOPICS = ALL_TOPICS | {f"send:{CONTROL_PREFIX}#", f"receive:{CONTROL_PREFIX}#"}
"""For brokers: all topics, and those by which brokers talk to each other."""


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


def permits_topic(scopes: Iterable[str], action: str, topic: str) -> bool:
    """True if a scope allows `action` (`send` or `receive`) for this topic.

    The topics of brokers must be named: no scope that begins with a wildcard permits them.
    """
    is_control = topic.startswith(CONTROL_PREFIX)
    return any(
        kind == action and matches(pattern, topic) and (not is_control or pattern.startswith(CONTROL_PREFIX))
        for kind, pattern in _topic_scopes(scopes)
    )


def topic_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """Those of the scopes that name topics."""
    return frozenset(f"{kind}:{pattern}" for kind, pattern in _topic_scopes(scopes))


def _topic_scopes(scopes: Iterable[str]) -> list[tuple[str, str]]:
    pairs = (scope.partition(":") for scope in scopes)
    return [(kind, pattern) for kind, _, pattern in pairs if pattern and kind in (SEND, RECEIVE)]


@dataclass(frozen=True, slots=True)
class Rights:
    """The part of a subscriber's token that limits its session."""

    scopes: frozenset[str] = frozenset({"subscribe"})
    most_subscriptions: int | None = None
    """The most subscriptions of this user; None for the broker's own limit."""

    def permit(self, channel: str) -> bool:
        return permits(self.scopes, SUBSCRIBE, channel)


ALL_RIGHTS = Rights()
"""For webhooks, whose subscriptions were permitted when they were made, and for simulations."""
