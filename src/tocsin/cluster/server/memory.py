"""Freed memory goes back to the machine: the choice of allocators, and a release from time to time.

Arrow's default allocator, mimalloc, keeps the freed pages of each thread for that thread. The data cluster's process
has about sixty threads, and any of them may execute a channel, answer a pull or merge files. So each thread kept its
own peak, for ever: 360 MiB of 690 MiB were such pages while Arrow used 4 MiB, and a release did not free them
[measured]. The C library's allocator shares its memory between threads and can release all of it. Its free memory
between used blocks also stays until a release, that of Python and SQLite included.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, MutableMapping

RELEASE_S = 60.0
"""Pause between two releases. One takes at most 0.1 s of a thread [measured], without Python's global lock."""
_ARROW_ALLOCATOR = "ARROW_DEFAULT_MEMORY_POOL"
"""Arrow's own variable. Arrow reads it once, before its first allocation."""
_ARENAS = "MALLOC_ARENA_MAX"
"""The C library's own variable. It is read when a process starts."""
_MOST_ARENAS = 4
"""Parts of the C library's memory, each with its own lock and its own gaps. Default: 8 for each core. Hadoop uses 4."""
_LARGE_BYTES = 1 << 20
"""Blocks of this size return to the machine as soon as they are freed. By default the C library raises this bound to
32 MiB when such blocks are freed; then merges of files leave gaps. It costs nothing that could be measured."""
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
"""Names of these options in glibc's `malloc.h`, for a process that runs already."""


def choose_allocator(environment: MutableMapping[str, str]) -> None:
    """Make Arrow use the C library's allocator, and keep the latter's gaps small, unless the operator chose otherwise.

    Call it before Arrow is imported and before threads start. Spark and its Python workers inherit both variables.
    """
    environment.setdefault(_ARROW_ALLOCATOR, "system")
    if _ARENAS not in environment:
        environment[_ARENAS] = str(_MOST_ARENAS)
        _set_options({_M_ARENA_MAX: _MOST_ARENAS, _M_MMAP_THRESHOLD: _LARGE_BYTES})


def _set_options(options: Mapping[int, int]) -> None:
    """Set options of this process. Does nothing where the C library does not have them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)


def release_memory() -> None:
    """Return free memory to the machine. With the C library's allocator this is `malloc_trim`."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
