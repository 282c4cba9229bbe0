"""Freed memory goes back to the machine: the choice of Arrow's allocator, and a release from time to time.

Arrow's default allocator, mimalloc, keeps the freed pages of each thread for that thread. The data cluster's process
has about sixty threads, and any of them may execute a channel, answer a pull or merge files. So each thread kept its
own peak, for ever: 360 MiB of 690 MiB were such pages while Arrow used 4 MiB, and a release did not free them
[measured]. The C library's allocator shares its memory between threads and can release all of it. Its free memory
between used blocks also stays until a release, that of Python and SQLite included.
"""

from __future__ import annotations

from collections.abc import MutableMapping

RELEASE_S = 60.0
"""Pause between two releases. One takes at most 0.1 s of a thread [measured], without Python's global lock."""
_ALLOCATOR = "ARROW_DEFAULT_MEMORY_POOL"
"""Arrow's own variable. Arrow reads it once, before its first allocation."""


def choose_allocator(environment: MutableMapping[str, str]) -> None:
    """Make Arrow use the C library's allocator, unless the operator has chosen one. Call it before importing Arrow.

    Spark's Python workers inherit the choice.
    """
    environment.setdefault(_ALLOCATOR, "system")


def release_memory() -> None:
    """Return free memory to the machine. With the C library's allocator this is `malloc_trim`."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
