"""kill -9 around every commit: nothing that was acknowledged is lost, nothing is stored or matched twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tocsin.cluster.spark.session import require_java
from tocsin.wire.errors import TocsinError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parent.parent.parent
DEATHS = (
    "before commit_records",  # the files are written, the catalog does not know them
    "after commit_records",  # the catalog has the batch, Spark's checkpoint does not: Spark runs it again
    "before commit_execution",  # results are written, nobody may ever see them
    "after commit_execution",  # results are visible, nobody was told
)


def run(root: Path, round_number: int, where: str) -> tuple[int, dict[str, list[Any]]]:
    child = subprocess.run(
        [sys.executable, "-m", "tests.cluster.crash_child", str(root), str(round_number), where],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    said: dict[str, list[Any]] = {}
    for line in child.stdout.splitlines():
        if line.startswith("["):
            what, value = json.loads(line)
            said.setdefault(what, []).append(value)
    if child.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(child.stderr[-3000:])
    return child.returncode, said


def test_a_killed_data_cluster_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    try:
        require_java()
    except TocsinError as error:
        pytest.skip(error.message)
    acknowledged: list[str] = []
    for round_number, where in enumerate(DEATHS):
        code, said = run(tmp_path, round_number, where)
        assert code == -signal.SIGKILL, where
        acknowledged += [name for batch in said["acknowledged"] for name in batch]
    assert len(acknowledged) >= 40 * len(DEATHS)

    _, said = run(tmp_path, len(DEATHS), "never")
    (stored,), (results,), (announced,) = said["stored"], said["results"], said["announced"]
    assert set(acknowledged) <= set(stored), "an acknowledged record was lost"
    assert not [name for name, count in Counter(stored).items() if count > 1], "a record was stored twice"
    assert Counter(results) == Counter(stored), "each record is matched by the channel exactly once"
    assert announced == len(results), "brokers hear of every result"
