"""`make test`: every test, in two processes at once, and what each said.

Starting processes, waiting for Spark and waiting for clocks leave half of two cores idle; two halves side by side take
two thirds of the time. Each half has a Spark of its own. With arguments there is one process, and they are
pytest's: `make test PYTEST_ARGS="tests/policies -x"`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIRST_HALF = ("tests/cluster", "tests/coords", "tests/edge", "tests/experiments", "tests/sim")
"""The other half is whatever else there is: a new folder needs no entry here."""


def main(arguments: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest"]
    if arguments:
        return subprocess.run([*pytest, *arguments], cwd=ROOT, check=False).returncode
    halves = [[*FIRST_HALF], ["tests", *(f"--ignore={folder}" for folder in FIRST_HALF)]]
    started_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        running = [
            subprocess.Popen([*pytest, *halves[0]], cwd=ROOT),
            subprocess.Popen([*pytest, *halves[1]], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, text=True),
        ]
        try:
            codes = [process.wait() for process in running]
        finally:
            for process in running:
                process.terminate()
        said.seek(0)
        sys.stdout.write(f"\nThe other half, {' '.join(halves[1])}:\n{said.read()}")
    verdict = "Not all tests passed" if any(codes) else "All tests passed"
    sys.stdout.write(f"\n{verdict} ({(time.monotonic() - started_s) / 60:.1f} minutes).\n")
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
