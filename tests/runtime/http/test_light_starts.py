"""Commands and processes load only the libraries they need: commands answer at once, and a broker stays small."""

from __future__ import annotations

import subprocess
import sys

import pytest

ARRAYS = {"numpy", "numba", "scipy", "pyarrow", "pandas"}
DATABASES = {"sqlalchemy", "sqlglot", "pyspark"}
SERVERS = {"fastapi", "uvicorn", "structlog"}


def loaded_by(code: str) -> set[str]:
    code = f"import sys, tocsin.cli.main\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("tocsin.cli.main", ARRAYS | DATABASES | {"fastapi", "httpx"}),
        ("tocsin.cli.connection", ARRAYS | DATABASES | {"fastapi"}),
        ("tocsin.client.sync", ARRAYS | DATABASES | {"fastapi"}),
        ("tocsin.client", ARRAYS | DATABASES | {"fastapi"}),
        ("tocsin.runtime.broker.server", ARRAYS | DATABASES),
        ("tocsin.runtime.coordinator.server", {"pyspark", "sqlglot", "pandas"}),
    ],
)
def test_module_loads_without_heavy_libraries(module: str, never: set[str]) -> None:
    loaded = loaded_by(f"import {module}")
    assert module in loaded
    assert not never & loaded


@pytest.mark.parametrize("arguments", [["--help"], ["broker", "--help"], ["cluster", "--help"]])
def test_help_loads_no_heavy_library(arguments: list[str]) -> None:
    loaded = loaded_by(
        f"try:\n    tocsin.cli.main.make_app()({arguments}, prog_name='tocsin')\nexcept SystemExit:\n    pass"
    )
    assert not (ARRAYS | DATABASES | SERVERS | {"httpx", "cryptography"}) & loaded
