"""Runs a function of a test module in another process without compilation: interpreted kernels check their bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def interpreted(function: Callable[[], Any]) -> Any:
    """The result of a function without arguments, by way of JSON."""
    name, module = function.__name__, function.__module__
    child = subprocess.run(
        [sys.executable, "-c", f"import json; from {module} import {name}; print(json.dumps({name}()))"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)
