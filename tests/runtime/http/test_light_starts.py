"""What a process does not need it does not load: commands answer at once, and a broker is small."""

from __future__ import annotations

import subprocess
import sys

import pytest

ARRAYS = {"numpy", "numba", "scipy", "pyarrow", "pandas"}
DATABASES = {"sqlalchemy", "sqlglot", "pyspark"}


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("tocsin.cli.main", ARRAYS | DATABASES | {"fastapi", "httpx"}),
        ("tocsin.cli.connection", ARRAYS | DATABASES | {"fastapi"}),
        ("tocsin.cli.publishing", ARRAYS | DATABASES | {"fastapi"}),
        ("tocsin.client", ARRAYS | DATABASES | {"fastapi"}),
        ("tocsin.runtime.broker.server", ARRAYS | DATABASES),
        ("tocsin.runtime.coordinator.server", {"pyspark", "sqlglot", "pandas"}),
    ],
)
def test_it_starts_without(module: str, never: set[str]) -> None:
    code = f"import sys, tocsin.cli.main, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert module in loaded
    assert not never & set(loaded)
