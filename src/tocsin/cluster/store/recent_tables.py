"""The latest tables in memory, up to a bound of bytes; the oldest go first. Not thread-safe.

It keeps the sum of their sizes: adding them up for every new table would make an execution slower the longer the
process runs, and the size of an Arrow table is itself computed from all its parts.

Most tables have a few rows. Then the objects around the values need far more memory than the values, so each column
counts with them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

import pyarrow as pa

Key = TypeVar("Key", bound=Hashable)

COLUMN_BYTES = 2_400
"""Memory of a column besides its values, for each chunk: arrays, buffers and their padding [measured: 23.9 KB for a
table of one row and ten columns]."""


class RecentTables(Generic[Key]):
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._tables: OrderedDict[Key, tuple[pa.Table, int]] = OrderedDict()
        self.size_bytes = 0

    def add(self, key: Key, table: pa.Table) -> None:
        self.remove(key)
        size_bytes = table.nbytes + COLUMN_BYTES * sum(column.num_chunks for column in table.columns)
        self._tables[key] = table, size_bytes
        self.size_bytes += size_bytes
        while self.size_bytes > self._most_bytes:
            self.size_bytes -= self._tables.popitem(last=False)[1][1]

    def get(self, key: Key) -> pa.Table | None:
        kept = self._tables.get(key)
        return None if kept is None else kept[0]

    def remove(self, key: Key) -> None:
        kept = self._tables.pop(key, None)
        if kept is not None:
            self.size_bytes -= kept[1]
