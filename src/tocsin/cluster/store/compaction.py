"""Which files to merge, decided without touching any: many small executions must not leave many small files.

Size-tiered: files of about the same size that lie next to each other are merged once there are enough of them, so that
each row is rewritten a logarithmic number of times. `cluster.spark.compaction` does the merging.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tocsin.cluster.catalog import StoredFile

FAN_IN = 32
"""How many neighbours of a tier make a merge."""
SMALLEST_TIER_BYTES = 256 << 10
TARGET_BYTES = 64 << 20
"""A file this large is left alone, except in KEYED datasets, where merging also drops superseded records."""
MOST_INPUTS = 64


def files_to_merge(
    files: Sequence[StoredFile], *, keyed: bool = False, span_s: float = math.inf, fan_in: int = FAN_IN
) -> list[StoredFile]:
    """The next run of neighbours to merge, or nothing. `span_s` bounds how far apart in time they may be, so that
    retention, which drops whole files, stays near what was asked for."""
    ordered = sorted(files, key=lambda file: (file.first, file.id))
    largest_bytes = math.inf if keyed else TARGET_BYTES
    for tier in range(max((_tier(file) for file in ordered), default=-1) + 1):
        for run in _runs(ordered, tier, span_s, largest_bytes):
            if len(run) >= fan_in:
                return run
    return []


def _tier(file: StoredFile) -> int:
    return max(0, math.ceil(math.log(max(1, file.bytes) / SMALLEST_TIER_BYTES, FAN_IN)))


def _runs(ordered: Sequence[StoredFile], tier: int, span_s: float, largest_bytes: float) -> list[list[StoredFile]]:
    """A file that is left alone ends a run: merging across it would put what it holds out of order."""
    runs: list[list[StoredFile]] = [[]]
    for file in ordered:
        run = runs[-1]
        small = _tier(file) <= tier and file.bytes < largest_bytes
        if small and len(run) < MOST_INPUTS and (not run or file.at_s - run[0].at_s <= span_s):
            run.append(file)
        else:
            runs.append([file] if small else [])
    return runs
