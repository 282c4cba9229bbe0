"""A Bloom filter in front of the key index: it finds out that a key is new without a look at tables and files.

Nearly all keys of a healthy feed are new. The filter answers "certainly new" or "perhaps known"; the key index decides
about the latter. All bits of a digest lie in one 64-bit word, so that a look-up costs one access to memory ("blocked"
Bloom filter: Putze, Sanders, Singler 2007). Slots are never cleared: those of expired keys stay set until a restart. In
memory only, not thread-safe. `keyindex.py` drives it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

U64: TypeAlias = npt.NDArray[np.uint64]
Bools: TypeAlias = npt.NDArray[np.bool_]

_WORD_BITS: Final = 21
"""2**21 words: 16 MiB a dataset, allocated as keys arrive. With 2 million keys, 1 of 3,000 new keys is perhaps known;
with 20 million, 1 of 18."""
_WORD_SHIFT: Final = np.uint64(64 - _WORD_BITS)
_ONE: Final = np.uint64(1)
_LOW: Final = np.uint64(63)
_SECOND: Final = np.uint64(6)
_THIRD: Final = np.uint64(12)
USELESS_KEYS: Final = 8 << 24
"""With this many keys nearly every look-up answers "perhaps known"."""


class KeyFilter:
    """A digest is represented by its first half: a 64-bit number of which all bits are random."""

    def __init__(self) -> None:
        self._words: U64 = np.zeros(1 << _WORD_BITS, dtype=np.uint64)
        self._numbers = memoryview(self._words.data).cast("B").cast("Q")
        """The same words, for access to a single one."""

    def add_few(self, firsts: Iterable[int]) -> list[bool]:
        """Like `add`. Several times faster for a few digests, for which numpy's calls cost more than the work."""
        words = self._numbers
        known = []
        for first in firsts:
            at = first >> 64 - _WORD_BITS
            bits = 1 << (first & 63) | 1 << (first >> 6 & 63) | 1 << (first >> 12 & 63)
            word = words[at]
            known.append(word & bits == bits)
            words[at] = word | bits
        return known

    def add(self, first: U64) -> Bools:
        """Add digests. Returns for each of them whether it may have been added before this call."""
        at = (first >> _WORD_SHIFT).astype(np.intp)
        bits = (_ONE << (first & _LOW)) | (_ONE << (first >> _SECOND & _LOW)) | (_ONE << (first >> _THIRD & _LOW))
        words = self._words[at]
        known: Bools = words & bits == bits
        # Of digests with the same word, one assignment sets the bits of only one of them.
        missing = bits
        while True:
            self._words[at] = words | missing
            words = self._words[at]
            lost = words & missing != missing
            if not lost.any():
                return known
            at, words, missing = at[lost], words[lost], missing[lost]

    def fill(self) -> None:
        """Answer "perhaps known" for every key from now on."""
        self._words[:] = np.iinfo(np.uint64).max
