"""The users for which each broker acts, as tokens have proved them to the data cluster.

A broker that subscribes to a channel with a bound parameter, or stores a record that a user owns, names the user. The
data cluster believes it only for users whose own token the broker has shown, or for which the coordinator vouches. A
proof lasts as long as the token, and at most `LONGEST_S`. Proofs are in memory: after a restart of the data cluster the
brokers prove their users again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.permission import may_subscribe
from tocsin.runtime.http.credentials import BROKERS, CLUSTER, Claims

LONGEST_S = 900.0
MOST_USERS = 1_000_000
"""The most users of one broker; the oldest proofs are forgotten first."""


def audiences_of(broker: BrokerId) -> tuple[str, ...]:
    """Audiences of the tokens with which this broker may prove a user."""
    return (BROKERS, CLUSTER, broker)


def users_of(claims: Claims, broker: BrokerId) -> tuple[str, ...]:
    """The users that a valid token proves for this broker."""
    if claims.audience == CLUSTER:
        return claims.users if claims.subject == broker else ()
    return (claims.subject,) if may_subscribe(claims.scopes) else ()


class ProvenUsers:
    """Use it on the event loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._until_s: dict[BrokerId, dict[SubscriberId, tuple[float, Claims]]] = {}

    def add(self, broker: BrokerId, claims: Claims) -> list[SubscriberId]:
        """Remember the users that this token proves, and return them."""
        now_s = self._now_s()
        until_s = now_s + LONGEST_S if claims.ends_s is None else min(claims.ends_s, now_s + LONGEST_S)
        users = [SubscriberId(user) for user in users_of(claims, broker)]
        known = self._until_s.setdefault(broker, {})
        for user in users:
            known.pop(user, None)
            known[user] = (until_s, claims)
        while len(known) > MOST_USERS:
            del known[next(iter(known))]
        return users

    def proves(self, broker: BrokerId, user: str) -> bool:
        until_s, _ = self._until_s.get(broker, {}).get(SubscriberId(user), (0.0, None))
        return self._now_s() < until_s

    def known(self, broker: BrokerId, users: Iterable[str]) -> list[str | None]:
        """Each user, or None if nothing proves that the broker acts for it."""
        return [user if self.proves(broker, user) else None for user in users]

    def forget_revoked(self, is_revoked: Callable[[Claims], bool]) -> None:
        for known in self._until_s.values():
            for user in [user for user, (_, claims) in known.items() if is_revoked(claims)]:
                del known[user]
