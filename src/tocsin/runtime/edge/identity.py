"""The run number of a node: it grows with each start and each lost lease, so that the root can fence earlier runs."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path


class Identity:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "run"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.run = self._known = 0
        with suppress(OSError, ValueError):
            self.run = int(self._path.read_text(encoding="ascii"))

    def learn(self, run: int) -> None:
        """The root knows this run: the next one is higher."""
        self._known = max(self._known, run)

    def start_run(self) -> None:
        """Take the next number. It follows the clock, so that a node that lost its folder is newer than before."""
        self.run = max(self.run + 1, self._known + 1, int(time.time() * 1000))
        new = self._path.with_suffix(".new")
        with new.open("w", encoding="ascii") as file:
            file.write(f"{self.run}\n")
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._path)
