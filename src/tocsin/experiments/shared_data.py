"""Where measured data lies that is not part of the project: `TOCSIN_SHARED_DATA`, by default `../shared/data`."""

from __future__ import annotations

import os
from pathlib import Path


def shared_file(name: str) -> Path | None:
    """The file, or None: experiments run without it and say what they left out."""
    folder = Path(os.environ.get("TOCSIN_SHARED_DATA", Path.cwd().parent / "shared" / "data"))
    path = folder / name
    return path.resolve() if path.is_file() else None
