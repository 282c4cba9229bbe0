"""Which publisher's number a home forgets when a topic has too many: one of the user that has most of them.

A home recognises repeats by the last number of each publisher, and keeps a limited number of them. A user that attaches
ever new publishers must not displace those of other users: their repeats would be delivered twice. Users are digests
here, because the table moves with the topic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection


def owner_of(user: str) -> int:
    """The user's digest, below 2**53."""
    return int.from_bytes(hashlib.blake2b(user.encode(), digest_size=8).digest(), "big") >> 11


class PublisherShares:
    __slots__ = ("_owners",)

    def __init__(self) -> None:
        self._owners: dict[int, dict[int, None]] = {}
        """User → its publishers, latest attach last; 0 for publishers whose user is not known."""

    def __bool__(self) -> bool:
        """True if there is any publisher."""
        return bool(self._owners)

    def of(self, owner: int) -> Collection[int]:
        """The publishers of a user."""
        return self._owners.get(owner, {}).keys()

    def add(self, publisher: int, owner: int) -> None:
        """The publisher has attached: it is the last of its user that is forgotten."""
        publishers = self._owners.setdefault(owner, {})
        publishers.pop(publisher, None)
        publishers[publisher] = None
        if owner:
            self._remove(publisher, 0)

    def remove_oldest(self) -> int:
        """Forget the oldest publisher of the user that has most of them, and return it."""
        owner = max(self._owners, key=lambda each: len(self._owners[each]))
        publisher = next(iter(self._owners[owner]))
        self._remove(publisher, owner)
        return publisher

    def _remove(self, publisher: int, owner: int) -> None:
        publishers = self._owners.get(owner)
        if publishers is not None:
            publishers.pop(publisher, None)
            if not publishers:
                del self._owners[owner]

    def owners(self) -> list[tuple[int, list[int]]]:
        """(user, its publishers) of the users that are known, for the next home."""
        return [(owner, list(publishers)) for owner, publishers in self._owners.items() if owner]
