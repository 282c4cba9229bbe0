"""The newest keys of a key index, in memory: a hash table whose entries are numpy arrays instead of Python objects.

An entry has 32 bytes; a digest in a dict has more than 100, and filling and freeing a dict holds Python's interpreter.
New keys wait as bytes and enter the table many at a time, because each call into numpy has a fixed cost. A key that is
added twice has two entries. A table is cleared and used again, because the first use of new memory takes the kernel 2
µs a page. Not thread-safe: `keyindex.py` drives it under its lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tocsin.cluster.feed.keyfilter import U64, Bools

I64: TypeAlias = npt.NDArray[np.int64]
Part: TypeAlias = tuple[U64, U64, I64]
"""(first halves, last halves, accepted at in µs) of digests."""

_CHAINS: Final = 1 << 18
_CHAIN: Final = np.uint64(_CHAINS - 1)
_WAITING: Final = 4096
"""Keys that wait before they enter the table."""
_FIRST, _LAST, _AT_US, _NEXT = range(4)


class KeyTable:
    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        """The digests of each call of `add`, joined."""
        self._waiting_at_us: list[int] = []
        self._waiting_keys = 0
        self._used = 0
        self._entries: U64 = np.zeros((4, 0), dtype=np.uint64)
        """First half, last half, time, and the number of the next entry with the same chain; 0 ends a chain."""
        self._chains: U64 = np.zeros(_CHAINS, dtype=np.uint64)
        """The number of the newest entry of each chain. Entries are numbered from 1."""

    def __len__(self) -> int:
        return self._used + self._waiting_keys

    def add(self, digests: Collection[bytes], at_us: int) -> None:
        self._waiting.append(b"".join(digests))
        self._waiting_at_us.append(at_us)
        self._waiting_keys += len(digests)
        if self._waiting_keys >= _WAITING:
            self._settle()

    def _settle(self) -> None:
        """Enter the waiting keys."""
        if self._waiting_keys:
            first, last = halves(self._waiting)
            counts = [len(digests) // 16 for digests in self._waiting]
            self._enter(first, last, np.repeat(np.array(self._waiting_at_us, dtype=np.int64), counts))
        self._waiting, self._waiting_at_us, self._waiting_keys = [], [], 0

    def seen(self, first: U64, last: U64, horizon_us: int) -> Bools:
        """For each digest: True if it was added with a time that is not before the horizon."""
        self._settle()
        is_seen = np.zeros(len(first), dtype=np.bool_)
        if not self._used:
            return is_seen
        queries = np.arange(len(first))
        numbers = self._chains[(first & _CHAIN).astype(np.intp)]
        while len(queries := queries[numbers > 0]):
            at = (numbers[numbers > 0] - np.uint64(1)).astype(np.intp)
            entries = self._entries[:, at]
            hit = (entries[_FIRST] == first[queries]) & (entries[_LAST] == last[queries])
            hit &= entries[_AT_US].view(np.int64) >= horizon_us
            is_seen[queries[hit]] = True
            queries, numbers = queries[~hit], entries[_NEXT][~hit]
        return is_seen

    def part(self) -> Part:
        """All keys, in the order in which they were added. The arrays are views: they change when the table does."""
        self._settle()
        entries = self._entries[:, : self._used]
        return entries[_FIRST], entries[_LAST], entries[_AT_US].view(np.int64)

    def extend(self, newer: KeyTable) -> None:
        """Add all keys of another table."""
        self._settle()
        self._enter(*newer.part())

    def clear(self) -> None:
        """Remove all keys and keep the memory for others."""
        self._waiting, self._waiting_at_us, self._waiting_keys = [], [], 0
        if self._used:
            self._chains.fill(0)
            self._used = 0

    def _enter(self, first: U64, last: U64, at_us: I64) -> None:
        start, end = self._used, self._used + len(first)
        if end > self._entries.shape[1]:
            larger = np.zeros((4, 2 * end), dtype=np.uint64)
            larger[:, :start] = self._entries[:, :start]
            self._entries = larger
        entries = self._entries[:, start:end]
        entries[_FIRST], entries[_LAST], entries[_AT_US] = first, last, at_us.view(np.uint64)
        chains = (first & _CHAIN).astype(np.intp)
        numbers = np.arange(start + 1, end + 1, dtype=np.uint64)
        unlinked = np.arange(len(first))
        # Of new entries with the same chain, one assignment links only one of them.
        while len(unlinked):
            chain, number = chains[unlinked], numbers[unlinked]
            entries[_NEXT, unlinked] = self._chains[chain]
            self._chains[chain] = number
            unlinked = unlinked[self._chains[chain] != number]
        self._used = end


def halves(digests: Iterable[bytes]) -> tuple[U64, U64]:
    """The digests as two arrays of native 64-bit numbers, in an order that sorts like the digests."""
    pairs = np.frombuffer(b"".join(digests), dtype=">u8").reshape(-1, 2)
    return pairs[:, 0].astype(np.uint64), pairs[:, 1].astype(np.uint64)


def first_halves(digests: Sequence[bytes]) -> U64:
    pairs = np.frombuffer(b"".join(digests), dtype=">u8")
    return pairs[::2].astype(np.uint64)
