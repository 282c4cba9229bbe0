"""Sorted immutable files of key digests and when each was accepted: the on-disk half of `keyindex.py`.

A run holds three arrays, memory-mapped: the first eight bytes of each digest (sorted), the last eight, and the time in
µs. Splitting the digest lets numpy search plain 64-bit numbers, several times faster than 16-byte strings. Runs are
merged range by range of the digest space, so that merging takes a bounded amount of memory however large they are.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Part: TypeAlias = tuple[U64, U64, I64]
"""(first halves, last halves, accepted at in µs), sorted by digest."""

MAGIC = b"TOCKEYS1"
_HEADER = struct.Struct("<8sQQqq")
_ARRAYS_AT = 64
_MERGE_CHUNK = 1 << 19
"""Digests per step of a merge: about 12 MiB of each input array together."""


def halves(digests: Sequence[bytes]) -> tuple[U64, U64]:
    """The digests as two arrays of native 64-bit numbers that sort as the digests do."""
    pairs = np.frombuffer(b"".join(digests), dtype=">u8").reshape(-1, 2)
    return pairs[:, 0].astype(np.uint64), pairs[:, 1].astype(np.uint64)


def first_halves(digests: Sequence[bytes]) -> U64:
    pairs = np.frombuffer(b"".join(digests), dtype=">u8")
    return pairs[::2].astype(np.uint64)


def sorted_part(first: U64, last: U64, at_us: I64) -> Part:
    """Sorted by digest, each digest once, with the latest time it was accepted."""
    order = np.argsort(first)
    if not (np.diff(first[order]) == 0).any():
        return first[order], last[order], at_us[order]
    # First halves that are equal: nearly always one key twice. Sorting by all three takes several times as long.
    order = np.lexsort((at_us, last, first))
    first, last, at_us = first[order], last[order], at_us[order]
    keep = np.append((first[1:] != first[:-1]) | (last[1:] != last[:-1]), True)
    return first[keep], last[keep], at_us[keep]


@dataclass(frozen=True, slots=True)
class Run:
    path: Path
    first: U64
    last: U64
    at_us: I64
    oldest_us: int
    newest_us: int

    def __len__(self) -> int:
        return len(self.first)

    def seen(self, first: U64, last: U64, horizon_us: int) -> Bools:
        """Which digests are in this run and not older than the horizon."""
        found = np.zeros(len(first), dtype=np.bool_)
        if self.newest_us < horizon_us:
            return found
        at = np.searchsorted(self.first, first)
        open_queries = np.arange(len(first))
        # One step, unless digests share their first half: then on to the next until it differs.
        while len(open_queries):
            open_queries = open_queries[at[open_queries] < len(self.first)]
            open_queries = open_queries[self.first[at[open_queries]] == first[open_queries]]
            here = at[open_queries]
            hit = (self.last[here] == last[open_queries]) & (self.at_us[here] >= horizon_us)
            found[open_queries[hit]] = True
            at[open_queries] += 1
            open_queries = open_queries[~hit]
        return found


def open_run(path: Path) -> Run:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, count, capacity, oldest_us, newest_us = _HEADER.unpack_from(mapped)
    if magic != MAGIC or len(mapped) < _ARRAYS_AT + 16 * capacity + 8 * count:
        raise ValueError(f"{path}: no key run, or cut short; delete the key index to have it rebuilt from the feed log")
    return Run(
        path,
        np.frombuffer(mapped, np.uint64, count, _ARRAYS_AT),
        np.frombuffer(mapped, np.uint64, count, _ARRAYS_AT + 8 * capacity),
        np.frombuffer(mapped, np.int64, count, _ARRAYS_AT + 16 * capacity),
        oldest_us,
        newest_us,
    )


def write_run(path: Path, parts: Iterable[Part], capacity: int) -> Run | None:
    """Write sorted parts, one after the other, as one durable run; None, and no file, when they are all empty.

    `capacity` is at least the number of digests; what is not needed stays a hole in the file. Written with pwrite and
    not through the mapping, so that a full disk is an OSError and not a fatal signal.
    """
    count, oldest_us, newest_us = 0, 1 << 62, -(1 << 62)
    temporary = path.with_suffix(".tmp")
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.ftruncate(fd, _ARRAYS_AT + 24 * capacity)
        for part in parts:
            for number, array in enumerate(part):
                _write_all(fd, array.tobytes(), _ARRAYS_AT + 8 * (number * capacity + count))
            if len(part[2]):
                oldest_us = min(oldest_us, int(part[2].min()))
                newest_us = max(newest_us, int(part[2].max()))
            count += len(part[0])
        _write_all(fd, _HEADER.pack(MAGIC, count, capacity, oldest_us, newest_us), 0)
        os.fsync(fd)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    if not count:
        temporary.unlink()
        return None
    temporary.rename(path)
    return open_run(path)


def merge(runs: Sequence[Run], horizon_us: int) -> Iterator[Part]:
    """The sorted union of `runs` without what is older than the horizon, in parts of bounded size.

    Digests are evenly spread, so equal ranges of their first half hold about equally many.
    """
    ranges = max(1, sum(map(len, runs)) // _MERGE_CHUNK)
    bounds = [(1 << 64) * number // ranges for number in range(1, ranges)]
    edges = [[0, *np.searchsorted(run.first, np.array(bounds, dtype=np.uint64)).tolist(), len(run)] for run in runs]
    for number in range(ranges):
        slices = [slice(edge[number], edge[number + 1]) for edge in edges]
        first = np.concatenate([run.first[part] for run, part in zip(runs, slices, strict=True)])
        last = np.concatenate([run.last[part] for run, part in zip(runs, slices, strict=True)])
        at_us = np.concatenate([run.at_us[part] for run, part in zip(runs, slices, strict=True)])
        young = at_us >= horizon_us
        yield sorted_part(first[young], last[young], at_us[young])


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
