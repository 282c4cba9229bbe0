"""Reads a shared log: the catalog lists its objects, the data root has them. Any number of processes may read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tocsin.cluster.catalog import Catalog
from tocsin.cluster.feed.feedlog_reader import LogFrame
from tocsin.cluster.feed.log_objects import ObjectPlace, read_object
from tocsin.cluster.store.storage import Storage

FOLDER = "log"
"""The folder of all shared logs below the data root."""


class LogReader(Protocol):
    """What ingestion needs of a log, local or shared: see `FeedLogReader`."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    def read(self, start: int, limit_bytes: int, end: int | None = None) -> tuple[list[LogFrame], int]: ...
    def close(self) -> None: ...


class SharedLogReader:
    """Thread-safe."""

    def __init__(self, catalog: Catalog, storage: Storage, log: int, end: Callable[[], int]) -> None:
        """`end` returns the end of the log, a moment old at most."""
        self._catalog = catalog
        self.storage = storage
        self._log = log
        self._end = end

    @property
    def start(self) -> int:
        """The first position that is not trimmed."""
        end = self.end  # before the look at the objects: another gateway may place one after it
        for place in self.objects(0, 1):
            return place.first
        return end

    @property
    def end(self) -> int:
        return self._end()

    def objects(self, position: int, limit_bytes: int) -> list[ObjectPlace]:
        """The objects from `position` on: about so many bytes, and at least one if there is one."""
        found = self._catalog.logs.objects(self._log, position, limit_bytes)
        return [ObjectPlace(place.first, place.next, place.path, place.left_out) for place in found]

    def read(self, start: int, limit_bytes: int, end: int | None = None) -> tuple[list[LogFrame], int]:
        """(frames with records from `start` on, position after them): about `limit_bytes`, whole objects."""
        places = self.objects(start, limit_bytes)
        return frames_of(self.storage, places, start), places[-1].next if places else start

    def close(self) -> None:
        """Nothing is open between two reads."""


def frames_of(storage: Storage, places: Sequence[ObjectPlace], start: int) -> list[LogFrame]:
    return [frame for place in places for frame in read_object(storage, place) if frame.position >= start]
