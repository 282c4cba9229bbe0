"""Looking at records as a gateway accepts them: the newest few, thinned, for whoever wants to see a dataset live.

Not durable and not complete: a look through a window, not a way to get data (channels are that). What a record shows
here may yet be lost with the disk, records beyond a rate are left out, and what Spark sources bring in never passes the
gateway. `RecordRing` is all that publishing pays for: one append of a reference. `TapReader` is one looker's; it pulls
when it likes, and what it missed it missed.
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
"""Records of a STREAM that a reader begins with."""
MOST_KEYS: Final = 10_000
"""Of a KEYED or STATIC dataset that a reader begins with, or waits to be told."""
_LOOKED_AT: Final = 2_000
"""Records looked at in one pull: a fast feed is sampled rather than followed."""


class RecordRing:
    """The bodies of records a gateway last accepted, as it wrote them: JSON lines, numbered from 0. Thread-safe."""

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
        """The bodies from this number on that are still here, newest last, and the number of the next one."""
        with self._lock:
            new = min(len(self._bodies), self._next - number)
            return (list(islice(reversed(self._bodies), new))[::-1] if new > 0 else []), self._next


class TapReader:
    """Records as JSON texts: what there is to begin with, then what is new, never more than asked for at a time."""

    def __init__(self, dataset: Dataset, ring: RecordRing) -> None:
        self._ring = ring
        self._is_keyed = dataset.kind is DatasetKind.KEYED
        self._at = 0
        self._waiting: dict[Any, bytes] = {}
        """KEYED: the newest record of each key that is still to be told, longest waiting first."""
        fields = [(f"k{n}", Any, msgspec.field(name=name, default=None)) for n, name in enumerate(dataset.key)]
        self._keys: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("Key", fields))
        self._names = [f"k{n}" for n in range(len(dataset.key))]

    def opening(self) -> list[bytes]:
        """The newest of each key, or the last of a stream, as far as the ring goes back."""
        if not self._is_keyed:
            return self._lines(RECENT)
        self._wait_for(self._lines(None))
        found, self._waiting = list(self._waiting.values())[-MOST_KEYS:], {}
        return found

    def news(self, most: int) -> list[bytes]:
        """New records since the last call, at most so many: the newest of a stream; of keys, who waits longest."""
        if not self._is_keyed:
            return self._lines(most)
        self._wait_for(self._lines(_LOOKED_AT))
        told = list(islice(self._waiting, most))
        return [self._waiting.pop(key) for key in told]

    def _lines(self, most: int | None) -> list[bytes]:
        """The newest `most` of what the ring has; the rest is passed over without a look."""
        bodies, self._at = self._ring.since(self._at)
        lines: list[bytes] = []
        for body in reversed(bodies):
            wanted = -1 if most is None else most - len(lines)
            if wanted == 0:
                break
            split = body.rsplit(b"\n", wanted)
            lines += reversed(split if wanted < 0 or len(split) <= wanted else split[1:])
        return lines[::-1]

    def _wait_for(self, lines: list[bytes]) -> None:
        for line in lines:
            key = self._keys.decode(line)
            self._waiting[tuple(getattr(key, name) for name in self._names)] = line
        while len(self._waiting) > MOST_KEYS:
            del self._waiting[next(iter(self._waiting))]


def static_records(dataset: Dataset, catalog: Catalog, storage: Storage, most: int = MOST_KEYS) -> list[dict[str, Any]]:
    """The rows of a STATIC dataset, the first `most` of them. Blocks: reads files."""
    found: list[dict[str, Any]] = []
    for file in catalog.files.of(dataset_owner(dataset.name)):
        with storage.open(file.path) as stream:
            for batch in pq.ParquetFile(stream).iter_batches(columns=list(dataset.schema.names)):
                found += batch.to_pylist()
                if len(found) >= most:
                    return found[:most]
    return found
