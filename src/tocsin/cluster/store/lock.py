"""One process at a time: two on one root would both believe they know where every channel stands."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tocsin.wire.errors import Code, TocsinError


def lock(path: Path) -> int:
    """A descriptor that holds the lock until it is closed, or its process is gone."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise TocsinError(
            Code.NOT_READY, f"another process has this data root open ({path}); stop it first or choose another root"
        ) from None
    return descriptor
