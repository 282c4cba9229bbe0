"""Links between living nodes that fail again and again: the child goes around its parent.

A lost link starts the next generation, which opens it again. If it fails in several generations although both of its
nodes live, the child is attached to the next living ancestor for a while. No detour leads around the root.
"""

from __future__ import annotations

from collections.abc import Collection

from tocsin.model.edge import EdgeNodeId

Link = tuple[EdgeNodeId, EdgeNodeId]
"""(child, parent)."""
FAILURES = 3
"""Failures, each in a generation of its own, before the child goes around the parent."""
WITHIN_S = 60.0
"""Failures that are further apart than this are not connected."""
DETOUR_S = 600.0
"""After this the next generation tries the link again. No generation starts for that."""


class Detours:
    def __init__(self) -> None:
        self._failed_s: dict[Link, list[float]] = {}
        self._until_s: dict[Link, float] = {}

    def failed(self, link: Link, now_s: float) -> None:
        """A link has failed in a generation. Call it once per link and generation."""
        recent = [at_s for at_s in self._failed_s.get(link, ()) if at_s > now_s - WITHIN_S]
        self._failed_s[link] = [*recent, now_s]
        if len(self._failed_s[link]) >= FAILURES:
            self._until_s[link] = now_s + DETOUR_S
            del self._failed_s[link]

    def forget(self, node: EdgeNodeId) -> None:
        """The node has started again or is dead: its links failed because of that, or deserve another try."""
        self._failed_s = {link: at_s for link, at_s in self._failed_s.items() if node not in link}
        self._until_s = {link: until_s for link, until_s in self._until_s.items() if node not in link}

    def links(self, now_s: float) -> Collection[Link]:
        """The links to go around."""
        return {link for link, until_s in self._until_s.items() if now_s < until_s}
