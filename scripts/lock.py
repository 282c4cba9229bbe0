"""Writes `locks/<platform>/*.txt`: every package that `make setup` installs on this platform, with its hash.

`python scripts/lock.py` asks pip which files it would install for pyproject.toml and constraints.txt, and writes their
SHA-256 digests: `build.txt` (what builds packages), `run.txt` (what Tocsin needs) and `dev.txt` (tests and checks too).
Run it on each supported platform after a change of either file. `python scripts/lock.py --platform` prints the folder.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGETS = {
    "build": ["setuptools", "wheel", "hatchling", "editables"],
    "run": ["."],
    "dev": [".[dev]"],
}
HEAD = """# Written by scripts/lock.py for {platform}: the exact files that pip may install there.
"""


def platform_name() -> str:
    """Implementation, version, system and processor: wheels differ in all four."""
    python = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
    return f"{python}-{platform.system()}-{platform.machine()}".lower()


def hashed_requirements(targets: list[str]) -> list[str]:
    """A line for each file that pip would install for these targets."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--constraint", "constraints.txt", "--report", str(report), *targets]
        subprocess.run(command, cwd=ROOT, check=True)
        installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    lines = []
    for package in installed:
        digest = package["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest is not None:  # this project's own folder has none
            metadata = package["metadata"]
            lines.append(f"{metadata['name']}=={metadata['version']} --hash=sha256:{digest}")
    return sorted(lines, key=str.lower)


def main() -> None:
    name = platform_name()
    if "--platform" in sys.argv:
        print(f"locks/{name}")
        return
    folder = ROOT / "locks" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, targets in TARGETS.items():
        lines = hashed_requirements(targets)
        (folder / f"{file}.txt").write_text(HEAD.format(platform=name) + "\n".join(lines) + "\n", encoding="utf-8")
        print(f"{folder / file}.txt: {len(lines)} packages")


if __name__ == "__main__":
    main()
