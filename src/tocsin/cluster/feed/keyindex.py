"""Which keys were accepted within the retention: a set of 128-bit digests with bounded memory.

New digests go into a table in memory; a full table becomes a sorted file (`keyruns.py`), files of like size are merged,
and what is older than the retention is forgotten. 128 bits make a chance collision (which would take one publisher's
record for a repeat of another) about as likely as a broken disk controller: 10**-15 among 10**12 keys. Digests depend
on a random `seed` that stays here, so that nobody can prepare keys that collide.

Only keys of *durable* records may be added: a key that is here and not in the log would swallow the retry of a record
nobody has. `covers` is the log position up to which the files know every key; after a crash the driver (`gateway.py`)
adds again what the log holds from there on. `seen` and `add` may run while another thread runs `flush` or `merge`; the
driver serialises `seen` and `add` between themselves, and `flush` and `merge` between themselves.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tocsin.cluster.feed.keyruns import Bools, Run, first_halves, halves, merge, open_run, sorted_part, write_run

DEFAULT_MEMORY_KEYS = 200_000
"""About 25 MB of Python objects; a flush of as many takes some 50 ms."""
_RUNS_PER_TIER = 4
"""So many files of like size are merged into one: at most 3 per power of four, and each key is rewritten that often."""
_NEVER_US = -(1 << 62)
_FILTER_BITS = 24
"""One slot per value of a digest's first bits: up to 16 MiB a dataset, taken as keys come. 2 million keys claim 11 % of
new ones, 20 million 70 %."""
_FILTER_SHIFT = np.uint64(64 - _FILTER_BITS)


class KeyIndex:
    def __init__(
        self, directory: Path | str, retention_s: float | None = None, memory_keys: int = DEFAULT_MEMORY_KEYS
    ) -> None:
        self.directory = Path(directory)
        self.retention_s = retention_s
        """None keeps every key for good; the files grow, memory does not."""
        self.memory_keys = memory_keys
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._table: dict[bytes, int] = {}
        self._flushing: dict[bytes, int] = {}
        self._runs: tuple[Run, ...] = ()
        self._covers = 0
        self._sequence = 0
        self.seed = secrets.randbits(64)
        """Made with the index and written with its first file."""
        self._filter: Bools = np.zeros(1 << _FILTER_BITS, dtype=np.bool_)
        self._load()

    @property
    def covers(self) -> int:
        """The files hold every key the log holds before this position (unless it expired)."""
        return self._covers

    @property
    def keys_in_memory(self) -> int:
        return len(self._table) + len(self._flushing)

    @property
    def run_lengths(self) -> list[int]:
        return [len(run) for run in self._runs]

    def is_full(self) -> bool:
        return self.keys_in_memory >= self.memory_keys

    def horizon_us(self, now_us: int) -> int:
        return _NEVER_US if self.retention_s is None else now_us - int(self.retention_s * 1e6)

    def expect(self, digests: Sequence[bytes]) -> list[int]:
        """These may be added later. Which of them (by index) may have been added or expected before; no other was.

        Nearly all keys of a healthy feed are new. This tells so without a look at the tables and files.
        """
        slots = first_halves(digests) >> _FILTER_SHIFT
        before: list[int] = np.flatnonzero(self._filter[slots]).tolist()
        self._filter[slots] = True
        return before

    def seen(self, digests: Sequence[bytes], now_us: int) -> Bools:
        """Which of the digests were added within the retention before `now_us`."""
        horizon_us = self.horizon_us(now_us)
        with self._lock:
            tables, runs = (self._table, self._flushing), self._runs
        found = np.zeros(len(digests), dtype=np.bool_)
        for table in tables:
            if not table.keys().isdisjoint(digests):
                found |= [table.get(digest, _NEVER_US - 1) >= horizon_us for digest in digests]
        if runs and digests:
            first, last = halves(digests)
            order = np.argsort(first)  # neighbours search the same pages of a run one after the other
            first, last = first[order], last[order]
            for run in runs:
                found[order] |= run.seen(first, last, horizon_us)
        return found

    def add(self, accepted_at_us: Mapping[bytes, int]) -> None:
        """Digest -> when its record was accepted. Each was passed to `expect` before."""
        with self._lock:
            self._table.update(accepted_at_us)

    def flush(self, covers: int, now_us: int) -> None:
        """Turn the table into a file. `covers`: every key the log holds before this position has been added.

        On OSError nothing changes but that the table stays in memory.
        """
        with self._lock:
            # What an earlier, failed flush left is taken along: the newer time wins.
            self._flushing = {**self._flushing, **self._table} if self._flushing else self._table
            self._table = {}
            flushing = self._flushing
        run: Run | None = None
        if flushing:
            first, last = halves(list(flushing))
            at_us = np.fromiter(flushing.values(), dtype=np.int64, count=len(flushing))
            young = at_us >= self.horizon_us(now_us)
            run = write_run(self._next_path(), [sorted_part(first[young], last[young], at_us[young])], len(first))
        runs = self._runs if run is None else (*self._runs, run)
        self._commit(runs, max(covers, self._covers), flushed=True)

    def merge(self, now_us: int) -> None:
        """Drop expired files and merge those of like size, until no tier has too many."""
        horizon_us = self.horizon_us(now_us)
        if any(run.newest_us < horizon_us for run in self._runs):
            self._commit(tuple(run for run in self._runs if run.newest_us >= horizon_us), self._covers)
        while tier := self._crowded_tier():
            merged = write_run(self._next_path(), merge(tier, horizon_us), sum(map(len, tier)))
            merging = {run.path for run in tier}
            kept = tuple(run for run in self._runs if run.path not in merging)
            self._commit(kept if merged is None else (*kept, merged), self._covers)

    def _fill_filter(self, run: Run) -> None:
        """In steps, so that a large run is never in memory whole. Slots of expired keys stay set until a restart."""
        if len(run) >= 8 << _FILTER_BITS:
            self._filter[:] = True  # all but every slot would be set: not worth the reading
            return
        for start in range(0, len(run), 1 << 20):
            self._filter[run.first[start : start + (1 << 20)] >> _FILTER_SHIFT] = True

    def _crowded_tier(self) -> list[Run]:
        tiers: dict[int, list[Run]] = {}
        for run in self._runs:
            tiers.setdefault(len(run).bit_length() // 2, []).append(run)
        return next((tier for tier in tiers.values() if len(tier) >= _RUNS_PER_TIER), [])

    def _next_path(self) -> Path:
        self._sequence += 1
        return self.directory / f"{self._sequence:012d}.keys"

    def _commit(self, runs: tuple[Run, ...], covers: int, flushed: bool = False) -> None:
        """Make `runs` the index, on disk by one rename, then in memory; files that fell out are deleted."""
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
                self._flushing = {}
        for path in dropped:
            path.unlink(missing_ok=True)

    def _load(self) -> None:
        try:
            manifest = json.loads((self.directory / "manifest.json").read_bytes())
        except FileNotFoundError:
            manifest = {"covers": 0, "sequence": 0, "seed": self.seed, "runs": []}
        self._runs = tuple(open_run(self.directory / name) for name in manifest["runs"])
        for run in self._runs:
            self._fill_filter(run)
        self._covers, self._sequence, self.seed = manifest["covers"], manifest["sequence"], manifest["seed"]
        for path in self.directory.iterdir():
            # What a crash between writing a file and naming it in the manifest left behind.
            if path.suffix == ".tmp" or (path.suffix == ".keys" and path.name not in manifest["runs"]):
                path.unlink()
