"""The keys that were accepted within the retention: a set of 128-bit digests with bounded memory.

New digests enter a table in memory. A full table becomes a sorted file, a run. Runs of similar size are merged, and
keys older than the retention are dropped. With 128 bits a collision, which would make one publisher's record look like
a repeat of another, is about as likely as a broken disk controller: 10**-15 among 10**12 keys. Digests depend on a
random `seed` that never leaves this index, so that no publisher can prepare keys that collide.

Only keys of *durable* records may be added: a key that is here and not in the log would make the gateway drop the retry
of a record that is not stored. `covers` is the log position up to which the runs have every key. After a crash the
driver (`feedstore.py`) adds the keys of the log from there on. `seen` and `add` may run while another thread runs
`flush` or `merge`. The driver serialises `seen` with `add`, and `flush` with `merge`.

A run is immutable. It has three memory-mapped arrays: the first eight bytes of each digest (sorted), the last eight
bytes, and the time in µs. numpy searches 64-bit numbers several times faster than 16-byte strings. Runs are merged
range by range of the digests, so that a merge needs bounded memory for runs of any size.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import struct
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tocsin.cluster.feed.keyfilter import U64, USELESS_KEYS, Bools, KeyFilter
from tocsin.cluster.feed.keytable import I64, KeyTable, Part, first_halves, halves

_MAGIC = b"TOCKEYS1"
_RUN_HEADER = struct.Struct("<8sQQqq")
_ARRAYS_AT = 64
_MERGE_CHUNK = 1 << 19
"""Digests per step of a merge: about 12 MiB in all arrays together."""

DEFAULT_MEMORY_KEYS = 200_000
"""32 bytes each, in two tables that take turns."""
_RUNS_PER_TIER = 4
"""This many runs of similar size are merged into one. So there are at most 3 per power of four, and each key is
rewritten once per power of four."""
_NEVER_US = -(1 << 62)
_FEW = 10
"""Up to this many digests enter the filter one by one."""
_FILTER_STEP = 1 << 20
"""Digests of a run that enter the filter at once."""


class KeyIndex:
    def __init__(
        self, directory: Path | str, retention_s: float | None = None, memory_keys: int = DEFAULT_MEMORY_KEYS
    ) -> None:
        self.directory = Path(directory)
        self.retention_s = retention_s
        """How long keys are kept. None keeps every key for ever: the files grow, memory does not."""
        self.memory_keys = memory_keys
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._table, self._flushing = KeyTable(), KeyTable()
        self._runs: tuple[KeyRun, ...] = ()
        self._covers = 0
        self._sequence = 0
        self.seed = secrets.randbits(64)
        """Created with the index and written with its first run."""
        self._filter = KeyFilter()
        self._load()

    @property
    def covers(self) -> int:
        """The runs have every key that the log holds before this position, except expired ones."""
        return self._covers

    @property
    def keys_in_memory(self) -> int:
        return len(self._table) + len(self._flushing)

    def is_full(self) -> bool:
        return self.keys_in_memory >= self.memory_keys

    def horizon_us(self, now_us: int) -> int:
        return _NEVER_US if self.retention_s is None else now_us - int(self.retention_s * 1e6)

    def expect(self, digests: Sequence[bytes]) -> list[int]:
        """Announce digests that may be added later. Returns the indexes of those that may be known already.

        All others are certainly new.
        """
        if len(digests) <= _FEW:
            known = self._filter.add_few([int.from_bytes(digest[:8], "big") for digest in digests])
            return [index for index, may_be_known in enumerate(known) if may_be_known]
        indexes: list[int] = np.flatnonzero(self._filter.add(first_halves(digests))).tolist()
        return indexes

    def seen(self, digests: Sequence[bytes], now_us: int) -> Bools:
        """For each digest: True if it was added within the retention before `now_us`."""
        horizon_us = self.horizon_us(now_us)
        first, last = halves(digests)
        with self._lock:
            is_seen = self._table.seen(first, last, horizon_us) | self._flushing.seen(first, last, horizon_us)
            runs = self._runs
        if runs and digests:
            order = np.argsort(first)  # so that neighbouring queries read the same pages of a run
            first, last = first[order], last[order]
            for run in runs:
                is_seen[order] |= run.seen(first, last, horizon_us)
        return is_seen

    def add(self, digests: Collection[bytes], at_us: int) -> None:
        """Add digests of records that were accepted at this time. The caller has passed them to `expect` before."""
        with self._lock:
            self._table.add(digests, at_us)

    def flush(self, covers: int, now_us: int) -> None:
        """Write the table as a run. `covers`: every key that the log holds before this position has been added.

        On OSError the index stays as it is and keeps the table in memory.
        """
        with self._lock:
            if len(self._flushing):  # an earlier flush failed; for a key in both tables, the newer time wins
                self._flushing.extend(self._table)
                self._table.clear()
            else:
                self._table, self._flushing = self._flushing, self._table
            first, last, at_us = self._flushing.part()
        run: KeyRun | None = None
        if len(first):
            part = _sorted_part(*_young((first, last, at_us), self.horizon_us(now_us)))
            run = write_run(self._next_path(), [part], len(first))
        runs = self._runs if run is None else (*self._runs, run)
        self._commit(runs, max(covers, self._covers), flushed=True)

    def merge(self, now_us: int) -> None:
        """Drop expired runs, and merge runs of similar size until no tier has too many."""
        horizon_us = self.horizon_us(now_us)
        if any(run.newest_us < horizon_us for run in self._runs):
            self._commit(tuple(run for run in self._runs if run.newest_us >= horizon_us), self._covers)
        while tier := self._crowded_tier():
            merged = write_run(self._next_path(), _merged(tier, horizon_us), sum(map(len, tier)))
            merging = {run.path for run in tier}
            kept = tuple(run for run in self._runs if run.path not in merging)
            self._commit(kept if merged is None else (*kept, merged), self._covers)

    def _fill_filter(self, run: KeyRun) -> None:
        """Add the keys of a run to the filter, in steps, so that a large run is never in memory as a whole."""
        if len(run) >= USELESS_KEYS:
            self._filter.fill()  # reading the run is not worth it
            return
        for start in range(0, len(run), _FILTER_STEP):
            self._filter.add(run.first[start : start + _FILTER_STEP])

    def _crowded_tier(self) -> list[KeyRun]:
        tiers: dict[int, list[KeyRun]] = {}
        for run in self._runs:
            tiers.setdefault(len(run).bit_length() // 2, []).append(run)
        return next((tier for tier in tiers.values() if len(tier) >= _RUNS_PER_TIER), [])

    def _next_path(self) -> Path:
        self._sequence += 1
        return self.directory / f"{self._sequence:012d}.keys"

    def _commit(self, runs: tuple[KeyRun, ...], covers: int, flushed: bool = False) -> None:
        """Make `runs` the index: on disk by one rename, then in memory. Then delete the files of all other runs."""
        manifest = {
            "covers": covers,
            "sequence": self._sequence,
            "seed": self.seed,
            "runs": [run.path.name for run in runs],
        }
        temporary = self.directory / "manifest.tmp"
        with temporary.open("wb") as file:
            file.write(json.dumps(manifest).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.directory / "manifest.json")
        fd = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        with self._lock:
            dropped = {run.path for run in self._runs} - {run.path for run in runs}
            self._runs, self._covers = runs, covers
            if flushed:
                self._flushing.clear()
        for path in dropped:
            path.unlink(missing_ok=True)

    def _load(self) -> None:
        try:
            manifest = json.loads((self.directory / "manifest.json").read_bytes())
        except FileNotFoundError:
            manifest = {"covers": 0, "sequence": 0, "seed": self.seed, "runs": []}
        self._runs = tuple(_open_run(self.directory / name) for name in manifest["runs"])
        for run in self._runs:
            self._fill_filter(run)
        self._covers, self._sequence, self.seed = manifest["covers"], manifest["sequence"], manifest["seed"]
        for path in self.directory.iterdir():
            # A crash after writing a run and before naming it in the manifest leaves such a file.
            if path.suffix == ".tmp" or (path.suffix == ".keys" and path.name not in manifest["runs"]):
                path.unlink()


def _young(part: Part, horizon_us: int) -> Part:
    """The digests that are not older than the horizon. Copies nothing if all are: new memory costs more than work."""
    first, last, at_us = part
    young = at_us >= horizon_us
    return part if young.all() else (first[young], last[young], at_us[young])


def _sorted_part(first: U64, last: U64, at_us: I64) -> Part:
    """Sort by digest and keep each digest once, with the latest time it was accepted."""
    order = np.argsort(first)
    ordered = first[order]
    if not (ordered[1:] == ordered[:-1]).any():
        return ordered, last[order], at_us[order]
    # Some first halves are equal, nearly always because a key occurs twice. This sort is several times slower.
    order = np.lexsort((at_us, last, first))
    first, last, at_us = first[order], last[order], at_us[order]
    keep = np.append((first[1:] != first[:-1]) | (last[1:] != last[:-1]), True)
    return first[keep], last[keep], at_us[keep]


@dataclass(frozen=True, slots=True)
class KeyRun:
    path: Path
    first: U64
    last: U64
    at_us: I64
    newest_us: int

    def __len__(self) -> int:
        return len(self.first)

    def seen(self, first: U64, last: U64, horizon_us: int) -> Bools:
        """For each digest: True if it is in this run and not older than the horizon."""
        is_seen = np.zeros(len(first), dtype=np.bool_)
        if self.newest_us < horizon_us:
            return is_seen
        at = np.searchsorted(self.first, first)
        open_queries = np.arange(len(first))
        # One step is enough unless digests share their first half: then compare with the next until it differs.
        while len(open_queries):
            open_queries = open_queries[at[open_queries] < len(self.first)]
            open_queries = open_queries[self.first[at[open_queries]] == first[open_queries]]
            here = at[open_queries]
            hit = (self.last[here] == last[open_queries]) & (self.at_us[here] >= horizon_us)
            is_seen[open_queries[hit]] = True
            at[open_queries] += 1
            open_queries = open_queries[~hit]
        return is_seen


def _open_run(path: Path) -> KeyRun:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, count, capacity, _oldest_us, newest_us = _RUN_HEADER.unpack_from(mapped)
    if magic != _MAGIC or len(mapped) < _ARRAYS_AT + 16 * capacity + 8 * count:
        raise ValueError(f"{path}: no key run, or cut short; delete the key index to have it rebuilt from the feed log")
    return KeyRun(
        path,
        np.frombuffer(mapped, np.uint64, count, _ARRAYS_AT),
        np.frombuffer(mapped, np.uint64, count, _ARRAYS_AT + 8 * capacity),
        np.frombuffer(mapped, np.int64, count, _ARRAYS_AT + 16 * capacity),
        newest_us,
    )


def write_run(path: Path, parts: Iterable[Part], capacity: int) -> KeyRun | None:
    """Write sorted parts, one after the other, as one durable run. If all are empty, return None and leave no file.

    `capacity` is at least the number of digests; the unused part stays a hole in the file. It uses pwrite instead of
    the mapping, so that a full disk raises OSError instead of a fatal signal.
    """
    count, oldest_us, newest_us = 0, 1 << 62, -(1 << 62)
    temporary = path.with_suffix(".tmp")
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.ftruncate(fd, _ARRAYS_AT + 24 * capacity)
        for part in parts:
            for number, array in enumerate(part):
                _write_all(fd, array.data.cast("B"), _ARRAYS_AT + 8 * (number * capacity + count))
            if len(part[2]):
                oldest_us = min(oldest_us, int(part[2].min()))
                newest_us = max(newest_us, int(part[2].max()))
            count += len(part[0])
        _write_all(fd, _RUN_HEADER.pack(_MAGIC, count, capacity, oldest_us, newest_us), 0)
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
    return _open_run(path)


def _merged(runs: Sequence[KeyRun], horizon_us: int) -> Iterator[Part]:
    """The sorted union of `runs` without keys older than the horizon, in parts of bounded size.

    Digests are evenly distributed, so equal ranges of their first half have about the same number of digests.
    """
    ranges = max(1, sum(map(len, runs)) // _MERGE_CHUNK)
    bounds = [(1 << 64) * number // ranges for number in range(1, ranges)]
    edges = [[0, *np.searchsorted(run.first, np.array(bounds, dtype=np.uint64)).tolist(), len(run)] for run in runs]
    for number in range(ranges):
        slices = [slice(edge[number], edge[number + 1]) for edge in edges]
        first = np.concatenate([run.first[part] for run, part in zip(runs, slices, strict=True)])
        last = np.concatenate([run.last[part] for run, part in zip(runs, slices, strict=True)])
        at_us = np.concatenate([run.at_us[part] for run, part in zip(runs, slices, strict=True)])
        yield _sorted_part(*_young((first, last, at_us), horizon_us))


def _write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
