"""Every package that `make setup` installs on a locked platform has its version and its hash in the lock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LOCKS = sorted((ROOT / "locks").iterdir())
LINE = re.compile(r"([A-Za-z0-9._-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def locked(file: Path) -> dict[str, str]:
    """Package → version. Fails if a line has no hash."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    matches = [LINE.fullmatch(line) for line in lines]
    assert lines and all(matches), [line for line, match in zip(lines, matches, strict=True) if match is None]
    return {_normal(match[1]): match[2] for match in matches if match is not None}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constrained() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {_normal(line.partition("==")[0]): line.partition("==")[2] for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_lock_has_the_tested_version_of_every_package_with_its_hash(lock: Path) -> None:
    build, run, dev = (locked(lock / f"{name}.txt") for name in ("build", "run", "dev"))
    assert build | run | dev == constrained()
    assert run.items() <= dev.items()
    assert {"hatchling", "setuptools", "wheel"} <= build.keys()
