"""Which sessions receive a topic: a tree of filters [MQTT5 §4.7], ordinary and shared, with a cache of its answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tocsin.broker.mqtt.names import ParsedFilter

S = TypeVar("S")
"""The type of a session."""
_MOST_CACHED = 10_000


@dataclass(slots=True, eq=False)
class Subscription:
    filter: ParsedFilter
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int | None


@dataclass(slots=True, eq=False)
class Group(Generic[S]):
    """The members of a shared subscription at this broker [MQTT5 §4.8.2]."""

    members: dict[S, Subscription] = field(default_factory=dict)
    turn: int = 0


@dataclass(slots=True)
class Matches(Generic[S]):
    direct: dict[S, tuple[Subscription, ...]]
    groups: tuple[Group[S], ...]


@dataclass(slots=True, eq=False)
class _Node(Generic[S]):
    children: dict[str, _Node[S]] = field(default_factory=dict)
    sessions: dict[S, Subscription] = field(default_factory=dict)
    groups: dict[str, Group[S]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.sessions or self.groups)


class SubscriptionTree(Generic[S]):
    def __init__(self) -> None:
        self._root: _Node[S] = _Node()
        self._cached: dict[str, Matches[S]] = {}

    def add(self, session: S, subscription: Subscription) -> None:
        self._cached.clear()
        node = self._root
        for level in subscription.filter.pattern.split("/"):
            node = node.children.setdefault(level, _Node())
        if subscription.filter.group is None:
            node.sessions[session] = subscription
        else:
            node.groups.setdefault(subscription.filter.group, Group()).members[session] = subscription

    def remove(self, session: S, wanted: ParsedFilter) -> None:
        self._cached.clear()
        path = [self._root]
        levels = wanted.pattern.split("/")
        for level in levels:
            path.append(path[-1].children[level])
        node = path[-1]
        if wanted.group is None:
            del node.sessions[session]
        else:
            group = node.groups[wanted.group]
            del group.members[session]
            if not group.members:
                del node.groups[wanted.group]
        for level, parent, child in zip(reversed(levels), reversed(path[:-1]), reversed(path[1:]), strict=True):
            if not child.is_empty:
                return
            del parent.children[level]

    def group(self, wanted: ParsedFilter) -> Group[S] | None:
        """The group of a shared subscription, if it has a member."""
        node = self._root
        for level in wanted.pattern.split("/"):
            child = node.children.get(level)
            if child is None:
                return None
            node = child
        return node.groups.get(wanted.group or "")

    def matching(self, name: str) -> Matches[S]:
        found = self._cached.get(name)
        if found is None:
            if len(self._cached) >= _MOST_CACHED:
                self._cached.clear()
            found = self._cached[name] = self._find(name)
        return found

    def _find(self, name: str) -> Matches[S]:
        nodes: list[_Node[S]] = []
        levels = name.split("/")
        _collect(self._root, levels, 0, nodes, wildcards=not name.startswith("$"))
        direct: dict[S, list[Subscription]] = {}
        for node in nodes:
            for session, subscription in node.sessions.items():
                direct.setdefault(session, []).append(subscription)
        groups = tuple(group for node in nodes for group in node.groups.values())
        return Matches({session: tuple(several) for session, several in direct.items()}, groups)


def _collect(node: _Node[S], levels: list[str], at: int, found: list[_Node[S]], *, wildcards: bool) -> None:
    if wildcards and (rest := node.children.get("#")) is not None:
        found.append(rest)
    if at == len(levels):
        found.append(node)
        return
    for level in (levels[at], "+") if wildcards else (levels[at],):
        child = node.children.get(level)
        if child is not None:
            _collect(child, levels, at + 1, found, wildcards=True)


def filter_matches(pattern: str, name: str) -> bool:
    """True if an MQTT filter matches an MQTT name."""
    wanted, levels = pattern.split("/"), name.split("/")
    if name.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)
