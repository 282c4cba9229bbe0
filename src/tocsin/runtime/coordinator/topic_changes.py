"""Wakes the clients that wait for a change of their topics or of the homes of these topics.

A change wakes only the watches of the changed topic. With thousands of clients a move would otherwise cost as much as
an answer to each of them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from tocsin.coordinator.core import Coordinator
from tocsin.model.ids import TopicName
from tocsin.model.topic import is_exact, matches
from tocsin.wire.topic_directory import TopicEntry

_encoder = msgspec.msgpack.Encoder()
_DIGEST_BYTES = 12


def revision_of(entries: Iterable[TopicEntry]) -> str:
    """Names the content of an answer. A client that knows this content waits for another one.

    A count of all changes would not do: while other topics move, it would grow between any two requests of a client,
    and the client would get the same answer again and again. The content has the same name after a restart.
    """
    content = [
        (
            *(entry.topic, entry.created, entry.epoch, entry.home, entry.address, entry.within_s, entry.receive),
            entry.receive_at,
        )
        for entry in entries
    ]
    return hashlib.blake2b(_encoder.encode(content), digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(slots=True, eq=False)
class TopicWatch:
    """A client's request that waits for a change."""

    names: frozenset[TopicName]
    patterns: tuple[str, ...]
    """Patterns with wildcards."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def sees(self, name: TopicName) -> bool:
        return name in self.names or any(matches(pattern, name) for pattern in self.patterns)

    async def wait(self, limit_s: float) -> None:
        """Return at the next change, or after `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                await self.changed.wait()
        except TimeoutError:
            return
        self.changed.clear()


class TopicChanges:
    def __init__(self) -> None:
        self._core: Coordinator | None = None
        self._by_name: dict[TopicName, dict[TopicWatch, None]] = {}
        self._by_pattern: dict[TopicWatch, None] = {}

    @contextmanager
    def watch(self, send: Iterable[TopicName], receive: Iterable[str]) -> Iterator[TopicWatch]:
        receive = list(receive)
        exact = [TopicName(pattern) for pattern in receive if is_exact(pattern)]
        watch = TopicWatch(frozenset((*send, *exact)), tuple(pattern for pattern in receive if not is_exact(pattern)))
        for name in watch.names:
            self._by_name.setdefault(name, {})[watch] = None
        if watch.patterns:
            self._by_pattern[watch] = None
        try:
            yield watch
        finally:
            self._by_pattern.pop(watch, None)
            for name in watch.names:
                watches = self._by_name[name]
                del watches[watch]
                if not watches:
                    del self._by_name[name]

    def handled(self, core: Coordinator | None) -> None:
        """Call it after the changes of a batch of events are stored."""
        if core is None:
            return
        topics = core.registry.topics
        names, topics.unannounced = topics.unannounced, {}
        if core is not self._core:  # another core: anything may differ
            self._core = core
            names = dict.fromkeys((*self._by_name, *names))
            for watch in self._by_pattern:
                watch.changed.set()
        for name in names:
            for watch in self._by_name.get(name, ()):
                watch.changed.set()
            for watch in self._by_pattern:
                if not watch.changed.is_set() and watch.sees(name):
                    watch.changed.set()

    def is_storing(self, core: Coordinator, watch: TopicWatch) -> bool:
        """True while a change that this watch sees is being stored: the watch wakes when it is."""
        return core is not self._core or any(map(watch.sees, core.registry.topics.unannounced))
