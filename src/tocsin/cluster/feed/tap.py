"""Live view of a dataset: a sample of the newest records that a gateway accepts.

Not durable and not complete: to receive data, subscribe to a channel. A record in the view may still be lost if the
next sync fails, records beyond a rate are left out, and records from Spark sources never pass the gateway. `RecordRing`
costs the publishing path only one append of a reference. Each viewer has its own `TapReader`. It pulls at its own pace
and misses what the ring has dropped in the meantime.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from typing import Any, Final

import msgspec
import pyarrow.parquet as pq

from tocsin.cluster.catalog import Catalog, dataset_owner
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind

RING_BYTES: Final = 4 << 20
RECENT: Final = 200
"""Records of a STREAM that a viewer gets first."""
MOST_KEYS: Final = 10_000
"""Records of a KEYED or STATIC dataset that a viewer gets first, and the most that may be pending for it."""
_MOST_PER_PULL: Final = 2_000
"""Records of a KEYED dataset read in one pull: a fast feed is sampled."""


class RecordRing:
    """The last bodies of JSON lines that a gateway appended to its log, numbered from 0. Thread-safe."""

    def __init__(self, limit_bytes: int = RING_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._bodies: deque[bytes] = deque()
        self._size_bytes = 0
        self._next = 0
        self._lock = threading.Lock()

    def add(self, body: bytes) -> None:
        if len(body) > self._limit_bytes:
            body = body[body.find(b"\n", -self._limit_bytes) + 1 :]
        with self._lock:
            self._bodies.append(body)
            self._size_bytes += len(body)
            self._next += 1
            while self._size_bytes > self._limit_bytes:
                self._size_bytes -= len(self._bodies.popleft())

    def since(self, number: int) -> tuple[list[bytes], int]:
        """(bodies from this number on that are still in the ring, newest last; number of the next body)."""
        with self._lock:
            new = min(len(self._bodies), self._next - number)
            return (list(islice(reversed(self._bodies), new))[::-1] if new > 0 else []), self._next


class TapReader:
    """One viewer's records as JSON texts: first the existing ones, then new ones, at most as many as requested."""

    def __init__(self, dataset: Dataset, ring: RecordRing) -> None:
        self._ring = ring
        self._is_keyed = dataset.kind is DatasetKind.KEYED
        self._at = 0
        self._pending: dict[Any, bytes] = {}
        """KEYED: the newest record of each key that is not yet delivered, longest pending first."""
        fields = [(f"k{n}", Any, msgspec.field(name=name, default=None)) for n, name in enumerate(dataset.key)]
        self._keys: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("Key", fields))
        self._names = [f"k{n}" for n in range(len(dataset.key))]

    def opening(self) -> list[bytes]:
        """The newest record of each key, or the last records of a stream, as far back as the ring goes."""
        if not self._is_keyed:
            return self._lines(RECENT)
        self._add_pending(self._lines(None))
        records, self._pending = list(self._pending.values())[-MOST_KEYS:], {}
        return records

    def news(self, most: int) -> list[bytes]:
        """At most `most` new records since the last call: the newest of a stream, or the longest pending keys."""
        if not self._is_keyed:
            return self._lines(most)
        self._add_pending(self._lines(_MOST_PER_PULL))
        keys = list(islice(self._pending, most))
        return [self._pending.pop(key) for key in keys]

    def _lines(self, most: int | None) -> list[bytes]:
        """The newest `most` new lines of the ring (None: all). The others are skipped unread."""
        bodies, self._at = self._ring.since(self._at)
        lines: list[bytes] = []
        for body in reversed(bodies):
            missing = -1 if most is None else most - len(lines)
            if missing == 0:
                break
            split = body.rsplit(b"\n", missing)
            lines += reversed(split if missing < 0 or len(split) <= missing else split[1:])
        return lines[::-1]

    def _add_pending(self, lines: list[bytes]) -> None:
        for line in lines:
            key = self._keys.decode(line)
            self._pending[tuple(getattr(key, name) for name in self._names)] = line
        while len(self._pending) > MOST_KEYS:
            del self._pending[next(iter(self._pending))]


def static_records(dataset: Dataset, catalog: Catalog, storage: Storage, most: int = MOST_KEYS) -> list[dict[str, Any]]:
    """The first `most` rows of a STATIC dataset. Blocks: reads files."""
    rows: list[dict[str, Any]] = []
    for file in catalog.files.of(dataset_owner(dataset.name)):
        with storage.open(file.path) as stream:
            for batch in pq.ParquetFile(stream).iter_batches(columns=list(dataset.schema.names)):
                rows += batch.to_pylist()
                if len(rows) >= most:
                    return rows[:most]
    return rows
