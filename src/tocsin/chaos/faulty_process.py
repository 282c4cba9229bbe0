"""Gives a data cluster a slow disk and a clock that steps, as a control file says. For chaos runs only.

The product has no injection point. `install` replaces `os.fsync`, `os.fdatasync`, `time.time` and `time.time_ns` of the
process before the ordinary command runs. The control file is in the data root.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

CONTROL_FILE = "chaos-control.json"
_READ_S = 0.1
"""Pause between two looks at the control file."""


class Control(msgspec.Struct):
    fsync_delay_s: float = 0.0
    """How much longer each fsync takes."""
    clock_ahead_s: float = 0.0
    """How far the wall clock of the process is ahead; negative if it is behind."""


def write_control(root: Path, control: Control) -> None:
    """Replace the control file of the process with this data root."""
    fresh = root / f"{CONTROL_FILE}.new"
    fresh.write_bytes(msgspec.json.encode(control))
    fresh.replace(root / CONTROL_FILE)


@dataclass(slots=True)
class _Faults:
    path: Path
    control: Control
    read_at_s: float = -1.0

    def current(self) -> Control:
        now_s = time.monotonic()
        if now_s - self.read_at_s >= _READ_S:
            self.read_at_s = now_s
            try:
                self.control = msgspec.json.decode(self.path.read_bytes(), type=Control)
            except (OSError, msgspec.DecodeError):
                self.control = Control()
        return self.control


def install() -> None:
    """Replace the functions of this process. Python workers of Spark and the JVM keep theirs.

    The data root is the one in the arguments of the command.
    """
    root = Path(sys.argv[sys.argv.index("--root") + 1])
    faults = _Faults(root / CONTROL_FILE, Control())
    fsync, fdatasync, now_s, now_ns = os.fsync, os.fdatasync, time.time, time.time_ns

    def slow_fsync(fd: int) -> None:
        time.sleep(faults.current().fsync_delay_s)
        fsync(fd)

    def slow_fdatasync(fd: int) -> None:
        time.sleep(faults.current().fsync_delay_s)
        fdatasync(fd)

    os.fsync, os.fdatasync = slow_fsync, slow_fdatasync  # type: ignore[assignment]
    time.time = lambda: now_s() + faults.current().clock_ahead_s
    time.time_ns = lambda: now_ns() + int(faults.current().clock_ahead_s * 1e9)
