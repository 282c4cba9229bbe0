"""What the source of a move hands over to the target, directly (`wire.topic_log`) or by the coordinator."""

from __future__ import annotations

import msgspec


class TopicState(msgspec.Struct, frozen=True):
    """The target continues the sequence with it, without a gap."""

    sequence: int
    """The last sequence number that was used."""
    since: int
    """The first epoch of this sequence: it has continued without a gap ever since."""
    publishers: list[tuple[int, int]] = []
    """(publisher, its last accepted number)."""
    owners: list[tuple[int, list[int]]] = []
    """(digest of a user, its publishers): the user with most publishers loses one when there are too many."""
