"""The processes behind a process: which JVM a data cluster runs. Reads /proc, so only on Linux."""

from __future__ import annotations

from pathlib import Path


def jvm_of(pid: int | None) -> int | None:
    """The process id of the JVM that process `pid` started; None if there is none."""
    if pid is None:
        return None
    for child in _children(pid):
        try:
            name = Path(f"/proc/{child}/comm").read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if name == "java":
            return child
    return None


def _children(pid: int) -> list[int]:
    """Every thread lists the processes that it started."""
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += [int(child) for child in thread.read_text(encoding="utf-8").split()]
        except OSError:
            continue
    return children
