"""`make test`: runs all tests in two processes at once and prints the output of both.

The tests often wait for processes, Spark and clocks, so that one process leaves half of two cores idle; two processes
take two thirds of the time. Each process has its own Spark. Arguments go to a single pytest process:
`make test PYTEST_ARGS="tests/policies -x"`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIRST_HALF = ("tests/cluster", "tests/experiments", "tests/sim")
"""The second half has all other folders: a new folder needs no entry here."""


def main(arguments: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest"]
    if arguments:
        return subprocess.run([*pytest, *arguments], cwd=ROOT, check=False).returncode
    halves = [[*FIRST_HALF], ["tests", *(f"--ignore={folder}" for folder in FIRST_HALF)]]
    started_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        running = [
            subprocess.Popen([*pytest, *halves[0]], cwd=ROOT),
            subprocess.Popen([*pytest, *halves[1]], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True),
        ]
        try:
            codes = [process.wait() for process in running]
        finally:
            for process in running:
                process.terminate()
        output.seek(0)
        sys.stdout.write(f"\nThe second half, {' '.join(halves[1])}:\n{output.read()}")
    verdict = "Not all tests passed" if any(codes) else "All tests passed"
    sys.stdout.write(f"\n{verdict} ({(time.monotonic() - started_s) / 60:.1f} minutes).\n")
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
