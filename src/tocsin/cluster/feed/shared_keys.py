"""The keys of a shared log as one gateway knows them: the catalog has them, and this index follows it.

Each object has a block of the keys that were new with it. A gateway reads the blocks that it does not have yet, in the
transaction that places its own next object, so no key escapes it. The files of the index are a cache in a temporary
folder: a new gateway reads all blocks within the retention again. Driven by one thread at a time.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable
from itertools import compress
from pathlib import Path

from tocsin.cluster.catalog.placing import DIGEST_BYTES, KeyBlock
from tocsin.cluster.feed.keyindex import KeyIndex


class SharedKeys:
    def __init__(self, retention_s: float | None, memory_keys: int, now_us: Callable[[], int]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tocsin-keys-"))
        self._index = KeyIndex(self._folder, retention_s, memory_keys)
        self._removal = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._now_us = now_us
        self.known = 0
        """The index has the keys of all objects before this position."""

    def follow(self, blocks: Iterable[KeyBlock]) -> None:
        for block in blocks:
            if block.first >= self.known:
                content = block.digests
                digests = [content[at : at + DIGEST_BYTES] for at in range(0, len(content), DIGEST_BYTES)]
                self._index.expect(digests)
                self._index.add(digests, block.at_us)
                self.known = block.first + 1

    def fresh(self, digests: Collection[bytes]) -> set[bytes]:
        """Those that no object has."""
        keys = list(set(digests))
        candidates = [keys[place] for place in self._index.expect(keys)]
        if not candidates:
            return set(keys)
        seen = self._index.seen(candidates, self._now_us()).tolist()
        return set(keys).difference(compress(candidates, seen))

    def placed(self, digests: Collection[bytes], at_us: int, tail: int) -> None:
        """Add the keys of an object that has its place. `tail` is the end of the log with it."""
        if digests:
            self._index.add(digests, at_us)
        self.known = max(self.known, tail)

    def settle(self) -> None:
        """Write the keys in memory to a file if they are many. Raises OSError if the disk is full.

        Not in the transaction, which locks the log.
        """
        if self._index.is_full():
            self._index.flush(0, self._now_us())

    def merge(self) -> None:
        self._index.merge(self._now_us())

    def close(self) -> None:
        self._removal()
