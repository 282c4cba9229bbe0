"""The data cluster's process returns the memory that its threads have freed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tocsin.cluster.server.memory import choose_allocator

_MANY_THREADS = """
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tocsin.cluster.server.memory import choose_allocator, release_memory
choose_allocator(os.environ)
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

THREADS = 24

def anonymous_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))

def sort_rows(number):
    at_once.wait()
    names = pa.array([f"report-{name}" for name in range(2_000)])
    rows = pa.table({"a": np.arange(60_000), "b": names.take(pa.array(np.arange(60_000) % 2_000))})
    return rows.filter(pc.greater(rows["a"], number)).sort_by("b").num_rows

at_once = threading.Barrier(THREADS)
before_mib = anonymous_mib()
with ThreadPoolExecutor(THREADS) as pool:
    assert sum(pool.map(sort_rows, range(THREADS)))
    release_memory()
    assert pa.total_allocated_bytes() < 1 << 20
    print(anonymous_mib() - before_mib)
"""


_VARIABLES = ("ARROW_DEFAULT_MEMORY_POOL", "MALLOC_ARENA_MAX")


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's counters")
def test_memory_that_many_threads_freed_returns_to_the_machine() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    answer = subprocess.run(
        [sys.executable, "-c", _MANY_THREADS], env=environment, capture_output=True, text=True, check=True
    )
    assert int(answer.stdout) < 120  # about 40 MiB; mimalloc keeps 240


def test_allocator_that_the_operator_chose_stays() -> None:
    environment = dict.fromkeys(_VARIABLES, "chosen")
    choose_allocator(environment)
    assert environment == dict.fromkeys(_VARIABLES, "chosen")
