"""`make test`: runs all tests in two processes at once and prints the output of both.

The tests often wait for processes, Spark and clocks, so that one process leaves half of two cores idle; two processes
take two thirds of the time. Each process has its own Spark. Arguments go to a single pytest process:
`make test PYTEST_ARGS="tests/policies -x"`.

Tests of real processes have deadlines, and a test of the other process can take the machine for seconds. So a few
failed tests run once more, alone. A test that fails again has failed. A test that passes alone is named at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTEST = (sys.executable, "-m", "pytest")
FIRST_HALF = ("tests/benchmarks", "tests/cluster", "tests/demo", "tests/experiments", "tests/sim")
"""The second half has all other folders: a new folder needs no entry here."""
HALVES = ((*FIRST_HALF,), ("tests", *(f"--ignore={folder}" for folder in FIRST_HALF)))
MOST_REPEATED = 5
"""More failures than this have a reason that is not a busy machine."""
TESTS_FAILED = 1
"""pytest's exit code for failed tests; others mean that pytest itself could not run them."""


def main(arguments: Sequence[str]) -> int:
    if arguments:
        return subprocess.run([*PYTEST, *arguments], cwd=ROOT, check=False).returncode
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder) / name for name in ("first", "second")]
        codes = run_halves(caches, Path(folder) / "output")
        failed = [test for cache in caches for test in failed_tests(cache)]
    passed_alone = False
    if max(codes) == TESTS_FAILED and 0 < len(failed) <= MOST_REPEATED:
        sys.stdout.write("\nThe failed tests once more, alone:\n")
        sys.stdout.flush()
        repeated = subprocess.run([*PYTEST, "-p", "no:cacheprovider", *failed], cwd=ROOT, check=False)
        passed_alone = repeated.returncode == 0
    code = 0 if passed_alone else max(codes)
    if passed_alone:
        sys.stdout.write("\nPassed alone, but failed beside other tests:\n" + "".join(f"  {test}\n" for test in failed))
    verdict = "Not all tests passed" if code else "All tests passed"
    sys.stdout.write(f"\n{verdict} ({(time.monotonic() - started_s) / 60:.1f} minutes).\n")
    return code


def run_halves(caches: Sequence[Path], output_path: Path) -> list[int]:
    """Run both halves at once. Print the first as it runs and the second afterwards; return their exit codes."""
    first, second = ([*PYTEST, "-o", f"cache_dir={cache}", *half] for cache, half in zip(caches, HALVES, strict=True))
    with output_path.open("w+") as output:
        running = [
            subprocess.Popen(first, cwd=ROOT),
            subprocess.Popen(second, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True),
        ]
        try:
            codes = [abs(process.wait()) for process in running]
        finally:
            for process in running:
                process.terminate()
        output.seek(0)
        sys.stdout.write(f"\nThe second half, {' '.join(HALVES[1])}:\n{output.read()}")
        sys.stdout.flush()
    return codes


def failed_tests(cache: Path) -> list[str]:
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
