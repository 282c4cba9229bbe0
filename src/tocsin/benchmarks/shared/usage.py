"""CPU time and resident memory of each server process of a network, sampled while a benchmark runs.

Spark's JVM is a child of the data cluster's process and counts by itself. The benchmark's own process, which has all
publishers and clients, does not count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.benchmarks.shared.processes import cpu_time_s

SPARK = "spark"


@dataclass(frozen=True, slots=True)
class Usage:
    """All processes at one moment, by name."""

    at_s: float
    """Wall-clock time."""
    cpu_s: dict[str, float]
    """CPU time since the start of the process."""
    rss_mib: dict[str, float]


def server_processes(stack: Any) -> dict[str, Any]:
    """A `psutil.Process` for each process of a `Stack`, and one for Spark's JVM."""
    import psutil

    processes = {child.name: psutil.Process(child.pid) for child in stack.children}
    for process in list(processes.values()):
        for child in process.children(recursive=True):
            if child.name() == "java":
                processes[SPARK] = child
    return processes


def usage_of(processes: dict[str, Any]) -> Usage:
    """Read the counters. Raises `psutil.NoSuchProcess` if a process ended: figures across a restart mean nothing."""
    return Usage(
        time.time(),
        {name: cpu_time_s(process) for name, process in processes.items()},
        {name: process.memory_info().rss / 2**20 for name, process in processes.items()},
    )


def cores_between(samples: Sequence[Usage], from_s: float, to_s: float) -> dict[str, float]:
    """Cores that each process used between two moments; an empty dict with fewer than two samples."""
    inside = [sample for sample in samples if from_s <= sample.at_s <= to_s]
    if len(inside) < 2:
        return {}
    first, last = inside[0], inside[-1]
    took_s = last.at_s - first.at_s
    return {name: (cpu_s - first.cpu_s[name]) / took_s for name, cpu_s in last.cpu_s.items()}


def memory_between(samples: Sequence[Usage], from_s: float, to_s: float) -> dict[str, float]:
    """The mean resident memory of each process between two moments, in MiB."""
    inside = [sample for sample in samples if from_s <= sample.at_s <= to_s]
    names = inside[0].rss_mib if inside else ()
    return {name: sum(sample.rss_mib[name] for sample in inside) / len(inside) for name in names}
